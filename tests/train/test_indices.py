import torch

from softvq import HardVQ
from softvq.nn import GroupedVQ, OneIndex, ResidualVQ, Scaled
from train.indices import codes_per_index, first_codebook, split_indices


def test_stages_are_seen_one_by_one():
    vq = ResidualVQ([HardVQ(8, 4), HardVQ(16, 4)], layout="channels_first")
    assert codes_per_index(vq) == (8, 16)
    assert torch.equal(first_codebook(vq), vq.parts[0].codebook)
    grid = torch.arange(2 * 3 * 3 * 2).reshape(2, 3, 3, 2)
    first, second = split_indices(grid)
    assert torch.equal(first, grid[..., 0])
    assert torch.equal(second, grid[..., 1])
    assert torch.equal(split_indices(first)[0], first)


def test_the_codes_of_one_number_for_all_are_those_of_its_whole_table():
    pair = OneIndex(GroupedVQ([HardVQ(4, 2), HardVQ(3, 2)]), layout="channels_first")
    for vq in (Scaled(HardVQ(8, 4), layout="channels_first"), pair):
        num = vq.num_codes
        assert first_codebook(vq).shape == (num, 4)
        assert torch.equal(first_codebook(vq), vq.codes(torch.arange(num)))
