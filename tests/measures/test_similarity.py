import math
import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from skimage.metrics import structural_similarity
from torchmetrics.functional.image import structural_similarity_index_measure

from softvq.measures import MsSsim, Ssim
from softvq.measures.similarity import SCALE_POWERS, similarity_terms

RANGES = {"model": (-1.0, 1.0), "unit": (0.0, 1.0), "bytes": (0.0, 255.0)}


def make_pictures(count=6, *, height=32, width=29, channels=3):
    """Pictures and reconstructions in [0, 1] whose errors differ."""
    line = torch.arange(float(count * channels * height * width))
    line = line.reshape(count, channels, height, width)
    images = 0.5 + 0.4 * torch.sin(line * 0.07) * torch.cos(line * 0.0013)
    noise = 0.3 * torch.cos(line * 1.3) * torch.linspace(0.05, 1, count)[:, None, None, None]
    return images, (images + noise).clamp(0, 1)


def report_of(kind, images, made, *, low=0.0, high=1.0, cuts=()):
    measure = kind(low=low, high=high)
    for begin, end in pairwise([0, *cuts, len(images)]):
        measure.update(images[begin:end], made[begin:end])
    return measure.compute()


def similarities(images, made):
    return [
        structural_similarity(
            one.double().movedim(0, -1).numpy(),
            other.double().movedim(0, -1).numpy(),
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=1.0,
            channel_axis=-1,
        )
        for one, other in zip(images, made, strict=True)
    ]


@pytest.mark.parametrize("channels", [1, 3])
def test_it_is_scikit_images(channels):
    images, made = make_pictures(channels=channels)
    each = similarities(images, made)
    found = similarity_terms(images, made).similarity
    assert found.tolist() == pytest.approx(each, rel=1e-9)
    assert report_of(Ssim, images, made).mean_over_images == pytest.approx(np.mean(each), rel=1e-9)


def torchmetrics_terms(images, made):
    """torchmetrics' values where its window lies on the picture: by itself it takes all places."""
    _, full = structural_similarity_index_measure(
        made.double(),
        images.double(),
        data_range=1.0,
        reduction="none",
        return_full_image=True,
    )
    _, structure = structural_similarity_index_measure(
        made.double(),
        images.double(),
        data_range=1.0,
        reduction="none",
        return_contrast_sensitivity=True,
    )
    inner = full[..., 5:-5, 5:-5] if full.shape[-1] == images.shape[-1] else full
    return inner.flatten(1).mean(1), structure


def test_it_is_torchmetrics():
    images, made = make_pictures()
    similarity, structure = torchmetrics_terms(images, made)
    found = similarity_terms(images, made)
    assert found.similarity.tolist() == pytest.approx(similarity.tolist(), abs=1e-4)
    assert found.structure.tolist() == pytest.approx(structure.tolist(), abs=1e-4)


def test_multi_scale_is_the_product_over_halvings():
    images, made = make_pictures(2, height=177, width=176, channels=1)
    expected = torch.ones(2).double()
    one, other = images.double(), made.double()
    for scale, power in enumerate(SCALE_POWERS):
        similarity, structure = torchmetrics_terms(one, other)
        expected *= (similarity if scale == 4 else structure).clamp_min(0) ** power
        one, other = (torch.nn.functional.avg_pool2d(each, 2) for each in (one, other))
    found = report_of(MsSsim, images, made)
    assert found.mean_over_images == pytest.approx(expected.mean().item(), abs=1e-4)
    assert found.images == 2
    assert sum(SCALE_POWERS) == pytest.approx(1.0, abs=2e-4)


@pytest.mark.parametrize(("low", "high"), RANGES.values(), ids=RANGES)
def test_the_declared_range_does_not_matter(low, high):
    images, made = (low + (high - low) * each.double() for each in make_pictures())
    found = report_of(Ssim, images, made, low=low, high=high)
    expected = report_of(Ssim, *make_pictures()).mean_over_images
    assert found.mean_over_images == pytest.approx(expected, rel=1e-6)
    assert found.conditions[:2] == (low, high)


@pytest.mark.parametrize("cuts", [[3], [1, 2], [5], [0]], ids=str)
def test_batches_do_not_matter(cuts):
    images, made = make_pictures()
    whole, parts = report_of(Ssim, images, made), report_of(Ssim, images, made, cuts=cuts)
    assert parts.mean_over_images == pytest.approx(whole.mean_over_images, rel=1e-13)
    assert parts[1:] == whole[1:]


@pytest.mark.parametrize(("kind", "size"), [(Ssim, 11), (MsSsim, 176)])
def test_equal_pictures_have_one(kind, size):
    images, _ = make_pictures(1, height=size, width=size)
    assert report_of(kind, images, images).mean_over_images == pytest.approx(1.0, abs=1e-12)


def test_swapping_the_two_changes_nothing():
    images, made = make_pictures()
    there = similarity_terms(images, made).similarity
    back = similarity_terms(made, images).similarity
    assert there.tolist() == pytest.approx(back.tolist(), rel=1e-12)


def test_inverted_structure_is_zero_at_many_scales():
    images, _ = make_pictures(1, height=176, width=176)
    assert report_of(MsSsim, images, 1 - images).mean_over_images == 0.0


def test_reconstructions_are_clamped():
    images, made = make_pictures()
    wild = torch.where(made > 0.7, made + 5, made)
    expected = report_of(Ssim, images, wild.clamp(0, 1))
    assert report_of(Ssim, images, wild) == expected


@pytest.mark.parametrize("value", [math.nan, math.inf], ids=str)
def test_a_reconstruction_that_is_not_finite_is_counted_and_shown(value):
    images, made = make_pictures()
    made[2, 0, 15, 15] = value
    found = report_of(Ssim, images, made, cuts=[4])
    assert math.isnan(found.mean_over_images)
    assert (found.images, found.not_finite) == (6, 1)


def test_a_bad_corner_is_seen_too():
    """The window of the valid places covers every pixel."""
    images, made = make_pictures()
    made[2, 0, 0, 0] = math.nan
    assert report_of(Ssim, images, made).not_finite == 1


@pytest.mark.parametrize("kind", [Ssim, MsSsim])
def test_nothing_is_nan(kind):
    found = kind().compute()
    assert math.isnan(found.mean_over_images)
    assert found[1:3] == (0, 0)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("kind", "shape", "message"),
    [
        (Ssim, (1, 3, 10, 32), "images must have sides of at least 11 pixels"),
        (MsSsim, (1, 3, 175, 200), "at least 176 pixels for MS-SSIM, whose fifth scale halves"),
        (MsSsim, (1, 3, 32, 32), "got 32 x 32. Measure SSIM instead."),
    ],
)
def test_pictures_too_small_are_refused(kind, shape, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        kind().update(torch.zeros(shape), torch.zeros(shape))


@pytest.mark.bad_input
def test_pictures_out_of_range_are_refused_with_their_ends():
    message = "images must lie in [-1, 1]; got values from 7 to 7."
    with pytest.raises(ValueError, match=re.escape(message)):
        Ssim().update(torch.full((1, 1, 16, 16), 7.0), torch.zeros(1, 1, 16, 16))
