import pytest
import torch
from torch.testing import assert_close

from softvq.functional.distances import squared_distances, unit_rows
from tests import oracles
from tests.contracts.backend import assert_matches, problem
from tests.tolerances import EXACT, ORACLE_FLOAT32, ORACLE_FLOAT64


@pytest.mark.parametrize("shape", [(5, 7, 3), (1, 1, 1), (6, 1, 2)], ids=str)
@pytest.mark.parametrize(
    ("dtype", "limits"),
    [(torch.float64, ORACLE_FLOAT64), (torch.float32, ORACLE_FLOAT32)],
    ids=str,
)
def test_the_oracles(shape, dtype, limits):
    z, codebook = problem(*shape, dtype=dtype)
    expected = oracles.distances(z.double().numpy(), codebook.double().numpy())
    assert_matches(squared_distances(z, codebook), expected, **limits)


@pytest.mark.parametrize("offset", [1e3, 1e4, 1e5])
def test_a_large_offset_keeps_codes_apart(offset):
    codebook = (offset + 0.5 * torch.arange(64.0))[:, None].expand(64, 4)
    result = squared_distances(codebook, codebook)
    steps = torch.arange(64.0)
    assert (result >= 0).all()
    assert_close(result, (steps[:, None] - steps).square(), rtol=1e-5, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_is_computed_in_float32(dtype):
    z, codebook = (part.to(dtype) for part in problem(5, 7, 3))
    result = squared_distances(z, codebook)
    assert_close(result, squared_distances(z.float(), codebook.float()), **EXACT)


def test_autocast_changes_nothing():
    z, codebook = problem(5, 7, 3, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = squared_distances(z, codebook)
    assert_close(cast, squared_distances(z, codebook), **EXACT)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_unit_rows_have_length_one_at_any_scale(scale):
    rows = problem(6, 1, 3, dtype=torch.float64)[0]
    expected = rows / rows.square().sum(-1, keepdim=True).sqrt()
    found = unit_rows((scale * rows).float())
    assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)


def test_a_row_of_no_length_stays_and_takes_no_gradient():
    rows = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    unit_rows(rows).sum().backward()
    assert rows.grad[0].tolist() == [0.0, 0.0]
    assert rows.grad[1].any()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_row_that_is_not_finite_does_not_pass_for_one_of_no_length(value):
    rows = torch.tensor([[value, 1.0], [3.0, 4.0]])
    found = unit_rows(rows)
    assert not found[0].isfinite().all()
    assert_close(found[1], torch.tensor([0.6, 0.8]))


def test_the_gradient_of_unit_rows():
    rows = problem(4, 1, 3, dtype=torch.float64)[0].requires_grad_()
    assert torch.autograd.gradcheck(unit_rows, (rows,))
