import math
import re

import numpy as np
import pytest
import scipy.linalg
import torch
from torchmetrics.image.fid import FrechetInceptionDistance

from softvq.measures.frechet import (
    Features,
    FeatureSums,
    FrechetDistance,
    frechet_distance,
)


class Means(Features):
    """Three features of a picture, and a record of what came."""

    name, net, dim, resize = "FD of means", "mean of each channel", 3, None

    def extract(self, images, *, low, high):
        return images.mean((2, 3))


def make_rows(count, dim, *, phase=0.0):
    line = torch.arange(float(count * dim)).double()
    return (torch.sin(line * 0.7 + phase) + 0.3 * torch.cos(line * line * 0.01)).reshape(count, dim)


def distance_by_scipy(one, other):
    one, other = one.numpy(), other.numpy()
    first, second = np.cov(one.T), np.cov(other.T)
    root = scipy.linalg.sqrtm(first @ second)
    apart = np.square(one.mean(0) - other.mean(0)).sum()
    return apart + np.trace(first + second - 2 * np.real(root))


def sums_of(rows, *, size=None):
    sums = FeatureSums(rows.shape[1])
    for batch in rows.split(size or len(rows)):
        sums.update(batch)
    return sums


def distance_of(one, other):
    (mean, covariance), (other_mean, other_covariance) = one.compute(), other.compute()
    return frechet_distance(
        mean, covariance, other_mean=other_mean, other_covariance=other_covariance
    )


@pytest.mark.parametrize(
    ("mean", "scale", "expected"),
    [((3.0, 4.0), 1.0, 25.0), ((0.0, 0.0), 1.0, 0.0), ((0.0, 0.0), 4.0, 2.0)],
    ids=["shift", "same", "wider"],
)
def test_of_two_normal_distributions(mean, scale, expected):
    found = frechet_distance(
        torch.zeros(2),
        torch.eye(2),
        other_mean=torch.tensor(mean),
        other_covariance=torch.eye(2) * scale,
    )
    assert found == pytest.approx(expected, abs=1e-12)


def test_it_is_scipys_matrix_root():
    one, other = make_rows(300, 7), make_rows(250, 7, phase=0.4) * 1.3
    found = distance_of(sums_of(one), sums_of(other))
    assert found == pytest.approx(distance_by_scipy(one, other), rel=1e-9)
    assert found == pytest.approx(distance_of(sums_of(other), sums_of(one)), rel=1e-9)


class TheirMeans(torch.nn.Module):
    """`Means` as torchmetrics takes a net of one's own."""

    num_features = 3

    def forward(self, images):
        return images.mean((2, 3))


def test_it_is_torchmetrics():
    images, made = (0.5 + 0.5 * make_pictures(phase=phase).clamp(-1, 1) for phase in (0.0, 1.0))
    theirs = FrechetInceptionDistance(feature=TheirMeans(), normalize=True).set_dtype(torch.float64)
    ours = FrechetDistance(Means(), low=0.0, high=1.0)
    for batch, other in zip(images.split(7), made.split(7), strict=True):
        theirs.update(batch, real=True)
        theirs.update(other, real=False)
        ours.update(batch, side="reference")
        ours.update(other, side="made")
    expected = theirs.compute().item()
    assert expected > 1e-3
    assert ours.compute().distance == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("size", [1, 7, 299])
def test_batches_do_not_matter(size):
    rows = make_rows(300, 5) + 100  # far from 0, where sums of squares lose digits
    mean, covariance = sums_of(rows, size=size).compute()
    torch.testing.assert_close(mean, rows.mean(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(covariance, torch.cov(rows.T), rtol=1e-8, atol=1e-8)


def test_a_set_has_no_distance_from_itself():
    sums = sums_of(make_rows(100, 6))
    assert distance_of(sums, sums) == pytest.approx(0.0, abs=1e-9)


def make_pictures(count=40, *, phase=0.0):
    line = torch.arange(float(count * 3 * 4 * 4))
    tone = 0.2 * torch.sin(torch.arange(float(count * 3)) * (1.7 + phase)).reshape(count, 3, 1, 1)
    return 0.7 * torch.sin(line * 0.37 + phase).reshape(count, 3, 4, 4) + tone


def measure_of(images, made, *, size=7):
    measure = FrechetDistance(Means())
    for side, pictures in (("reference", images), ("made", made)):
        for batch in pictures.split(size):
            measure.update(batch, side=side)
    return measure


def test_it_is_of_all_pictures_and_says_so():
    images, made = make_pictures(), make_pictures(30, phase=1.0)
    report = measure_of(images, made).compute()
    expected = distance_by_scipy(*(each.double().mean((2, 3)) for each in (images, made)))
    assert report.distance == pytest.approx(expected, rel=1e-4)
    assert (report.name, report.references, report.made) == ("FD of means", 40, 30)
    assert report.conditions.net == "mean of each channel"
    assert report.conditions.images == 30


def test_another_reference_can_be_held_against_what_was_made():
    images, made = make_pictures(), make_pictures(30, phase=1.0)
    measure, other = measure_of(images, made), measure_of(make_pictures(phase=2.0), made)
    expected = other.compute()
    assert measure.compute(against=other.reference) == expected
    assert measure.compute().distance != pytest.approx(expected.distance, rel=1e-3)


def test_a_known_reference_is_not_measured_again():
    images, made = make_pictures(), make_pictures(phase=1.0)
    whole = measure_of(images, made)
    again = FrechetDistance(Means(), reference=whole.reference)
    again.update(made, side="made")
    assert again.compute().distance == pytest.approx(whole.compute().distance, abs=1e-9)
    again.reset()
    again.update(images, side="made")
    assert again.compute().distance == pytest.approx(0.0, abs=1e-9)
    assert whole.reference.rows == 40


def test_a_picture_that_is_not_finite_is_counted_and_shown():
    images, made = make_pictures(), make_pictures(phase=1.0)
    made[3, 0, 0, 0] = math.inf
    report = measure_of(images, made).compute()
    assert math.isnan(report.distance)
    assert report.not_finite == 1


def test_made_pictures_are_clamped():
    images, made = make_pictures(), make_pictures(phase=1.0) * 3
    clamped = measure_of(images, made.clamp(-1, 1)).compute().distance
    assert measure_of(images, made).compute().distance == pytest.approx(clamped, rel=1e-9)


@pytest.mark.bad_input
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_fewer_pictures_than_features_are_refused(rows):
    measure = FrechetDistance(Means())
    measure.update(make_pictures(), side="reference")
    measure.update(make_pictures()[:rows], side="made")
    message = (
        f"more pictures than they have dimensions, 3, for a covariance of full rank; got {rows}"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        measure.compute()


@pytest.mark.bad_input
def test_what_does_not_fit_is_refused():
    measure = FrechetDistance(Means())
    with pytest.raises(ValueError, match="side is 'fake'; valid are: reference, made"):
        measure.update(make_pictures(), side="fake")
    with pytest.raises(ValueError, match=r"images must lie in \[-1, 1\]; got values from 5 to 5"):
        measure.update(torch.full((1, 3, 4, 4), 5.0), side="reference")
    for side in ("reference", "made"):
        with pytest.raises(ValueError, match=r"got torch.uint8 with values from 7 to 7"):
            measure.update(torch.full((1, 3, 4, 4), 7, dtype=torch.uint8), side=side)
    with pytest.raises(ValueError, match="reference must be of 3 features; got 4 of them"):
        FrechetDistance(Means(), reference=FeatureSums(4))
    with pytest.raises(ValueError, match=r"features must have 4 columns; got shape \(2, 3\)"):
        FeatureSums(4).update(torch.zeros(2, 3))


@pytest.mark.bad_input
def test_distances_of_other_nets_do_not_merge():
    class Others(Means):
        name = "another"

    with pytest.raises(ValueError, match=r"other must be of .'FD of means', None., name"):
        FrechetDistance(Means()).merge(FrechetDistance(Others()))
