from functools import partial

import pytest
import torch

from softvq import HardVQ, Loss, SoftVQ, Temperature, attach
from softvq.nn import Cosine, Projected, Scaled
from tests.contracts.quantizer import start_on, waves


def test_projection_is_a_linear_map_on_each_side():
    inner = HardVQ(16, 3)
    vq = start_on(Projected(inner, 8, seed=1), waves(64, 8)).eval()
    z = waves(20, 8, phase=1.0)
    low = inner((z @ vq.project_in.weight.mT + vq.project_in.bias).detach())
    out = vq(z)
    assert torch.equal(out.indices, low.indices)
    expected = low.quantized @ vq.project_out.weight.mT + vq.project_out.bias
    torch.testing.assert_close(out.quantized, expected)


@pytest.mark.parametrize("inner", [3, 8, 12], ids=["down", "square", "up"])
def test_the_maps_start_as_an_orthonormal_pair(inner):
    vq = Projected(HardVQ(4, inner), 8)
    down, up = vq.project_in.weight, vq.project_out.weight
    assert torch.equal(up, down.mT)
    product = down @ up if inner <= 8 else up @ down
    torch.testing.assert_close(product, torch.eye(min(inner, 8)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", [SoftVQ, HardVQ])
def test_cosine_takes_the_greatest_cosine_and_keeps_codes_on_the_sphere(kind):
    vq = start_on(Cosine(kind(16, 4)), waves(64, 4))
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(1)), *vq.parameters()], lr=0.1)
    attach(vq, optimizer)
    for step in range(5):
        out = vq(waves(64, 4, phase=float(step)).requires_grad_())
        (out.quantized.sum() + out.loss).backward()
        optimizer.step()
        optimizer.zero_grad()
    codes = vq.vq.codebook.detach().double()
    torch.testing.assert_close(codes.norm(dim=-1), torch.ones(16).double(), rtol=0, atol=1e-6)
    z = waves(40, 4, phase=9.0).double()
    cosines = (z @ codes.mT) / z.norm(dim=-1, keepdim=True)
    assert torch.equal(vq.eval()(z.float()).indices, cosines.argmax(-1))
    assert torch.equal(vq(1e-3 * z.float()).indices, cosines.argmax(-1))


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e30])
def test_vectors_of_no_or_any_length_have_finite_gradients(scale):
    vq = start_on(Cosine(SoftVQ(16, 4)), waves(64, 4))
    z = (scale * waves(6, 4)).requires_grad_()
    out = vq(z)
    (out.quantized.sum() + out.loss).backward()
    assert out.quantized.isfinite().all()
    assert z.grad.isfinite().all() or scale == 1e-30
    if scale == 0:
        assert not z.grad.any()
        assert len(out.indices.unique()) == 1


def test_a_start_on_vectors_of_no_length_gives_codes_that_are_numbers():
    vq = Cosine(HardVQ(4, 3))
    vq.start_(torch.zeros(9, 3))
    assert vq.vq.codebook.isfinite().all()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_scaled_is_indifferent_to_the_unit(scale):
    one, other = (start_on(Scaled(SoftVQ(16, 4)), s * waves(64, 4)) for s in (1.0, scale))
    z = waves(30, 4, phase=1.0)
    expected, out = one(z), other(scale * z)
    assert torch.equal(out.indices, expected.indices)
    torch.testing.assert_close(out.quantized / scale, expected.quantized, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(one.vq.codebook, other.vq.codebook, rtol=1e-4, atol=1e-5)
    assert one.scale.item() == pytest.approx(waves(64, 4).var(0, unbiased=False).mean().sqrt())


def placed_at_once(**options):
    return SoftVQ(16, 4, temperature=Temperature(warmup_share=0.0), **options)


@pytest.mark.parametrize(
    "make",
    [
        partial(HardVQ, 16, 4),
        placed_at_once,
        partial(placed_at_once, loss=Loss(unit="absolute", use_entropy=0.0)),
    ],
    ids=["hard", "soft", "soft, absolute"],
)
def test_the_loss_of_scaled_is_in_the_vectors_own_units(make):
    """And that which has no unit stays as it is."""
    z = 30 * waves(64, 4)
    scaled, plain = Scaled(make()), make()
    torch.testing.assert_close(scaled(z).loss, plain(z).loss, rtol=1e-3, atol=1e-6)
    assert (scaled.seen_variance is None) == (plain.seen_variance is None)
    if plain.seen_variance is not None:
        torch.testing.assert_close(scaled.seen_variance, plain.seen_variance)


def test_data_that_does_not_vary_has_no_scale():
    vq = start_on(Scaled(HardVQ(4, 2)), torch.ones(9, 2))
    assert vq.scale.item() == 1


def test_scale_stays_float32_in_a_low_precision_model():
    vq = start_on(Scaled(HardVQ(16, 4)), 1e-6 * waves(64, 4))
    before = vq.scale.item()
    assert (vq.half().scale.dtype, vq.scale.item()) == (torch.float32, before)
