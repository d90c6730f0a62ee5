import math
import re
from collections import Counter

import pytest
import torch

from softvq.measures import (
    CodebookUse,
    Cooccurrence,
    Psnr,
    find_neighbours,
    rate_point,
)


def make_grids(count=20, *, height=4, width=5, num_codes=9):
    line = torch.arange(count * height * width)
    grids = ((line * line + line // 3) % num_codes).reshape(count, height, width)
    grids[3, 1, 2] = -1
    return grids


def count_pairs(grids, *, down, right):
    """One pair of tokens at a time."""
    found = Counter()
    for grid in grids.tolist():
        for i in range(len(grid) - down):
            for j in range(len(grid[0]) - right):
                pair = (grid[i][j], grid[i + down][j + right])
                if min(pair) >= 0:
                    found[pair] += 1
    return found


def pairs_of(rows):
    return Counter({(first, second): times for first, second, times in rows.tolist()})


@pytest.mark.parametrize("size", [1, 7, 20])
def test_pairs_are_counted_one_by_one_in_any_batches(size):
    grids = make_grids()
    measure = Cooccurrence(9)
    for batch in grids.split(size):
        measure.update(batch)
    report = measure.compute()
    assert pairs_of(report.horizontal) == count_pairs(grids, down=0, right=1)
    assert pairs_of(report.vertical) == count_pairs(grids, down=1, right=0)
    assert report.grids == 20
    times = report.horizontal[:, 2].tolist()
    assert times == sorted(times, reverse=True)


def test_large_codebooks_keep_only_what_occurs():
    measure = Cooccurrence(65536)
    measure.update(torch.tensor([[[65535, 0], [65535, 65534]]]))
    report = measure.compute()
    assert report.horizontal.tolist() == [[65535, 0, 1], [65535, 65534, 1]]
    assert sorted(report.vertical.tolist()) == [[0, 65534, 1], [65535, 65535, 1]]


@pytest.mark.parametrize("shape", [(0, 4, 4), (2, 1, 1)], ids=str)
def test_grids_without_neighbours(shape):
    measure = Cooccurrence(4)
    measure.update(torch.zeros(shape, dtype=torch.int64))
    report = measure.compute()
    assert report.horizontal.shape == report.vertical.shape == (0, 3)
    assert find_neighbours(report, code=0) == []


def test_reset_forgets():
    measure = Cooccurrence(9)
    measure.update(make_grids())
    measure.reset()
    assert measure.compute().horizontal.shape == (0, 3)
    assert measure.compute().grids == 0


def test_neighbours_are_on_all_four_sides():
    grids = make_grids()
    measure = Cooccurrence(9)
    measure.update(grids)
    pairs = count_pairs(grids, down=0, right=1) + count_pairs(grids, down=1, right=0)
    expected = Counter()
    for (first, second), times in pairs.items():
        if 4 in (first, second):
            expected[second if first == 4 else first] += times
    found = find_neighbours(measure.compute(), code=4, most=99)
    assert dict(found) == expected
    assert found == sorted(found, key=lambda pair: (-pair[1], pair[0]))
    assert find_neighbours(measure.compute(), code=4, most=2) == found[:2]


def make_point(error, *, tokens=(0, 0, 0, 1)):
    use, quality = CodebookUse(16), Psnr()
    use.update(torch.tensor(tokens))
    images = torch.zeros(2, 1, 4, 4)
    quality.update(images, images + error)
    return rate_point(use.compute(), quality.compute(), tokens_per_image=4, pixels_per_image=16)


def test_a_point_of_the_rate_distortion_plane():
    point = make_point(0.2)
    assert point.bits_per_pixel == 1.0
    entropy = -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25))
    assert point.entropy_bits_per_pixel == pytest.approx(entropy / 4, rel=1e-12)
    assert point.error == pytest.approx(0.01, rel=1e-6)  # 0.2 of a range of 2, squared
    assert point.psnr_of_mean == pytest.approx(20.0, abs=1e-5)
    assert (point.tokens_per_image, point.pixels_per_image, point.images) == (4, 16, 2)


def test_no_error_and_no_number_stay_what_they_are():
    assert make_point(0.0).error == 0.0
    assert math.isnan(make_point(math.nan).error)


@pytest.mark.bad_input
@pytest.mark.parametrize("index", [4, -2])
def test_indices_out_of_range_are_refused(index):
    measure = Cooccurrence(4)
    message = "indices must lie in [0, 4), or be -1 where none counts; got values from"
    with pytest.raises(ValueError, match=re.escape(message)):
        measure.update(torch.tensor([[[0, index]]]))
    assert measure.compute().grids == 0


@pytest.mark.bad_input
def test_a_picture_without_pixels_is_refused():
    quality = Psnr().compute()
    with pytest.raises(ValueError, match="pixels_per_image must be a whole number of at least 1"):
        rate_point(CodebookUse(4).compute(), quality, tokens_per_image=4, pixels_per_image=0)
