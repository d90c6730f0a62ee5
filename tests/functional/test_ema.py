import pytest
import torch
from torch.testing import assert_close

from softvq.functional.ema import CodebookAverages, codes_from_averages, update_averages
from tests import oracles
from tests.contracts.backend import assert_matches, draw
from tests.tolerances import EXACT, SAME_FLOAT64


def run(averages, counts, sums, *, decay, steps):
    for _ in range(steps):
        averages = update_averages(averages, counts=counts, sums=sums, decay=decay)
    return averages


def test_rows_of_two_processes_together():
    # -2, -2, -2 and 3, 3, 3, 3, -4 on codes -1 and 1: four rows each.
    old = CodebookAverages(torch.ones(2), torch.tensor([[-1.0], [1.0]]))
    sums = torch.tensor([[-10.0], [12.0]])
    new = update_averages(old, counts=torch.tensor([4.0, 4.0]), sums=sums, decay=0.5)
    assert_matches(codes_from_averages(new), [[-2.2], [2.6]], rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_many_small_steps_add_up(dtype):
    old = CodebookAverages(torch.ones(1), torch.ones(1, 1))
    batch = torch.full((1, 1), 2.0, dtype=dtype)
    new = run(old, torch.ones(1, dtype=dtype), batch, decay=0.999, steps=1000)
    assert new.sums.dtype == torch.float32
    assert_matches(codes_from_averages(new), [[1.632]], rtol=0, atol=2e-3)


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.99])
def test_the_oracles(decay):
    old = CodebookAverages(draw(5, seed=1).abs(), draw(5, 3, seed=2))
    counts, sums = draw(5, seed=3).abs(), draw(5, 3, seed=4)
    new = update_averages(old, counts=counts, sums=sums, decay=decay)
    expected = oracles.ema(old.counts.numpy(), counts.numpy(), decay)
    assert_matches(new.counts, expected, **SAME_FLOAT64)
    assert_matches(new.sums, oracles.ema(old.sums.numpy(), sums.numpy(), decay), **SAME_FLOAT64)


@pytest.mark.parametrize("steps", [1, 100, 200, 2000])
def test_a_code_without_rows_stays_where_it_is(steps):
    old = CodebookAverages(torch.tensor([4.0, 1.0]), torch.tensor([[12.0, -8.0], [1.0, 1.0]]))
    counts, sums = torch.tensor([0.0, 1.0]), torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    new = run(old, counts, sums, decay=0.9, steps=steps)
    assert_matches(codes_from_averages(new), [[3.0, -2.0], [1.0, 1.0]], rtol=1e-4, atol=0)


def test_a_code_that_was_idle_follows_its_first_rows():
    old = CodebookAverages(torch.ones(1), torch.ones(1, 1))
    idle = run(old, torch.zeros(1), torch.zeros(1, 1), decay=0.9, steps=500)
    new = update_averages(idle, counts=torch.ones(1), sums=torch.full((1, 1), 5.0), decay=0.9)
    assert_matches(codes_from_averages(new), [[5.0]], rtol=1e-3, atol=0)


def test_averages_rise_from_zero():
    old = CodebookAverages(torch.zeros(2), torch.zeros(2, 1))
    assert_close(codes_from_averages(old), torch.zeros(2, 1), **EXACT)
    counts, sums = torch.tensor([1.0, 0.0]), torch.tensor([[3.0], [0.0]])
    new = update_averages(old, counts=counts, sums=sums, decay=1 - 1e-6)
    assert_matches(codes_from_averages(new), [[3.0], [0.0]], rtol=1e-5, atol=0)


def test_the_old_averages_are_left_as_they_were():
    old = CodebookAverages(torch.ones(2), torch.ones(2, 1))
    update_averages(old, counts=torch.zeros(2), sums=torch.zeros(2, 1), decay=0.5)
    assert_close(old, CodebookAverages(torch.ones(2), torch.ones(2, 1)), **EXACT)
