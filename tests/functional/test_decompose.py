import pytest
import torch
from torch.testing import assert_close

from softvq.functional import decompose, soft_assign
from tests import oracles
from tests.contracts.backend import assert_matches, draw, problem
from tests.tolerances import EXACT, ORACLE_FLOAT32, ORACLE_FLOAT64, SAME_FLOAT64


@pytest.mark.parametrize(
    ("dtype", "limits"),
    [(torch.float64, ORACLE_FLOAT64), (torch.float32, ORACLE_FLOAT32)],
    ids=str,
)
@pytest.mark.parametrize("temperature", [0.01, 0.5, 50.0])
def test_the_split_is_the_oracles(dtype, limits, temperature):
    z, codebook = problem(9, 7, 4, dtype=dtype)
    split = decompose(z, soft_assign(z, codebook, temperature=temperature))
    expected = oracles.assign(z.double().numpy(), codebook.double().numpy(), temperature)
    assert_matches(split.ols, expected.ols, **limits)
    assert_matches(split.spread, expected.spread, **limits)
    assert_matches(split.distortion, expected.distortion, **limits)


def test_several_temperatures_share_the_rows():
    z, codebook = draw(2, 3, 4), draw(5, 4, seed=2)
    levels = torch.tensor([0.3, 3.0], dtype=torch.float64)
    both = decompose(z, soft_assign(z, codebook, temperature=levels))
    second = decompose(z, soft_assign(z, codebook, temperature=3.0))
    assert both.ols.shape == (2, 2, 3)
    # Sums of two temperatures may go through the processor in another order than those of one.
    assert_close([part[1] for part in both], list(second), **SAME_FLOAT64)


def test_low_precision_rows_are_split_in_float32():
    z, codebook = (part.bfloat16() for part in problem(9, 7, 4))
    split = decompose(z, soft_assign(z, codebook, temperature=0.5))
    full = decompose(z.float(), soft_assign(z.float(), codebook.float(), temperature=0.5))
    assert split.ols.dtype == torch.float32
    assert_close(split, full, **EXACT)
