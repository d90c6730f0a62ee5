import pytest
import torch
from PIL import Image
from torch.testing import assert_close

import softvq.data
from softvq.data import TensorImages, draw_textures, load_images


@pytest.fixture
def folder(tmp_path):
    for i in range(6):
        Image.new("RGB", (7, 5), (i, 20, 30)).save(tmp_path / f"{i}.png")
    return tmp_path


@pytest.fixture
def small_cifar10(monkeypatch):
    def load(split):
        return TensorImages(torch.zeros(9, 3, 32, 32, dtype=torch.uint8), name=f"cifar10 {split}")

    monkeypatch.setattr(softvq.data, "load_cifar10", load)


def test_textures():
    images = load_images("textures", "test", size=8, channels=1, num_images=7)
    expected = draw_textures("test", num_images=7, size=8, channels=1)
    assert images.name == expected.name
    assert_close(images.batch(torch.arange(7)), expected.images)


def test_textures_are_2000_if_no_number_is_given():
    assert len(load_images("textures", "train", size=4)) == 2000


def test_folder(folder):
    images = load_images("folder", "all", path=folder, size=4, channels=1)
    assert (len(images), images.size, images.channels) == (6, (4, 4), 1)


def test_the_number_takes_the_first(folder):
    images = load_images("folder", "all", path=folder, size=5, num_images=2)
    assert images.name == f"folder {folder.name} all (first 2 of 6)"
    assert images.batch(torch.tensor([0, 1]))[:, 0, 0, 0].tolist() == [0, 1]


def test_a_larger_number_takes_all(folder):
    assert len(load_images("folder", "all", path=folder, size=5, num_images=7)) == 6


def test_cifar10(small_cifar10):
    images = load_images("cifar10", "test", num_images=4)
    assert (len(images), images.name) == (4, "cifar10 test (first 4 of 9)")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": "cifar"}, "source is 'cifar'; valid are: cifar10, folder, textures. Did you"),
        ({"source": "folder"}, "path is None"),
        ({"path": "pictures"}, "path is for the source \"folder\"; got 'pictures'"),
        ({"num_images": 0}, "num_images must be a whole number of at least 1"),
        ({"source": "cifar10", "size": 64}, "size and channels must be 32 and 3"),
        ({"source": "cifar10", "channels": 1}, "size and channels must be 32 and 3"),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        load_images(**{"source": "textures", "split": "train", **arguments})
