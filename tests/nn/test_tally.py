import pickle

import pytest
import torch

from softvq.nn.tally import Tally
from tests.contracts.quantizer import waves


def make_tally(*passes, with_sums=True):
    tally = Tally(3, with_sums=with_sums)
    for rows, indices in passes:
        tally.add(torch.tensor(rows), torch.tensor(indices))
    return tally


def test_passes_add_up():
    tally = make_tally(([[1.0], [2.0]], [0, 2]), ([[4.0]], [2]))
    counts, sums = tally.totals()
    assert counts.tolist() == [1, 0, 2]
    assert sums.tolist() == [[1.0], [0.0], [6.0]]
    assert tally.sample().tolist() == [[4.0]], "samples are of the last pass"


@pytest.mark.parametrize("junk", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_rows_that_are_no_numbers_count_nowhere(junk):
    tally = make_tally(([[1.0, 1.0], [junk, 2.0], [3.0, junk]], [0, 1, 2]))
    counts, sums = tally.totals()
    assert counts.tolist() == [1, 0, 0]
    assert sums.tolist() == [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]
    assert tally.sample().tolist() == [[1.0, 1.0]]
    assert tally.num_dropped() == 2


def test_masked_rows_count_nowhere_and_are_no_fault():
    tally = make_tally(([[1.0], [torch.nan]], [0, -1]))
    assert tally.totals()[0].tolist() == [1, 0, 0]
    assert tally.sample().tolist() == [[1.0]]
    assert tally.num_dropped() == 0


def test_sums_are_kept_only_where_wanted():
    assert make_tally(([[1.0]], [0]), with_sums=False).totals()[1] is None


def test_low_precision_rows_are_summed_in_float32():
    tally = Tally(1, with_sums=True)
    tally.add(torch.ones(3000, 1, dtype=torch.bfloat16), torch.zeros(3000, dtype=torch.int64))
    counts, sums = tally.totals()
    assert (counts.item(), sums.item(), sums.dtype) == (3000, 3000.0, torch.float32)
    assert tally.sample().dtype == torch.float32


def test_no_gradient_is_kept():
    tally = Tally(2, with_sums=True)
    tally.add(waves(3, 2).requires_grad_() * 2, torch.zeros(3, dtype=torch.int64))
    assert not any(each.requires_grad for each in (tally.counts, tally.sums, tally.recent))


def test_clear_forgets():
    tally = make_tally(([[1.0]], [0]))
    tally.clear()
    assert not tally
    assert tally.num_dropped() == 0


def test_an_expired_tally_waits_for_the_next_pass():
    tally = make_tally(([[1.0]], [0]))
    tally.expire()
    assert tally.totals()[0].tolist() == [1, 0, 0]
    tally.add(torch.tensor([[2.0]]), torch.tensor([1]))
    assert tally.totals()[0].tolist() == [0, 1, 0]
    tally.add(torch.tensor([[2.0]]), torch.tensor([1]))
    assert tally.totals()[0].tolist() == [0, 2, 0]


def test_expiring_an_empty_tally_spares_the_next_passes():
    tally = make_tally()
    tally.expire()
    tally.add(torch.tensor([[2.0]]), torch.tensor([1]))
    tally.add(torch.tensor([[2.0]]), torch.tensor([1]))
    assert tally.totals()[0].tolist() == [0, 2, 0]


@pytest.mark.parametrize("call", ["totals", "sample"])
def test_an_empty_tally_says_so(call):
    with pytest.raises(RuntimeError, match="needs a forward pass first"):
        getattr(Tally(3, with_sums=True), call)()


def test_it_moves_and_pickles():
    tally = pickle.loads(pickle.dumps(make_tally(([[1.0]], [2]))))
    assert tally.totals()[0].tolist() == [0, 0, 1]
    tally.apply(lambda held: held.to("meta"))
    assert {each.device.type for each in (tally.counts, tally.sums, tally.recent)} == {"meta"}


def test_casts_leave_it_alone():
    tally = make_tally(([[1.0]], [2]))
    tally.apply(lambda held: held.half())
    assert tally.sums.dtype == torch.float32


def test_samples_are_of_as_many_passes_as_a_step_has():
    tally = Tally(3, with_sums=False)
    tally.passes = 2
    for value in (1.0, 2.0, 3.0):
        tally.add(torch.tensor([[value]]), torch.tensor([0]))
    assert tally.sample().tolist() == [[3.0]], "a third pass begins another step"
    tally.add(torch.tensor([[4.0]]), torch.tensor([0]))
    assert tally.sample().tolist() == [[3.0], [4.0]]
    tally.clear()
    tally.add(torch.tensor([[5.0]]), torch.tensor([0]))
    assert tally.sample().tolist() == [[5.0]]
