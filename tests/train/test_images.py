import pytest
import torch

from train.images import ImagePair
from train.presets import smoke
from train.values import override


def make_pair(*changes):
    return ImagePair(override(smoke(), ["data.num_train=40", *changes]))


def test_the_test_set_is_its_own():
    images = make_pair("data.num_test=8")
    assert (len(images.train), len(images.test)) == (40, 8)
    assert "test" in images.test.name


def test_what_is_held_out_is_not_trained_on():
    images, whole = make_pair("data.held_out=8", "data.num_test=3"), make_pair()
    assert (len(images.train), len(images.test)) == (32, 8)
    last = torch.arange(32, 40)
    assert torch.equal(images.test.batch(torch.arange(8)), whole.train.batch(last))
    first = torch.arange(32)
    assert torch.equal(images.train.batch(first), whole.train.batch(first))
    assert "last 8 of 40" in images.test.name
    with pytest.raises(ValueError, match="indices must be in"):
        images.train.batch(torch.tensor([32]))


def test_a_fifth_is_held_out_at_most():
    images = make_pair("data.held_out=1000")
    assert (len(images.train), len(images.test)) == (32, 8)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("data.held_out=-1",), "data.held_out"),
        (("data.held_out=8", "data.num_train=4"), "there are 4"),
    ],
)
def test_what_cannot_be_held_out_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make_pair(*changes)
