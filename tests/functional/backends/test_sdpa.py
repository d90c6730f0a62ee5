import pytest
import torch

from softvq.functional import soft_mean
from tests import oracles
from tests.contracts.backend import MeanContract, assert_matches, leaf, problem
from tests.tolerances import ORACLE_FLOAT32


class TestSdpa(MeanContract):
    backend = "sdpa"

    @pytest.mark.parametrize("temperature", [1e-2, 1e2, 1e4, 1e8])
    def test_temperatures_that_float32_logits_can_carry(self, temperature):
        z, codebook = (part.float() for part in problem(7, 9, 5))
        result = soft_mean(z, codebook, temperature=temperature, backend="sdpa")
        expected = oracles.assign(z.double().numpy(), codebook.double().numpy(), temperature)
        assert_matches(result.mean, expected.mean, **ORACLE_FLOAT32)
        assert_matches(result.spread, expected.spread, **ORACLE_FLOAT32)

    @pytest.mark.parametrize("temperature", [1e-4, 1e-8, 1e-20, 1e-40])
    def test_no_temperature_gives_nan(self, temperature):
        z, codebook = (leaf(part.float()) for part in problem(7, 9, 5))
        level = leaf(torch.tensor(temperature))
        result = soft_mean(z, codebook, temperature=level, backend="sdpa")
        (result.mean.sum() + result.spread.sum()).backward()
        assert torch.isfinite(result.mean).all()
        assert torch.isfinite(z.grad).all()
        assert torch.isfinite(codebook.grad).all()
        assert torch.isfinite(level.grad)
