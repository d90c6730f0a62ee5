import math

import pytest
import torch

from softvq.functional import solve_temperature
from softvq.functional.distances import squared_distances
from softvq.functional.schedules import geometric_path, nearest_spacing
from tests import oracles
from tests.contracts.backend import draw

WIDE = {"start": 1.0, "least": 1e-30, "most": 1e30}


def distances(num_codes, *, num_rows=24, dim=6, scale=1.0):
    z, codebook = draw(num_rows, dim, seed=1), draw(num_codes, dim, seed=2)
    return (scale**2 * squared_distances(z, codebook)).float()


def mean_entropy(given, temperature):
    rows = given[:6].double().numpy()
    return sum(oracles.entropy(oracles.boltzmann(row, temperature)[0]) for row in rows) / len(rows)


class TestSolveTemperature:
    @pytest.mark.parametrize("num_codes", [2, 3, 16, 512, 4096])
    @pytest.mark.parametrize("scale", [1e-6, 1e-2, 1.0, 1e3, 1e6])
    @pytest.mark.parametrize("share", [0.02, 0.2, 0.5])
    def test_the_target_is_met_at_every_scale(self, num_codes, scale, share):
        given = distances(num_codes, num_rows=6, scale=scale)
        target = share * math.log(num_codes)
        solved = solve_temperature(given, target=target, **WIDE)
        assert not solved.at_bound
        assert math.isclose(solved.entropy, target, rel_tol=0.0101)
        assert math.isclose(mean_entropy(given, solved.temperature), target, rel_tol=0.011)

    @pytest.mark.parametrize("start", [1e-30, 1e-3, 0.7, 1e3, 1e30])
    def test_the_first_guess_does_not_matter(self, start):
        solved = solve_temperature(
            distances(64), target=1.0, start=start, least=1e-30, most=1e30, tolerance=1e-5
        )
        best = solve_temperature(distances(64), target=1.0, **WIDE, tolerance=1e-5)
        assert math.isclose(solved.temperature, best.temperature, rel_tol=1e-4)

    def test_temperature_scales_as_a_squared_distance(self):
        one = solve_temperature(distances(64), target=1.0, **WIDE, tolerance=1e-5)
        ten = solve_temperature(distances(64, scale=10.0), target=1.0, **WIDE, tolerance=1e-5)
        assert math.isclose(ten.temperature, 100 * one.temperature, rel_tol=1e-4)

    @pytest.mark.parametrize("num_codes", [2, 64])
    def test_a_target_too_high_is_held_at_half_of_all(self, num_codes):
        solved = solve_temperature(distances(num_codes), target=50.0, **WIDE)
        assert not solved.at_bound
        assert math.isclose(solved.entropy, 0.5 * math.log(num_codes), rel_tol=0.0101)

    @pytest.mark.parametrize(
        ("least", "most", "temperature"), [(1e3, 1e6, 1e3), (1e-9, 1e-6, 1e-6)]
    )
    def test_a_bound_that_is_hit_is_told(self, least, most, temperature):
        solved = solve_temperature(distances(64), target=1.0, start=1.0, least=least, most=most)
        assert solved.at_bound
        assert math.isclose(solved.temperature, temperature, rel_tol=1e-3)

    def test_merged_codes_have_no_low_entropy(self):
        solved = solve_temperature(torch.ones(5, 8), target=0.5, start=1.0, least=1e-3, most=1e3)
        assert solved.at_bound
        assert math.isclose(solved.temperature, 1e-3, rel_tol=1e-3)
        assert math.isclose(solved.entropy, math.log(8), rel_tol=1e-6)

    @pytest.mark.parametrize("shape", [(5, 1), (0, 4)], ids=str)
    @pytest.mark.parametrize(("start", "expected"), [(0.5, 0.5), (1e-9, 0.1), (99.0, 2.0)])
    def test_without_a_choice_the_guess_stays_within_its_bounds(self, shape, start, expected):
        solved = solve_temperature(torch.ones(shape), target=1.0, start=start, least=0.1, most=2.0)
        assert solved == (expected, 0.0, False)

    @pytest.mark.bad_input
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"target": 0.0}, r"target must be a finite number > 0; got 0\.0"),
            ({"target": float("nan")}, "target must be.*got nan"),
            ({"least": 0.0}, "least must be a finite number > 0"),
            ({"least": 2.0, "most": 1.0}, r"most must be a finite number >= 2; got 1\.0"),
        ],
        ids=str,
    )
    def test_bad_arguments(self, change, message):
        with pytest.raises(ValueError, match=message):
            solve_temperature(torch.ones(2, 2), **{"target": 1.0, **WIDE, **change})


class TestGeometricPath:
    @pytest.mark.parametrize(
        ("position", "value"),
        [(-1.0, 4.0), (0.0, 4.0), (0.25, 2.8284271247461903), (0.5, 2.0), (1.0, 1.0), (7.0, 1.0)],
    )
    def test_known_values(self, position, value):
        assert math.isclose(geometric_path(4.0, 1.0, position=position), value, rel_tol=1e-15)

    @pytest.mark.parametrize("position", [1.0, 1.0000001, 1e9])
    def test_past_the_end_it_is_the_end_exactly(self, position):
        assert geometric_path(2.5, 0.1, position=position) == 0.1


class TestNearestSpacing:
    def test_the_mean_of_the_least(self):
        given = distances(7)
        expected = given.min(-1).values.double().mean().item()
        assert math.isclose(nearest_spacing(given), expected, rel_tol=1e-6)

    def test_no_rows(self):
        assert nearest_spacing(torch.ones(0, 3)) == 0.0
