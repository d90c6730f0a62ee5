import math

import pytest
import torch

from softvq import HardVQ
from softvq.nn import GroupedVQ, MultiHeadVQ, OneIndex, Projected, ResidualVQ, SoftFSQ, measure_bits
from tests.nn.members import MEMBERS


@pytest.mark.parametrize(
    ("vq", "codes"),
    [
        (HardVQ(512, 4), (512,)),
        (ResidualVQ([HardVQ(8, 4), HardVQ(32, 4)]), (8, 32)),
        (GroupedVQ([ResidualVQ([HardVQ(8, 4), HardVQ(2, 4)])] * 2), (8, 2, 8, 2)),
        (MultiHeadVQ(ResidualVQ([HardVQ(8, 4), HardVQ(2, 4)]), num_heads=3), (8, 2) * 3),
        (OneIndex(GroupedVQ([HardVQ(512, 4)] * 2)), (2**18,)),
        (Projected(SoftFSQ([8, 5, 5, 5]), 64), (1000,)),
    ],
    ids=["flat", "residual", "grouped", "heads", "product", "fsq"],
)
def test_bits_are_logs_of_the_codes_of_each_index(vq, codes):
    bits = measure_bits(vq, positions=64)
    assert bits.codes == codes
    assert bits.per_token == pytest.approx(math.log2(math.prod(codes)))
    assert bits.per_item == pytest.approx(64 * bits.per_token)
    assert bits.entropy_per_token is None


@pytest.mark.parametrize("name", MEMBERS)
def test_the_accounting_fits_the_indices(name):
    vq = MEMBERS[name]()
    codes = measure_bits(vq).codes
    assert len(codes) == torch.Size(vq.index_tail).numel()
    assert math.prod(codes) == vq.num_codes


def test_entropy_is_of_each_index_by_itself():
    vq = ResidualVQ([HardVQ(4, 2), HardVQ(4, 2)])
    indices = torch.tensor([[0, 0], [0, 1], [1, 2], [1, 3], [-1, -1]])
    bits = measure_bits(vq, positions=10, indices=indices)
    assert bits.entropy_per_index == pytest.approx((1.0, 2.0))
    assert (bits.entropy_per_token, bits.entropy_per_item) == pytest.approx((3.0, 30.0))


def test_nothing_counted_is_no_entropy():
    bits = measure_bits(HardVQ(4, 2), indices=torch.full((3,), -1))
    assert (bits.entropy_per_index, bits.entropy_per_token) == ((0.0,), 0.0)


@pytest.mark.bad_input
def test_what_makes_no_sense_is_refused():
    vq = ResidualVQ([HardVQ(4, 2), HardVQ(4, 2)])
    with pytest.raises(ValueError, match=r"positions must be .* got 0"):
        measure_bits(vq, positions=0)
    with pytest.raises(ValueError, match=r"vq must be a quantizer of softvq.*got Linear"):
        measure_bits(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"indices must be whole numbers; got torch.float32"):
        measure_bits(vq, indices=torch.zeros(5, 2))
    with pytest.raises(ValueError, match=r"indices must lie in \[-1, 4\).*to 4"):
        measure_bits(vq, indices=torch.tensor([[0, 4]]))
    with pytest.raises(ValueError, match=r"indices must end in \(2,\).*\(5, 3\)"):
        measure_bits(vq, indices=torch.zeros(5, 3, dtype=torch.int64))
