import pytest
import torch
from torch.autograd import gradgradcheck

from softvq.functional import soft_assign_and_use
from tests.contracts.backend import OUTPUTS, BackendContract, leaf, problem


class TestReference(BackendContract):
    backend = "reference"

    @pytest.mark.parametrize("name", OUTPUTS)
    def test_gradgradcheck(self, name):
        z, codebook = problem(2, 3, 2)

        def function(z, codebook, temperature):
            codes, use = soft_assign_and_use(
                z, codebook, temperature=temperature, backend="reference"
            )
            return use if name == "use" else getattr(codes, name)

        temperature = torch.tensor([0.8, 1.7], dtype=torch.float64)
        assert gradgradcheck(function, (leaf(z), leaf(codebook), leaf(temperature)))
