import itertools

import pytest
import torch

from softvq import HardVQ, SoftVQ
from softvq.nn import GroupedVQ, MultiHeadVQ, OneIndex, Projected, ResidualVQ, SoftFSQ
from softvq.nn.parts import books_of, fits, hard_answers, numbers_of, stored_dtype
from tests.nn.members import MEMBERS, soft


def test_hard_answers_gives_every_part_its_mode_back():
    vq = ResidualVQ([soft(), soft(seed=1)]).train()
    vq.parts[1].eval()
    with hard_answers(vq):
        assert not any(each.training for each in vq.modules())
    assert (vq.training, vq.parts[0].training, vq.parts[1].training) == (True, True, False)


@pytest.mark.parametrize("name", MEMBERS)
def test_each_index_has_a_book_of_its_size(name):
    vq = MEMBERS[name]()
    assert tuple(each.num_codes for each in books_of(vq)) == numbers_of(vq).codes
    assert fits(vq, vq.index_tail)


def test_books_lie_as_the_indices_do():
    first, second, third = (HardVQ(8, 4, seed=seed) for seed in range(3))
    stack = ResidualVQ([first, second, first])
    assert books_of(stack) == [first, second, first]
    assert books_of(MultiHeadVQ(stack, num_heads=2)) == [first, second, first] * 2
    pair = GroupedVQ([second, third])
    assert books_of(Projected(pair, 6)) == [second, third]
    joined, grid = OneIndex(pair), SoftFSQ([3, 3])
    assert (books_of(Projected(joined, 6)), books_of(Projected(grid, 6))) == ([joined], [grid])


@pytest.mark.parametrize(
    ("vq", "tails"),
    [
        (HardVQ(8, 4), [()]),
        (ResidualVQ([HardVQ(8, 4)] * 3), [(1,), (2,), (3,)]),
        (GroupedVQ([HardVQ(8, 4)] * 3), [(3,)]),
        (MultiHeadVQ(ResidualVQ([HardVQ(8, 4)] * 2), num_heads=3), [(3, 1), (3, 2)]),
        (ResidualVQ([GroupedVQ([HardVQ(8, 4)] * 2)] * 2), [(1, 2), (2, 2)]),
        (Projected(OneIndex(GroupedVQ([HardVQ(8, 4)] * 2)), 6), [()]),
    ],
    ids=["flat", "stages", "groups", "heads of stages", "stages of groups", "one index"],
)
def test_tails_that_fit_are_wholes_and_first_stages(vq, tails):
    tried = itertools.product(range(5), repeat=len(tails[0]))
    assert [tail for tail in tried if fits(vq, tail)] == tails


def test_the_stored_dtype_is_the_widest():
    low, high = SoftVQ(8, 4).bfloat16(), SoftVQ(8, 4).double()
    assert stored_dtype(low) == torch.bfloat16
    assert stored_dtype(ResidualVQ([low, SoftVQ(8, 4)])) == torch.float32
    assert stored_dtype(GroupedVQ([low, high])) == torch.float64
    assert stored_dtype(Projected(low, 6)) == torch.float32
    assert stored_dtype(Projected(low, 6).bfloat16()) == torch.bfloat16
    assert stored_dtype(SoftFSQ([3]).half()) == torch.float16
