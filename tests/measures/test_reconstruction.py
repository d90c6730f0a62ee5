import math
import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio

from softvq.measures import Psnr, psnr

RANGES = {"model": (-1.0, 1.0), "unit": (0.0, 1.0), "bytes": (0.0, 255.0)}


def measure(images, reconstructions, *, low=-1.0, high=1.0, cuts=()):
    """Report over the batches between ``cuts``."""
    psnr_of = Psnr(low=low, high=high)
    for begin, end in pairwise([0, *cuts, len(images)]):
        psnr_of.update(images[begin:end], reconstructions[begin:end])
    return psnr_of.compute()


def make_pictures(count=12, *, low=-1.0, high=1.0):
    """Pictures and reconstructions whose errors differ, some of them out of the range."""
    line = torch.arange(float(count * 3 * 8 * 7)).reshape(count, 3, 8, 7)
    images = 0.5 + 0.5 * torch.sin(line * 0.7)
    noise = 0.3 * torch.cos(line * 1.3) * torch.linspace(0.05, 1, count)[:, None, None, None]
    scale = high - low
    return low + scale * images, low + scale * (images + noise)


@pytest.mark.parametrize(
    ("low", "high", "error"), [(0.0, 1.0, 0.1), (-1.0, 1.0, 0.2)], ids=["unit", "model"]
)
def test_the_same_error_is_twenty_decibels_in_either_range(low, high, error):
    images = torch.full((2, 3, 4, 4), low)
    report = measure(images, images + error, low=low, high=high)
    assert report.mean_over_images == pytest.approx(20.0, abs=1e-5)
    assert report.of_mean == pytest.approx(20.0, abs=1e-5)


@pytest.mark.parametrize(
    ("error", "peak", "expected"), [(0.01, 1.0, 20.0), (0.04, 2.0, 20.0), (0.04, 1.0, 13.9794)]
)
def test_psnr_of_an_error(error, peak, expected):
    assert psnr(error, peak=peak) == pytest.approx(expected, abs=1e-4)


def test_no_error_is_infinite():
    images = torch.zeros(1, 1, 2, 2)
    assert measure(images, images)[:2] == (math.inf, math.inf)


def test_batches_weigh_by_their_images():
    """100 images of error 0.1 and 10 of 0.9: the mean is 0.1727, not 0.5."""
    images = torch.zeros(110, 1, 2, 2)
    errors = torch.cat([torch.full((100,), 0.1), torch.full((10,), 0.9)])
    reconstructions = images + errors.sqrt()[:, None, None, None]
    report = measure(images, reconstructions, cuts=[100])
    assert 4 / 10 ** (report.of_mean / 10) == pytest.approx(0.1727, abs=5e-5)
    expected = (100 * psnr(0.1, peak=2.0) + 10 * psnr(0.9, peak=2.0)) / 110
    assert report.mean_over_images == pytest.approx(expected, abs=1e-5)
    assert report.images == 110


@pytest.mark.parametrize(("low", "high"), RANGES.values(), ids=RANGES)
def test_it_is_skimages(low, high):
    images, reconstructions = make_pictures(low=low, high=high)
    clipped = reconstructions.double().clamp(low, high).numpy()
    exact = images.double().numpy()
    each = [
        peak_signal_noise_ratio(image, made, data_range=high - low)
        for image, made in zip(exact, clipped, strict=True)
    ]
    report = measure(images, reconstructions, low=low, high=high)
    assert report.mean_over_images == pytest.approx(np.mean(each), rel=1e-12)
    whole = peak_signal_noise_ratio(exact, clipped, data_range=high - low)
    assert report.of_mean == pytest.approx(whole, rel=1e-12)
    assert report.of_mean < report.mean_over_images


@pytest.mark.parametrize("cuts", [[6], [1, 2, 3], [11], list(range(1, 12))], ids=str)
def test_batches_do_not_matter(cuts):
    images, reconstructions = make_pictures()
    whole, parts = measure(images, reconstructions), measure(images, reconstructions, cuts=cuts)
    assert parts.mean_over_images == pytest.approx(whole.mean_over_images, rel=1e-13)
    assert parts.of_mean == pytest.approx(whole.of_mean, rel=1e-13)
    assert parts[2:4] == whole[2:4] == (12, 0)


def test_reconstructions_are_clamped_as_a_picture_would_be():
    images = torch.ones(1, 1, 2, 2)
    assert measure(images, images + 5).of_mean == math.inf


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_reconstructions_of_another_precision(dtype):
    images, reconstructions = make_pictures()
    rounded = reconstructions.to(dtype)
    assert measure(images, rounded)[:4] == measure(images, rounded.double())[:4]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
def test_a_reconstruction_that_is_not_finite_is_not_averaged_away(value):
    images, reconstructions = make_pictures()
    reconstructions[3, 0, 0, 0] = value
    reconstructions[7, 1] = value
    report = measure(images, reconstructions, cuts=[5])
    assert math.isnan(report.mean_over_images)
    assert math.isnan(report.of_mean)
    assert (report.images, report.not_finite) == (12, 2)


def test_nothing_is_nan():
    report = Psnr().compute()
    assert math.isnan(report.mean_over_images)
    assert math.isnan(report.of_mean)
    assert report[2:4] == (0, 0)


def test_an_empty_batch_changes_nothing():
    images, reconstructions = make_pictures()
    assert measure(images, reconstructions, cuts=[0, 12]) == measure(images, reconstructions)


def test_reset_forgets():
    images, reconstructions = make_pictures()
    measured = Psnr()
    measured.update(images, -images)
    measured.reset()
    measured.update(images, reconstructions)
    assert measured.compute() == measure(images, reconstructions)


def test_rounding_at_the_ends_of_the_range_passes():
    images = torch.full((1, 1, 2, 2), 1.0005)
    assert measure(images, images).images == 1


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("low", "high", "value", "message"),
    [
        (-1.0, 1.0, 255.0, "images must lie in [-1, 1]; got values from 255 to 255."),
        (0.0, 1.0, -1.0, "images must lie in [0, 1]; got values from -1 to -1."),
        (-1.0, 1.0, 1.002, "images must lie in [-1, 1]; got values from 1 to 1."),
        (-1.0, 1.0, math.nan, "images must lie in [-1, 1]; got values from nan to nan."),
        (-1.0, 1.0, math.inf, "images must lie in [-1, 1]; got values from inf to inf."),
    ],
)
def test_images_out_of_their_range_are_refused(low, high, value, message):
    images = torch.full((1, 1, 2, 2), value)
    with pytest.raises(ValueError, match=re.escape(message)):
        Psnr(low=low, high=high).update(images, images.clamp(low, high))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("images", "reconstructions", "message"),
    [
        (
            torch.zeros(2, 3, 4, 4),
            torch.zeros(2, 3, 4, 5),
            "reconstructions must have the images' shape (2, 3, 4, 4); got (2, 3, 4, 5).",
        ),
        (
            torch.zeros(2, 3, 4, 4),
            torch.zeros(1, 3, 4, 4),
            "reconstructions must have the images' shape (2, 3, 4, 4); got (1, 3, 4, 4).",
        ),
        (
            torch.zeros(1, 3, 4, 4, dtype=torch.uint8),
            torch.zeros(1, 3, 4, 4),
            "images must be a floating-point tensor; got torch.uint8 with values from 0 to 0.",
        ),
        (
            torch.zeros(1, 3, 4, 4),
            torch.zeros(1, 3, 4, 4, dtype=torch.uint8),
            "reconstructions must be a floating-point tensor; got torch.uint8 with values from 0",
        ),
    ],
    ids=["size", "batch", "bytes in", "bytes out"],
)
def test_what_cannot_be_compared_is_refused(images, reconstructions, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Psnr().update(images, reconstructions)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ({"low": 1.0, "high": 1.0}, "high must be a finite number > 1; got 1.0."),
        ({"low": 0.0, "high": -1.0}, "high must be a finite number > 0; got -1.0."),
        ({"low": math.nan}, "low must be a finite number; got nan."),
    ],
    ids=str,
)
def test_a_range_that_is_none_is_refused(ends, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Psnr(**ends)
