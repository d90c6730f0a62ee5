import math

import pytest
import torch

from softvq.export import SoftTargets, soft
from softvq.export.soft import top_codes
from softvq.functional import nearest_code
from tests.tolerances import ORACLE_FLOAT32


@pytest.fixture
def rows():
    return torch.sin(torch.arange(60.0)).reshape(15, 4)


@pytest.fixture
def codebook():
    return torch.cos(torch.arange(28.0) * 1.3).reshape(7, 4)


def weigh(row, codebook, temperature):
    """Softmax of -|z - p|^2 / T over all codes, by loops in float64."""
    distances = [
        sum((a - b) ** 2 for a, b in zip(row, code, strict=True)) for code in codebook.tolist()
    ]
    low = min(distances)
    weights = [math.exp(-(distance - low) / temperature) for distance in distances]
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize("temperature", [0.02, 0.7, 50.0])
@pytest.mark.parametrize("top", [1, 3, 7])
def test_weights_are_those_of_the_whole_softmax(rows, codebook, top, temperature):
    options = SoftTargets(top=top, temperature=temperature)
    got = top_codes(rows, codebook, assigned=nearest_code(rows, codebook), soft=options)
    oracle = [weigh(row, codebook, temperature) for row in rows.tolist()]
    order = [sorted(range(7), key=lambda k: -w[k])[:top] for w in oracle]
    assert got.indices.tolist() == order
    expected = [[w[k] for k in ks] for w, ks in zip(oracle, order, strict=True)]
    torch.testing.assert_close(got.weights, torch.tensor(expected), **ORACLE_FLOAT32)


def test_all_codes_sum_to_one(rows, codebook):
    options = SoftTargets(top=7, temperature=0.5)
    got = top_codes(rows, codebook, assigned=nearest_code(rows, codebook), soft=options)
    torch.testing.assert_close(got.weights.sum(1), torch.ones(15))
    assert got.indices.sort(dim=1).values.tolist() == [list(range(7))] * 15


def test_the_assigned_code_comes_first_where_two_are_level():
    codebook = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]])
    options = SoftTargets(top=2, temperature=1.0)
    assigned = torch.tensor([0, 1, 0])
    got = top_codes(torch.zeros(3, 1), codebook, assigned=assigned, soft=options)
    assert got.indices[:, 0].tolist() == [0, 1, 0]
    torch.testing.assert_close(got.weights, torch.full((3, 2), 0.25))


def test_an_offset_of_the_data_costs_no_digits(rows, codebook):
    options = SoftTargets(top=3, temperature=0.5)
    assigned = nearest_code(rows, codebook)
    near = top_codes(rows, codebook, assigned=assigned, soft=options)
    far = top_codes(rows + 512, codebook + 512, assigned=assigned, soft=options)
    torch.testing.assert_close(far.weights, near.weights, rtol=1e-3, atol=1e-4)


def test_parts_give_the_same(rows, codebook, monkeypatch):
    options = SoftTargets(top=3, temperature=0.5)
    assigned = nearest_code(rows, codebook)
    whole = top_codes(rows, codebook, assigned=assigned, soft=options)
    monkeypatch.setattr(soft, "DISTANCES_AT_ONCE", 14)
    parts = top_codes(rows, codebook, assigned=assigned, soft=options)
    assert torch.equal(parts.indices, whole.indices)
    torch.testing.assert_close(parts.weights, whole.weights)


@pytest.mark.bad_input
def test_more_codes_than_there_are_are_refused(rows, codebook):
    options = SoftTargets(top=8, temperature=1.0)
    with pytest.raises(ValueError, match="top is 8; the codebook has 7 codes"):
        top_codes(rows, codebook, assigned=torch.zeros(15).long(), soft=options)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top": 0}, "top must be"),
        ({"temperature": 0.0}, "temperature must be"),
        ({"temperature": math.nan}, "temperature must be"),
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SoftTargets(**options)
