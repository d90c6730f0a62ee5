import pytest
import torch

from softvq.nn.processes import (
    anywhere,
    from_first_process,
    gather_rows,
    num_processes,
    sum_over_processes,
)
from tests.contracts.quantizer import waves
from tests.nn.ranks import KINDS, Pair


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    two = Pair(tmp_path_factory.mktemp("ranks"))
    yield two
    two.stop()


def assert_equal_states(states):
    first, second = states
    differing = [
        name
        for name in first
        if not torch.equal(first[name].nan_to_num(), second[name].nan_to_num())
    ]
    assert differing == []


def test_alone_all_is_the_identity():
    rows = waves(3, 2)
    assert num_processes() == 1
    assert all(call(rows) is rows for call in (gather_rows, sum_over_processes, from_first_process))


def test_rows_are_gathered_in_rank_order_whatever_their_number(pair):
    rows, of_one, total, shared = zip(*pair.run("helpers"), strict=True)
    assert rows == ([[0.0, 0.0]] * 2 + [[1.0, 1.0]] * 3,) * 2
    assert of_one == ([[1.0, 1.0]] * 2,) * 2
    assert total == ([3],) * 2
    assert shared == ([5.0],) * 2


@pytest.mark.parametrize(
    ("wrapped", "broadcast_buffers"),
    [(False, False), (True, True), (True, False)],
    ids=["bare", "DDP", "DDP without broadcast"],
)
def test_averages_are_of_all_rows(pair, wrapped, broadcast_buffers):
    """Case 2; per rank it would be [-1.75, 1.0] and [-2.5, 2.6]."""
    states = pair.run("averages", wrapped, broadcast_buffers)
    assert_equal_states(states)
    torch.testing.assert_close(states[0]["codebook"].flatten(), torch.tensor([-2.2, 2.6]))


@pytest.mark.parametrize("kind", ["soft", "hard"])
@pytest.mark.parametrize("lengths", [(5, 9), (0, 9), (1, 1)], ids=str)
def test_a_start_on_unequal_rows_ends_in_one_codebook(pair, kind, lengths):
    (first, first_started), (second, second_started) = pair.run("start", kind, lengths)
    assert first_started
    assert second_started
    assert_equal_states([first, second])
    assert len(first["codebook"].unique(dim=0)) == 4


def test_no_rank_starts_where_none_has_rows(pair):
    (_, first), (_, second) = pair.run("start", "soft", (0, 0))
    assert (first, second) == (False, False)


def test_rubbish_on_one_rank_is_an_error_on_both(pair):
    answers = pair.run("start_on_rubbish")
    assert [started for _, started in answers] == [False, False]
    assert all("z holds 3 of 54 entries" in message for message, _ in answers)


@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_revival_from_rows_of_one_rank(pair, kind):
    (first, revived), (second, also) = pair.run("revive", kind)
    assert revived == also == [3]
    assert_equal_states([first, second])
    assert first["codebook"].abs().max() < 3


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("broadcast_buffers", [True, False], ids=["broadcast", "no broadcast"])
def test_three_steps_end_in_one_codebook(pair, kind, broadcast_buffers):
    assert_equal_states(pair.run("train", kind, broadcast_buffers, 1))


def test_two_passes_before_a_backward_pass(pair):
    """DDP writes to the buffers before each pass: none may be needed by the gradient."""
    assert_equal_states(pair.run("train", "soft", True, 2))


def test_evaluation_waits_for_nobody(pair):
    assert pair.run("evaluate_alone") == [(9, 2), None]


def test_one_process_asks_nobody():
    assert anywhere(1, device=torch.device("cpu"))
    assert not anywhere(0, device=torch.device("cpu"))
