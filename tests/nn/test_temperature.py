import math

import pytest
import torch

from softvq.nn.schedule import TemperatureState
from softvq.nn.temperature import Temperature
from tests.contracts.quantizer import waves


def distances(rows, codes):
    return (rows.double()[:, None] - codes.double()).square().sum(-1)


def entropy(rows, codes, level):
    weights = torch.softmax(-distances(rows, codes) / level.double(), -1)
    return torch.special.entr(weights).sum(-1).mean().item()


def make_state(rows, **options):
    state = TemperatureState(Temperature(**options))
    largest = torch.linalg.eigvalsh(torch.cov(rows.T.double(), correction=0))[-1]
    state.observe_(rows, 2 * largest.float(), memory=0.0)
    return state


# What is asked for


def test_targets_walk_a_geometric_path_and_stay():
    path = Temperature(gradient=(4.0, 1.0), prototypes=0.5, anneal_steps=20, anneal_share=0.5)
    assert [path.targets(updates)[0] for updates in (0, 5, 10, 11, 10**6)] == [4, 2, 1, 1, 1]
    assert {path.targets(updates)[1] for updates in (0, 5, 50)} == {0.5}


def test_one_path_where_prototypes_have_none():
    assert Temperature(gradient=1.5, prototypes=None).targets(7) == [1.5]


# Solving


@pytest.mark.parametrize("target", [0.05, 0.5, 2.0])
def test_solved_temperature_meets_the_entropy(target):
    rows, codes = waves(400, 2), waves(64, 2, phase=1.0)
    state = make_state(rows, gradient=target, prototypes=None)
    state.solve_(rows, codes, updates=0)
    assert entropy(rows, codes, state.levels[0]) == pytest.approx(target, rel=0.02)


def test_target_is_held_under_half_of_the_most():
    rows, codes = waves(400, 2), waves(8, 2, phase=1.0)
    state = make_state(rows, gradient=50.0, prototypes=None)
    state.solve_(rows, codes, updates=0)
    assert entropy(rows, codes, state.levels[0]) == pytest.approx(0.5 * math.log(8), rel=0.02)


def test_critical_unit_is_a_share_of_the_critical_temperature():
    rows = waves(400, 2)
    state = make_state(rows, gradient=0.3, prototypes=0.1, unit="critical")
    state.solve_(rows, waves(8, 2), updates=0)
    expected = torch.tensor([0.3, 0.1]) * state.critical
    torch.testing.assert_close(state.levels, expected)


def test_variance_unit_is_a_share_of_the_total_variance():
    rows = waves(400, 2)
    state = make_state(rows, gradient=0.5, prototypes=0.02, unit="variance")
    state.solve_(rows, waves(8, 2), updates=0)
    total = rows.double().var(0, correction=0).sum().float()
    torch.testing.assert_close(state.levels, torch.tensor([0.5, 0.02]) * total)


def test_nearest_unit_is_a_share_of_the_distance_to_the_nearest_code():
    rows, codes = waves(400, 2), waves(8, 2, phase=1.0)
    state = make_state(rows, gradient=0.3, prototypes=0.1, unit="nearest")
    state.solve_(rows, codes, updates=0)
    spacing = distances(rows, codes).amin(-1).mean().float()
    torch.testing.assert_close(state.levels, torch.tensor([0.3, 0.1]) * spacing)


def test_nearest_unit_has_a_bound_where_every_row_is_a_code():
    rows = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, -2.0], [0.0, 2.0]])
    state = make_state(rows, gradient=0.3, prototypes=0.1, unit="nearest")
    state.solve_(rows, rows.clone(), updates=0)
    least = 1e-6 * state.critical.item()
    assert state.levels.tolist() == pytest.approx([least, least], rel=1e-6, abs=0)


def test_absolute_unit_is_the_number():
    state = make_state(waves(40, 2), gradient=0.3, prototypes=0.1, unit="absolute")
    state.solve_(waves(40, 2), waves(8, 2), updates=0)
    assert state.levels.tolist() == pytest.approx([0.3, 0.1])


def test_a_bound_that_is_hit_warns_once():
    """Equal codes share their rows whatever T is: no entropy under log K can be had."""
    rows, codes = waves(40, 2), torch.zeros(8, 2)
    state = make_state(rows, gradient=0.3, prototypes=None)
    with pytest.warns(UserWarning, match=r"hit a bound.*0\.3 nats.*2\.08 reached.*distinct_codes"):
        state.solve_(rows, codes, updates=0)
    state.solve_(rows, codes, updates=1)


def test_a_bound_holds_the_temperature():
    rows, codes = waves(40, 2), torch.zeros(8, 2)
    state = make_state(rows, gradient=0.3, prototypes=None)
    with pytest.warns(UserWarning, match="hit a bound"):
        state.solve_(rows, codes, updates=0)
    share = state.levels / state.critical
    assert 0.99e-6 < share.item() <= 1


@pytest.mark.parametrize(("saved", "expected"), [([2.0, 0.5], [0.5]), ([0.5], [0.5])])
def test_a_state_of_two_temperatures_gives_one_the_prototypes(saved, expected):
    state = TemperatureState(Temperature())
    state.load_state_dict({**state.state_dict(), "levels": torch.tensor(saved)})
    assert state.levels.tolist() == expected


def test_a_state_of_one_temperature_gives_it_to_both():
    state = TemperatureState(Temperature(gradient=2.5))
    state.load_state_dict({**state.state_dict(), "levels": torch.tensor([0.5])})
    assert state.levels.tolist() == [0.5, 0.5]


def test_without_data_the_spacing_of_the_codes_is_the_guess():
    codes = waves(8, 2)
    state = TemperatureState(Temperature())
    state.guess_(codes)
    apart = distances(codes, codes).fill_diagonal_(torch.inf).amin(-1).mean().float()
    torch.testing.assert_close(state.levels, apart.expand(1))


@pytest.mark.parametrize("unit", ["nats", "critical", "nearest", "absolute"])
@pytest.mark.parametrize("scale", [0.0, 1e-19, 1e18], ids=str)
@pytest.mark.filterwarnings("ignore:The temperature hit a bound:UserWarning")
def test_it_stays_positive_and_finite(unit, scale):
    rows = scale * waves(40, 2)
    state = make_state(rows, unit=unit)
    state.solve_(rows, scale * waves(8, 2, phase=1.0), updates=0)
    assert (state.levels > 0).all()
    assert state.levels.isfinite().all()


# Following the data


def test_scales_are_averaged_over_updates():
    state = TemperatureState(Temperature())
    for scale in (1.0, 2.0):
        rows = torch.tensor([[-scale], [scale]])
        state.observe_(rows, torch.tensor(2 * scale**2), memory=0.75)
    assert state.variance.item() == pytest.approx(0.75 * 1 + 0.25 * 4)
    assert state.critical.item() == pytest.approx(0.75 * 2 + 0.25 * 8)


def test_state_is_float32_in_any_model():
    state = make_state(waves(40, 2)).to(torch.bfloat16)
    held = state.state_dict()
    assert held.pop("warming").dtype == torch.uint8
    assert {each.dtype for each in held.values()} == {torch.float32}
    assert set(held) == {"levels", "noise", "critical", "variance"}


def test_a_state_of_before_there_was_a_warm_up_loads_and_does_not_warm_up():
    saved = TemperatureState(Temperature(warmup_share=0.0)).state_dict()
    del saved["warming"]
    state = TemperatureState(Temperature())
    assert state.warming
    state.load_state_dict(saved)
    assert not state.warming
    with pytest.raises(RuntimeError, match=r"Missing key.*levels"):
        TemperatureState(Temperature()).load_state_dict({})


# Bad input


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["gradient", "prototypes"])
@pytest.mark.parametrize(
    ("value", "match"),
    [
        (0.0, r"must be a finite number > 0; got 0\.0"),
        (-1.0, r"must be a finite number > 0; got -1\.0"),
        (math.nan, "must be .* got nan"),
        (math.inf, "must be .* got inf"),
        ((1.0, 0.0), r"must be .* got 0\.0"),
        ((1.0, 0.5, 0.1), r"must be a number or a pair \(start, end\); got \(1\.0, 0\.5, 0\.1\)"),
        ("2.5", "must be a finite number > 0; got '2.5'"),
        (True, "must be a finite number > 0; got True"),
    ],
    ids=["zero", "negative", "nan", "inf", "end", "three", "text", "bool"],
)
def test_bad_temperatures_are_refused(name, value, match):
    with pytest.raises(ValueError, match=rf"Temperature\.{name} {match}"):
        Temperature(**{name: value})


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"gradient": None, "prototypes": None}, r"Temperature\.gradient and .* are both None"),
        ({"anneal_steps": 0}, r"Temperature\.anneal_steps must be a whole number .* got 0"),
        ({"anneal_share": 0}, r"Temperature\.anneal_share must be .* got 0"),
        ({"anneal_share": 1.5}, r"Temperature\.anneal_share must be .* got 1\.5"),
        ({"unit": "nat"}, r"Temperature\.unit is 'nat'; valid are: nats.*Did you mean 'nats'"),
    ],
    ids=["none", "steps", "share-0", "share>1", "unit"],
)
def test_bad_schedules_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        Temperature(**options)
