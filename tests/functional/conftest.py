import pytest
import torch
from hypothesis import settings

pytest.register_assert_rewrite("tests.contracts.backend")

# The same examples on every machine, and no limit on the time of one: the cores are shared.
settings.register_profile("softvq", derandomize=True, deadline=None, max_examples=25)
settings.load_profile("softvq")


@pytest.fixture(scope="package", autouse=True)
def _one_thread():
    """Small tensors: a second thread costs more than it gives."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
