import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck
from torch.testing import assert_close

from softvq.functional import soft_assign, soft_assign_and_use
from softvq.functional.losses import (
    commitment_loss,
    distortion_loss,
    free_energy_loss,
    mean_of_rows,
    orthogonality_loss,
    use_entropy,
)
from tests import oracles
from tests.contracts.backend import assert_matches, leaf, problem
from tests.tolerances import EXACT, ORACLE_FLOAT64, SAME_FLOAT64

MASK = torch.tensor([True, False, True, True, False])
NAN = float("nan")


class TestMeanOfRows:
    def test_all_rows(self):
        assert mean_of_rows(torch.tensor([[1.0, 2.0], [3.0, 6.0]])).item() == 3.0

    @pytest.mark.parametrize("filler", [NAN, float("inf"), 1e30])
    def test_dropped_rows_count_nowhere(self, filler):
        values = leaf(torch.tensor([1.0, filler, 3.0, 5.0, filler]))
        mean = mean_of_rows(values, MASK)
        mean.backward()
        assert mean.item() == 3.0
        assert_close(values.grad, MASK / 3)

    @pytest.mark.parametrize(
        ("values", "mask"),
        [(torch.zeros(0), None), (torch.full((5,), NAN), torch.zeros(5, dtype=torch.bool))],
        ids=["none", "all dropped"],
    )
    def test_no_row_gives_zero(self, values, mask):
        values = leaf(values)
        mean = mean_of_rows(values, mask)
        mean.backward()
        assert mean.item() == 0
        assert_close(values.grad, torch.zeros_like(values))


class TestFreeEnergyLoss:
    @pytest.mark.parametrize("beta", [0.0, 0.08, 1.0])
    @pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
    def test_the_value_is_the_sum_of_both_terms(self, beta, mask):
        z, codebook = problem(5, 4, 3)
        codes = soft_assign(z, codebook, temperature=0.5, mask=mask)
        loss = free_energy_loss(z, codes, beta=beta, mask=mask)
        energy = oracles.assign(z.numpy(), codebook.numpy(), 0.5).free_energy
        kept = energy if mask is None else energy[mask.numpy()]
        assert_matches(loss, (1 + beta) * kept.mean(), **ORACLE_FLOAT64)

    def test_the_gradients_are_those_of_two_terms_with_stopped_gradients(self):
        z, codebook = (leaf(part) for part in problem(5, 4, 3))
        codes = soft_assign(z, codebook, temperature=0.5)
        ours = torch.autograd.grad(free_energy_loss(z, codes, beta=0.25), (z, codebook))
        pull = soft_assign(z.detach(), codebook, temperature=0.5).free_energy.mean()
        commit = soft_assign(z, codebook.detach(), temperature=0.5).free_energy.mean()
        theirs = torch.autograd.grad(pull + 0.25 * commit, (z, codebook))
        assert_close(ours, theirs, **SAME_FLOAT64)

    def test_nothing_of_low_precision_overflows(self):
        z = torch.full((1, 64), 303.0, dtype=torch.float16, requires_grad=True)
        codebook = (300 + torch.arange(8.0))[:, None].expand(8, 64).half()
        codes = soft_assign(z, codebook, temperature=1.0)
        loss = free_energy_loss(z, codes, beta=1.0)
        loss.backward()
        assert loss.dtype == torch.float32
        assert_matches(loss, 0.0, rtol=0, atol=1e-4)
        assert torch.isfinite(z.grad).all()


class TestDistortionLoss:
    @pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
    def test_the_value_is_the_oracles(self, mask):
        z, codebook = problem(5, 4, 3)
        loss = distortion_loss(z, soft_assign(z, codebook, temperature=0.5, mask=mask), mask=mask)
        values = oracles.assign(z.numpy(), codebook.numpy(), 0.5).distortion
        kept = values if mask is None else values[mask.numpy()]
        assert_matches(loss, kept.mean(), **ORACLE_FLOAT64)

    def test_a_code_farther_than_distortion_and_temperature_is_pushed_away(self):
        z, codebook = torch.zeros(1, 1), leaf(torch.tensor([[1.0], [2.0]]))
        distortion_loss(z, soft_assign(z, codebook, temperature=0.5)).backward()
        assert codebook.grad[0] > 0  # descent brings it to the row
        assert codebook.grad[1] < 0  # and sends this one off


class TestUseEntropy:
    @pytest.mark.parametrize(
        ("use", "value"),
        [([0.5, 0.5], math.log(2)), ([1.0, 0.0], 0.0), ([0.25, 0.75], 0.5623351446188083)],
        ids=str,
    )
    def test_known_values(self, use, value):
        assert_matches(use_entropy(torch.tensor(use, dtype=torch.float64)), value, **SAME_FLOAT64)

    def test_a_code_without_use_has_a_finite_gradient(self):
        use = leaf(torch.tensor([1.0, 0.0]))
        use_entropy(use).backward()
        assert torch.isfinite(use.grad).all()

    @pytest.mark.parametrize("backend", ["reference", "chunked"])
    def test_gradcheck_through_the_assignment(self, backend):
        def function(z, codebook):
            _, use = soft_assign_and_use(z, codebook, temperature=0.5, backend=backend)
            return use_entropy(use)

        assert gradcheck(function, tuple(leaf(part) for part in problem(3, 4, 2)))


class TestCommitmentLoss:
    def test_the_weight_is_on_the_rows(self):
        z, code = leaf(torch.tensor([[1.0, 0.0]])), leaf(torch.tensor([[0.0, 0.0]]))
        loss = commitment_loss(z, code, commitment=0.25)
        loss.backward()
        assert loss.item() == 1.25 / 2
        assert z.grad.tolist() == [[0.25, 0.0]]
        assert code.grad.tolist() == [[-1.0, 0.0]]

    def test_a_codebook_that_learns_otherwise_gets_nothing(self):
        z, code = leaf(torch.tensor([[1.0]])), leaf(torch.tensor([[0.0]]))
        loss = commitment_loss(z, code, commitment=0.25, learn=False)
        loss.backward()
        assert loss.item() == 0.25
        assert code.grad is None

    @pytest.mark.parametrize("filler", [1e6, -7.0, NAN, 1e30])
    def test_dropped_rows_change_nothing(self, filler):
        z = leaf(torch.tensor([[1.0], [1.0], [1.0], [filler]]))
        codebook = leaf(torch.zeros(1, 1))
        mask = torch.tensor([True, True, True, False])
        loss = commitment_loss(z, codebook.expand(4, 1), commitment=1.0, mask=mask)
        loss.backward()
        assert loss.item() == 2.0
        assert_matches(z.grad, np.array([[2 / 3], [2 / 3], [2 / 3], [0.0]]), rtol=1e-6, atol=0)
        assert_matches(codebook.grad, [[-2.0]], rtol=1e-6, atol=0)

    def test_half_precision_is_computed_in_float32(self):
        z = torch.full((2, 64), 600.0, dtype=torch.float16)
        loss = commitment_loss(z, torch.zeros(2, 64, dtype=torch.float16), commitment=0.0)
        assert (loss.dtype, loss.item()) == (torch.float32, 360000.0)

    def test_no_rows(self):
        empty = leaf(torch.zeros(0, 3))
        assert_close(commitment_loss(empty, empty, commitment=1.0), torch.zeros(()), **EXACT)


@pytest.mark.parametrize("shape", [(7, 3), (3, 7), (1, 4)], ids=str)
def test_orthogonality_is_the_mean_squared_cosine_of_pairs(shape):
    codes = torch.sin(torch.arange(float(np.prod(shape))) ** 2).reshape(shape).double()
    rows = codes.numpy()
    cosines = [
        (a @ b / np.linalg.norm(a) / np.linalg.norm(b)) ** 2
        for i, a in enumerate(rows)
        for j, b in enumerate(rows)
        if i != j
    ]
    expected = np.mean(cosines) if cosines else 0.0
    assert orthogonality_loss(codes).item() == pytest.approx(expected, rel=1e-10, abs=1e-14)


def test_orthogonality_takes_memory_of_the_features_alone():
    """K x K would be 256 GiB."""
    codes = torch.sin(torch.arange(2.0**19)).reshape(2**18, 2)
    assert 0 < orthogonality_loss(codes).item() < 1


def test_the_gradient_of_orthogonality():
    codes = torch.sin(torch.arange(12.0) ** 2).reshape(4, 3).double().requires_grad_()
    assert gradcheck(orthogonality_loss, (codes,))
