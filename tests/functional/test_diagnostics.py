import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softvq.functional.diagnostics import (
    critical_temperature,
    distinct_codes,
    effective_codes,
    entropy_at,
    perplexity,
    separation,
    told_apart,
)
from softvq.functional.distances import squared_distances
from softvq.functional.schedules import solve_temperature
from softvq.functional.start import kmeans
from tests import oracles
from tests.contracts.backend import assert_matches, draw, problem
from tests.tolerances import SAME_FLOAT32

ONE = torch.tensor(1.0)


class TestPerplexity:
    @pytest.mark.parametrize(
        "counts",
        [[6, 2, 0], [5], [1, 1, 1, 1], [0, 0, 9], [0, 0], [0.3, 0.2, 0.5], [70000, 70000]],
        ids=str,
    )
    def test_the_oracles(self, counts):
        result = perplexity(torch.tensor(counts))
        assert result.dtype == torch.float32
        assert_matches(result, oracles.perplexity(np.array(counts)), rtol=1e-6, atol=0)

    def test_counts_past_the_whole_numbers_of_float32(self):
        assert_matches(perplexity(torch.tensor([2**25 + 1, 2**25 - 1])), 2.0, rtol=1e-7, atol=0)


class TestSeparation:
    @pytest.mark.parametrize("shape", [(1, 3), (2, 1), (9, 4)], ids=str)
    def test_the_oracles(self, shape):
        codebook = draw(*shape)
        result = separation(codebook, torch.tensor(2.5, dtype=torch.float64))
        assert_matches(result, oracles.separation(codebook.numpy(), 2.5), **SAME_FLOAT32)

    def test_no_variance_is_no_division_by_zero(self):
        assert separation(torch.ones(3, 2), torch.tensor(0.0)).item() == 0


class TestDistinctCodes:
    @given(st.integers(1, 24), st.integers(1, 5), st.integers(0, 30), st.integers(0, 2**20))
    def test_planted_duplicates_are_found_by_brute_force_too(self, num, dim, copies, seed):
        generator = torch.Generator().manual_seed(seed)
        codebook = torch.randn(num, dim, generator=generator)
        chosen = torch.randint(num, (copies,), generator=generator)
        tiny = 1e-5 * torch.randn(copies, dim, generator=generator)
        codebook = torch.cat([codebook, codebook[chosen] + tiny])
        codebook = codebook[torch.randperm(len(codebook), generator=generator)]
        # A radius far from both the distances planted and those of chance.
        expected = oracles.distinct_codes(codebook.double().numpy(), 1e-3)
        assert distinct_codes(codebook, ONE).item() == expected

    @pytest.mark.parametrize(
        ("codes", "expected"),
        [
            ([[1.0, 2.0]], 1),
            ([[1.0, 2.0]] * 5, 1),
            ([[0.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 1.0]], 2),
            ([[0.0, 0.0], [9e-4, 0.0], [0.0, 1.0]], 2),
            ([[0.0, 0.0], [1.1e-3, 0.0], [0.0, 1.0]], 3),
            # Alike on the widest axis, apart on another.
            ([[0.0, 0.0], [0.0, 0.01], [5.0, 0.0], [5.0, 0.01]], 4),
            # Within the radius on each axis, and not over all of them.
            ([[0.0, 0.0, 0.0], [9e-4, 9e-4, 9e-4]], 2),
        ],
        ids=["one code", "all equal", "two pairs", "inside", "outside", "other axis", "diagonal"],
    )
    def test_known_codebooks(self, codes, expected):
        assert distinct_codes(torch.tensor(codes), ONE).item() == expected

    @pytest.mark.parametrize(("variance", "expected"), [(0.0, 3), (1.0, 3), (1e6, 1)])
    def test_the_radius_follows_the_data(self, variance, expected):
        codebook = torch.tensor([[0.0], [0.4], [0.4], [0.8]])
        assert distinct_codes(codebook, torch.tensor(variance)).item() == expected

    def test_an_offset_does_not_merge_codes(self):
        codebook = 1e4 + 0.5 * torch.arange(64.0)[:, None].expand(64, 4)
        assert distinct_codes(codebook, ONE).item() == 64

    def test_a_collapsed_codebook_costs_no_square_of_its_size(self):
        start = time.perf_counter()
        assert distinct_codes(torch.ones(16384, 8), ONE).item() == 1
        assert time.perf_counter() - start < 10  # pairs took minutes

    def test_it_is_a_whole_number_without_gradient(self):
        result = distinct_codes(draw(5, 2).requires_grad_(), ONE)
        assert (result.dtype, result.shape, result.requires_grad) == (torch.int64, (), False)


class TestToldApart:
    @pytest.mark.parametrize(("offset", "expected"), [(0.99, 1), (1.01, 2)], ids=["in", "out"])
    def test_the_radius_is_the_root_of_half_of_t(self, offset, expected):
        codebook = torch.tensor([[0.0, 0.0], [offset * (0.5 * 2.5) ** 0.5, 0.0]])
        assert told_apart(codebook, torch.tensor(2.5)).item() == expected

    @given(st.integers(1, 24), st.integers(1, 3), st.floats(1e-3, 100), st.integers(0, 2**20))
    def test_two_groups_far_from_each_other(self, num, dim, temperature, seed):
        generator = torch.Generator().manual_seed(seed)
        near = 1e-3 * temperature**0.5 * torch.rand(num, dim, generator=generator)
        codebook = torch.cat([near, near + 10 * temperature**0.5])
        assert told_apart(codebook, torch.tensor(temperature)).item() == 2

    @pytest.mark.parametrize("dim", [1, 2, 64])
    @pytest.mark.parametrize("entropy", [0.1, 0.5])
    def test_codes_placed_by_k_means_are_all_told_apart(self, dim, entropy):
        """In few features as in many, though their spacing differs by a factor of thirty."""
        generator = torch.Generator().manual_seed(dim)
        rows = torch.randn(2000, dim, generator=generator)
        codebook = kmeans(rows, 32, generator=generator)
        distances = squared_distances(rows, codebook)
        critical = critical_temperature(rows).item()
        solved = solve_temperature(
            distances, target=entropy, start=critical, least=1e-6 * critical, most=critical
        )
        assert told_apart(codebook, torch.tensor(solved.temperature)).item() == 32
        merged = codebook.mean(0) + 0.01 * (codebook - codebook.mean(0))
        solved = solve_temperature(
            squared_distances(rows, merged),
            target=entropy,
            start=critical,
            least=1e-6 * critical,
            most=critical,
        )
        # T has followed them down, so that the entropy is what it was; and they are found out.
        assert solved.entropy == pytest.approx(entropy, rel=0.1)
        assert told_apart(merged, torch.tensor(solved.temperature)).item() < 0.9 * 32


class TestCriticalTemperature:
    @pytest.mark.parametrize(("gradient", "factor"), [("fixed", 2), ("full", 4)])
    @pytest.mark.parametrize("shape", [(2, 1), (50, 6), (3, 7)], ids=str)
    @pytest.mark.parametrize("offset", [0.0, 1e4])
    def test_it_is_a_multiple_of_the_largest_variance(self, gradient, factor, shape, offset):
        z = draw(*shape) * torch.linspace(1, 3, shape[1]) + offset
        result = critical_temperature(z, assignment_grad=gradient)
        expected = factor * oracles.largest_variance(z.numpy())
        assert_matches(result, expected, rtol=1e-6, atol=0)

    @pytest.mark.parametrize("num_rows", [0, 1])
    def test_too_few_rows_have_no_variance(self, num_rows):
        assert critical_temperature(torch.ones(num_rows, 3)).item() == 0

    @pytest.mark.bad_input
    def test_an_unknown_gradient_is_refused(self):
        with pytest.raises(ValueError, match=r"assignment_grad is 'fix'; valid are: fixed, full.*"):
            critical_temperature(torch.ones(2, 3), assignment_grad="fix")


class TestEntropyAt:
    @pytest.mark.parametrize("temperature", [0.01, 0.5, 3.0, 1e3])
    def test_entropy_and_slope_are_the_oracles(self, temperature):
        z, codebook = problem(6, 9, 3)
        distances = squared_distances(z, codebook)
        entropy, slope = entropy_at(distances, temperature)
        rows = oracles.distances(z.numpy(), codebook.numpy())
        expected = oracles.assign(z.numpy(), codebook.numpy(), temperature).entropy.mean()
        slopes = [oracles.entropy_slope(row, temperature) for row in rows]
        assert math.isclose(entropy, expected, rel_tol=1e-9, abs_tol=1e-12)
        assert math.isclose(slope, sum(slopes) / len(slopes), rel_tol=1e-9, abs_tol=1e-12)

    @pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e30])
    def test_the_ends_are_none_and_all(self, temperature):
        distances = squared_distances(*problem(6, 9, 3)).float()
        entropy, slope = entropy_at(distances, temperature)
        expected = 0.0 if temperature < 1 else math.log(9)
        assert math.isclose(entropy, expected, rel_tol=1e-6, abs_tol=1e-6)
        assert math.isclose(slope, 0.0, abs_tol=1e-6)

    def test_the_distances_are_left_as_they_were(self):
        distances = squared_distances(*problem(6, 9, 3))
        before = distances.clone()
        entropy_at(distances, 0.5)
        assert torch.equal(distances, before)


def test_effective_codes():
    assert math.isclose(effective_codes(math.log(8)), 8.0)
