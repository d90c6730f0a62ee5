import pytest
import torch

from softvq import HardVQ, Loss, SoftVQ, Temperature
from softvq.nn import GroupedVQ, MultiHeadVQ, OneIndex, ResidualVQ
from tests.contracts.quantizer import start_on, waves


def test_groups_are_quantizers_on_slices():
    first, second = HardVQ(16, 3), HardVQ(8, 5)
    vq = start_on(GroupedVQ([first, second]), waves(64, 8)).eval()
    z = waves(20, 8, phase=1.0)
    out, one, two = vq(z), first(z[:, :3]), second(z[:, 3:])
    assert torch.equal(out.quantized, torch.cat([one.quantized, two.quantized], -1))
    assert torch.equal(out.indices, torch.stack([one.indices, two.indices], -1))
    torch.testing.assert_close(out.loss, (3 * one.loss + 5 * two.loss) / 8)


def test_heads_are_rows_of_one_codebook():
    inner = HardVQ(16, 2)
    vq = start_on(MultiHeadVQ(inner, num_heads=4), waves(64, 8)).eval()
    z = waves(20, 8, phase=1.0)
    out, rows = vq(z), inner(z.reshape(80, 2))
    assert torch.equal(out.quantized, rows.quantized.reshape(20, 8))
    assert torch.equal(out.indices, rows.indices.reshape(20, 4))
    torch.testing.assert_close(out.loss, rows.loss)


def test_one_index_is_mixed_radix():
    inner = GroupedVQ([HardVQ(5, 2), HardVQ(3, 2, seed=1), HardVQ(7, 2, seed=2)])
    vq = start_on(OneIndex(inner), waves(64, 6)).eval()
    z = waves(30, 6, phase=1.0)
    digits = inner(z).indices
    expected = [(i * 3 + j) * 7 + k for i, j, k in digits.tolist()]
    assert vq(z).indices.tolist() == expected
    everything = vq.codes(torch.arange(vq.num_codes))
    assert len(everything.unique(dim=0)) == 5 * 3 * 7
    assert torch.equal(everything[expected], vq(z).quantized)


def test_a_product_of_2_to_the_18_codes_finds_the_nearest():
    vq = OneIndex(GroupedVQ([SoftVQ(512, 2, seed=seed) for seed in range(2)]))
    start_on(vq, waves(1200, 4))
    assert vq.num_codes == 2**18
    z = waves(9, 4, phase=1.0)
    every = vq.codes(torch.arange(2**18)).detach().double()
    nearest = [int((row - every).square().sum(-1).argmin()) for row in z.double()]
    assert vq.eval()(z).indices.tolist() == nearest


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("build", "match"),
    [
        (
            lambda: GroupedVQ([HardVQ(8, 3)] * 3, dim=8),
            r"dim is 8, but the groups have \[3, 3, 3\] features, 9 in all.*3 divides",
        ),
        (lambda: MultiHeadVQ(HardVQ(8, 3), num_heads=0), "num_heads must be .* got 0"),
        (
            lambda: OneIndex(ResidualVQ([HardVQ(8, 3), HardVQ(8, 3)], dropout=0.5)),
            r"vq leaves out stages \(dropout\)",
        ),
        (
            lambda: OneIndex(GroupedVQ([ResidualVQ([HardVQ(8, 3)] * 2, dropout=0.5)] * 2)),
            r"vq leaves out stages \(dropout\)",
        ),
        (
            lambda: OneIndex(MultiHeadVQ(HardVQ(1024, 1), num_heads=7)),
            r"vq has \d+ values together, more than an int64",
        ),
    ],
    ids=["divide", "heads", "dropout", "dropout inside", "too many"],
)
def test_what_does_not_fit_is_refused(build, match):
    with pytest.raises(ValueError, match=match):
        build()


def test_groups_pull_as_one_codebook_of_their_variance_would():
    """Groups of very different scales: each by its share, not each as if it were alone."""
    options = {"temperature": Temperature(warmup_share=0.0), "loss": Loss(use_entropy=0.0)}
    vq = GroupedVQ([SoftVQ(16, 2, seed=i, **options) for i in range(2)])
    scale = torch.tensor([1.0, 1.0, 1e-3, 1e-3])
    start_on(vq, scale * waves(128, 4))
    z = (scale * waves(64, 4, phase=1.0)).requires_grad_()
    (grad,) = torch.autograd.grad(vq(z).loss, z)
    large, small = (grad[:, part].square().mean().sqrt() for part in (slice(0, 2), slice(2, 4)))
    assert small < 0.1 * large
    whole = vq.parts[0].schedule.variance + vq.parts[1].schedule.variance
    torch.testing.assert_close(vq.seen_variance, whole)
