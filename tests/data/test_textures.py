import pytest
import torch
from torch.testing import assert_close

from softvq.data import draw_textures


def test_what_they_are_is_in_the_name():
    images = draw_textures("test", num_images=3, size=8)
    assert images.name == "textures (drawn, not photographs) test"
    assert images.keys == ("test/00000", "test/00001", "test/00002")
    assert (images.size, images.channels, images.labels) == ((8, 8), 3, None)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [1, 7, 32])
def test_shapes(size, channels):
    images = draw_textures("train", num_images=5, size=size, channels=channels)
    assert images.images.shape == (5, channels, size, size)


def test_the_same_arguments_give_the_same_pictures():
    assert_close(
        draw_textures("train", num_images=50, seed=3).images,
        draw_textures("train", num_images=50, seed=3).images,
    )


def test_the_global_random_state_is_neither_used_nor_changed():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = draw_textures("train", num_images=4).images
    assert_close(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert_close(draw_textures("train", num_images=4).images, first)


def test_a_longer_draw_starts_with_a_shorter_one():
    # 3,000 pictures are drawn in two portions.
    long = draw_textures("train", num_images=3000).images
    assert_close(draw_textures("train", num_images=100).images, long[:100])
    assert_close(draw_textures("train", num_images=2500).images, long[:2500])


def test_channels_do_not_change_the_shapes():
    grey = draw_textures("train", num_images=6, channels=1).images
    assert_close(draw_textures("train", num_images=6, channels=3).images[:, :1], grey)


def test_splits_and_seeds_share_no_picture():
    draws = [draw_textures(split, seed=seed) for split in ("train", "test") for seed in (0, 1, 2)]
    rows = torch.cat([draw.images for draw in draws]).flatten(1)
    assert len(rows.unique(dim=0)) == len(rows) == 12_000


def test_pictures_hold_something_to_learn():
    images = draw_textures("train", num_images=500).images.float() / 255
    # Uniform colours have mean 1/2 and deviation sqrt(1/12) = 0.289; blending takes some away.
    assert_close(images.mean(), torch.tensor(0.5), rtol=0, atol=0.02)
    assert 0.2 < images.std() < 0.289
    # Within a picture 4 x 4 patches differ, and so do pixels within a patch.
    patches = torch.nn.functional.avg_pool2d(images, 4)
    assert patches.flatten(2).std(dim=2).mean() > 0.08
    assert (images - torch.nn.functional.interpolate(patches, scale_factor=4)).std() > 0.05


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "all"}, "split is 'all'; valid are: train, test"),
        ({"num_images": 0}, "num_images must be a whole number of at least 1"),
        ({"size": 0}, "size must be a whole number of at least 1"),
        ({"channels": 2}, r"channels must be 1 \(grey\) or 3 \(RGB\); got 2"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
    ],
    ids=str,
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        draw_textures(**{"split": "train", **arguments})
