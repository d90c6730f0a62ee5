import math

import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio

from eval.tiles import find_psnr, find_residual, join_row, make_tiles

RESULTS = {"methods": {"a": {"label": "A"}, "none": {"label": "N"}, "b": {"label": "B"}}}


def make_bytes(count, size, *, step, channels=3):
    values = torch.arange(count * channels * size * size) * step
    return values.remainder(256).byte().reshape(count, channels, size, size)


@pytest.fixture
def pictures():
    inputs = make_bytes(3, 4, step=7)
    return {
        "inputs": inputs,
        "a/hard": make_bytes(3, 4, step=11),
        "a/soft": inputs,
        "b/hard": make_bytes(3, 4, step=5),
    }


def test_psnr_is_that_of_scikit_image(pictures):
    inputs, hard = pictures["inputs"].numpy(), pictures["a/hard"].numpy()
    expected = [
        peak_signal_noise_ratio(x, y, data_range=255) for x, y in zip(inputs, hard, strict=True)
    ]
    tile = make_tiles(RESULTS, pictures).methods[0]
    assert tile.psnr_hard == pytest.approx(expected, abs=1e-9)
    assert tile.psnr_soft == 3 * [math.inf]
    assert find_psnr(pictures["inputs"], pictures["a/hard"]) == tile.psnr_hard


def test_residuals_are_doubled_about_grey_and_cut_at_the_ends():
    inputs = torch.tensor([100, 100, 100, 255, 0]).byte().reshape(1, 1, 1, 5)
    outputs = torch.tensor([100, 110, 95, 0, 255]).byte().reshape(1, 1, 1, 5)
    assert find_residual(inputs, outputs).flatten().tolist() == [128, 148, 118, 0, 255]


def test_methods_keep_their_order_and_those_without_pictures_are_left_out(pictures):
    tiles = make_tiles(RESULTS, pictures)
    assert [tile.label for tile in tiles.methods] == ["A", "B"]
    assert tiles.methods[1].soft is None
    assert tiles.methods[1].psnr_soft is None
    strip = np.concatenate([each.transpose(1, 2, 0) for each in pictures["b/hard"].numpy()], axis=1)
    np.testing.assert_array_equal(tiles.methods[1].hard.numpy(), strip)


def test_grey_is_shown_as_colour():
    grey = make_bytes(2, 3, step=9, channels=1)
    row = join_row(grey)
    assert row.shape == (3, 6, 3)
    assert torch.equal(row[:, 3:, 0], grey[1, 0])
    assert torch.equal(row[..., 0], row[..., 2])


@pytest.mark.parametrize(("size", "count"), [(32, 16), (128, 8), (256, 2), (512, 2)])
def test_large_pictures_are_fewer(size, count):
    inputs = torch.zeros(16, 1, size, size, dtype=torch.uint8)
    tiles = make_tiles({"methods": {}}, {"inputs": inputs})
    assert tiles.num_pictures == count
    assert tiles.inputs.shape == (size, count * size, 3)
