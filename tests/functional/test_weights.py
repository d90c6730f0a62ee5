import numpy as np
import pytest
import torch

from softvq.functional import soft_assign
from softvq.functional.weights import soft_weights
from tests import oracles
from tests.contracts.quantizer import waves
from tests.tolerances import ORACLE_FLOAT32, ORACLE_FLOAT64, SAME_FLOAT64


@pytest.mark.parametrize("temperature", [3.0, 0.3, 0.01])
def test_weights_are_the_oracles(temperature):
    z, codes = waves(7, 3, dtype=torch.float64), waves(5, 3, phase=1.0, dtype=torch.float64)
    expected = oracles.assign(z.numpy(), codes.numpy(), temperature).weights
    level = torch.tensor(temperature)
    actual = soft_weights(z, codes, temperature=level)
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-6, atol=1e-7)  # T is float32
    exact = soft_weights(z, codes, temperature=level.double().fill_(temperature))
    np.testing.assert_allclose(exact.numpy(), expected, **ORACLE_FLOAT64)


def test_a_far_offset_costs_no_digits():
    z, codes = waves(7, 3) + 1000, waves(5, 3, phase=1.0) + 1000
    expected = oracles.assign(z.double().numpy(), codes.double().numpy(), 0.5).weights
    actual = soft_weights(z, codes, temperature=torch.tensor(0.5))
    np.testing.assert_allclose(actual.numpy(), expected, **ORACLE_FLOAT32)


def test_their_mean_of_codes_is_that_of_soft_assign():
    z, codes = waves(2, 7, 3, dtype=torch.float64), waves(5, 3, phase=1.0, dtype=torch.float64)
    level = torch.tensor(0.4, dtype=torch.float64)
    weights = soft_weights(z, codes, temperature=level)
    mean = soft_assign(z, codes, temperature=level).mean
    torch.testing.assert_close(weights @ codes, mean, **SAME_FLOAT64)


def test_gradient():
    z = waves(4, 3, dtype=torch.float64).requires_grad_()
    codes = waves(3, 3, phase=1.0, dtype=torch.float64).requires_grad_()
    level = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda *parts: soft_weights(parts[0], parts[1], temperature=parts[2]), (z, codes, level)
    )


def test_the_least_temperature_gives_the_nearest_code():
    z, codes = waves(9, 3), waves(5, 3, phase=1.0)
    weights = soft_weights(z, codes, temperature=torch.tensor(0.0))
    nearest = soft_assign(z, codes, temperature=1.0).indices
    assert torch.equal(weights.argmax(-1), nearest)
    assert torch.equal(weights.amax(-1), torch.ones(9))


def test_dropped_rows_are_zeros_whatever_they_hold():
    z = waves(4, 3).index_fill(0, torch.tensor([1]), torch.nan).requires_grad_()
    mask = torch.tensor([True, False, True, True])
    weights = soft_weights(z, waves(5, 3), temperature=torch.tensor(0.5), mask=mask)
    weights.square().sum().backward()
    assert weights[1].tolist() == [0.0] * 5
    torch.testing.assert_close(weights.sum(-1), mask.float())
    assert z.grad.isfinite().all()
    assert z.grad[1].tolist() == [0.0] * 3


def test_low_precision_is_computed_in_float32():
    z, codes = waves(9, 3).bfloat16(), waves(5, 3, phase=1.0).bfloat16()
    level = torch.tensor(0.3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = soft_weights(z, codes, temperature=level)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, soft_weights(z.float(), codes.float(), temperature=level))


@pytest.mark.bad_input
def test_a_mask_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"mask must have shape \(4,\)"):
        soft_weights(
            waves(4, 3), waves(5, 3), temperature=torch.tensor(1.0), mask=torch.ones(3).bool()
        )
