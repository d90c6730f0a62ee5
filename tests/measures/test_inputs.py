import pytest
import torch

from softvq.measures.inputs import describe_resize, split_batch, to_net_range


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0), (0.0, 255.0)], ids=str)
def test_both_ends_become_minus_one_and_one(low, high):
    images = torch.tensor([low, high]).reshape(1, 1, 1, 2)
    assert to_net_range(images, low=low, high=high)[0, 2, 0].tolist() == [-1.0, 1.0]


def test_an_own_size_is_left_alone_and_another_is_reached():
    images = torch.sin(torch.arange(3.0 * 8 * 8)).reshape(1, 3, 8, 8)
    assert torch.equal(to_net_range(images, low=-1.0, high=1.0, resize=8), images)
    assert to_net_range(images, low=-1.0, high=1.0, resize=5).shape == (1, 3, 5, 5)


@pytest.mark.parametrize(("side", "parts"), [(None, [3]), (512, [1, 1, 1])])
def test_a_batch_is_split_by_what_the_net_sees(side, parts):
    assert [len(part) for part in split_batch(torch.zeros(3, 1, 8, 8), side=side)] == parts
    assert describe_resize(side) == ("none" if side is None else "512 x 512 bilinear")


@pytest.mark.bad_input
def test_two_channels_are_refused():
    with pytest.raises(ValueError, match=r"images must have 1 or 3 channels; got shape \(1, 2"):
        to_net_range(torch.zeros(1, 2, 4, 4), low=0.0, high=1.0)
