import math
import re

import pytest
import torch

from softvq.measures import CodebookUse, Cooccurrence, Psnr, Ssim
from softvq.measures.frechet import FrechetDistance
from softvq.measures.state import check_range, clamp_or_nan
from tests.measures import ranks


def assert_close_reports(found, expected):
    assert list(found) == list(expected)
    for name, value in expected.items():
        if name in ("horizontal", "vertical"):
            assert found[name] == value, name
        else:
            assert found[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name


@pytest.fixture(scope="module")
def whole():
    return ranks.report(ranks.measure(*ranks.make_data()))


def test_two_processes_measure_what_one_does(tmp_path, whole):
    answers = ranks.run(tmp_path)
    _, _, tokens = ranks.make_data()
    shares = [CodebookUse(16), CodebookUse(16)]
    for share, part in zip(shares, (tokens[:5], tokens[5:]), strict=True):
        share.update(part)
    nearest = [
        min(pair) for pair in zip(*(e.compute().dead_since.tolist() for e in shares), strict=True)
    ]
    for found, again, one_sided, since in answers:
        assert since[:11] == nearest[:11]  # the codes that occur
        assert since[11:] == [sum(whole["counts"])] * 5
        assert_close_reports(found, whole)
        assert_close_reports(again, whole)
        assert one_sided == pytest.approx(whole["distance"], rel=1e-9)


def test_merged_parts_are_the_whole(whole):
    images, made, tokens = ranks.make_data()
    first = ranks.measure(images[:1], made[:1], tokens[:5])
    second = ranks.measure(images[1:], made[1:], tokens[5:])
    copies = [each.over_processes() for each in second]
    before = ranks.report([*copies[:5], whole_of(second)])
    for one, other in zip(first, second, strict=True):
        one.merge(other)
    assert_close_reports(ranks.report(first), whole)
    assert_close_reports(ranks.report([*second[:5], whole_of(second)]), before)


def whole_of(measures):
    """A Frechet distance that has enough pictures on its own."""
    images, made, _ = ranks.make_data()
    distance = FrechetDistance(ranks.Means())
    distance.update(images, side="reference")
    distance.update(made, side="made")
    assert measures[5].reference.rows < 7
    return distance


def test_conditions_say_what_was_measured():
    measure = Psnr(low=0.0, high=1.0)
    images = torch.zeros(2, 1, 4, 5)
    measure.update(images, images)
    conditions = measure.compute().conditions
    assert conditions == (0.0, 1.0, "float32", "4 x 5", "none", "none", 2, "none")
    measure.update(images[:, :, :3], images[:, :, :3].double())
    assert measure.compute().conditions[2:4] == ("several", "several")
    other = Psnr(low=0.0, high=1.0)
    other.update(images.half(), images.half())
    fresh = Psnr(low=0.0, high=1.0)
    fresh.merge(other)
    assert fresh.compute().conditions[2:7] == ("float16", "4 x 5", "none", "none", 2)


def test_no_pictures_have_no_conditions():
    assert Psnr().compute().conditions == (-1.0, 1.0, "none", "none", "none", "none", 0, "none")


def test_a_measure_alone_is_its_own_whole():
    measure = CodebookUse(4)
    measure.update(torch.tensor([1, 2, 2]))
    same = measure.over_processes()
    measure.update(torch.tensor([0]))
    assert same.compute().counts.tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
def test_what_is_not_finite_is_nan_and_no_end_of_the_range(value):
    found = clamp_or_nan(torch.tensor([value, 3.0, -3.0]), low=-1.0, high=1.0)
    assert math.isnan(found[0])
    assert found[1:].tolist() == [1.0, -1.0]


def test_states_do_not_grow_with_the_pictures():
    images = torch.zeros(3, 1, 12, 12)
    for measure in (Psnr(), Ssim()):
        measure.update(images, images)
        sizes = {name: value.shape for name, value in measure._state.items()}
        for _ in range(5):
            measure.update(images, images)
        assert {name: value.shape for name, value in measure._state.items()} == sizes


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        (CodebookUse(4), CodebookUse(5), "other must be a CodebookUse of the same sizes; got"),
        (CodebookUse(4), Psnr(), "other must be a CodebookUse of the same sizes; got Psnr with"),
        (Psnr(), Ssim(), "other must be a Psnr of the same sizes; got Ssim with"),
        (Psnr(), Psnr(low=0.0), "other must have the range [-1, 1]; got [0, 1]."),
        (Cooccurrence(4), Cooccurrence(5), "other must be a Cooccurrence of 4 codes; got Cooccur"),
        (Cooccurrence(4), Psnr(), "other must be a Cooccurrence of 4 codes; got Psnr of no."),
    ],
    ids=["sizes", "kind", "statistics", "range", "codes", "no codes"],
)
def test_measures_of_other_things_do_not_merge(one, other, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        one.merge(other)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("value", "message"),
    [(2.0, "x must lie in [-1, 1]; got values from 2 to 2."), (math.nan, "from nan to nan.")],
)
def test_values_out_of_range_are_refused_with_their_ends(value, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        check_range("x", torch.full((2,), value), low=-1.0, high=1.0)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("pictures", "came"),
    [
        (torch.tensor([3, 200], dtype=torch.uint8), "torch.uint8 with values from 3 to 200."),
        (torch.tensor([True, False]), "torch.bool with values from False to True."),
        (torch.zeros(0, dtype=torch.int64), "torch.int64."),
        (torch.zeros(2, dtype=torch.complex64), "torch.complex64."),
    ],
    ids=["bytes", "bool", "none", "complex"],
)
def test_what_is_no_floating_point_is_refused_with_its_ends(pictures, came):
    message = f"x must be a floating-point tensor; got {came}"
    with pytest.raises(ValueError, match=re.escape(message)):
        check_range("x", pictures, low=-1.0, high=1.0)
