import pytest
import torch

from eval import variants
from softvq import SoftVQ, Temperature
from softvq.functional import nearest_code
from train.quantizers import Setting

NEVER_WARM = Temperature(warmup_share=0.0)


def make(kind=SoftVQ, **options):
    torch.manual_seed(0)
    vq = kind(8, 4, temperature=options.pop("temperature", NEVER_WARM), **options)
    rows = torch.randn(200, 4)
    vq.start_(rows)
    return vq, rows.requires_grad_()


def gradients(kind):
    vq, rows = make(kind)
    out = vq(rows)
    weights = torch.linspace(-1, 1, out.quantized.numel()).reshape(out.quantized.shape)
    to_rows, to_codes = torch.autograd.grad(
        (weights * out.quantized).sum(), [rows, vq.codebook], allow_unused=True
    )
    return weights, to_rows, to_codes, out


def test_straight_through_and_half_of_it():
    weights, whole, codes, out = gradients(variants.StraightThrough)
    _, plain, to_codes, blurred = gradients(SoftVQ)
    _, half, half_codes, _ = gradients(variants.HalfStraight)
    assert torch.allclose(whole, weights)
    assert not codes.any()
    assert torch.allclose(half, (weights + plain) / 2)
    assert torch.allclose(half_codes, to_codes / 2)
    assert torch.equal(out.quantized, blurred.quantized)


def test_codes_by_the_free_energy_alone():
    _, rows, codes, _ = gradients(variants.CodesOnEnergy)
    _, plain, _, _ = gradients(SoftVQ)
    assert codes is None
    assert torch.equal(rows, plain)


def test_half_of_the_tokens_decode_the_soft_mean():
    vq, rows = make(variants.MixedValues, temperature=Temperature(warmup_share=0, prototypes=0.8))
    soft, rows_soft = make(
        temperature=Temperature(warmup_share=0, prototypes=0.8), forward_value="soft"
    )
    same = (vq(rows).quantized == soft(rows_soft).quantized).all(-1).float().mean()
    assert 0.35 < same < 0.65
    vq.eval(), soft.eval()
    assert torch.equal(vq(rows.detach()).quantized, soft(rows_soft.detach()).quantized)


def test_codes_are_drawn_in_training_and_nearest_in_eval():
    vq, rows = make(variants.Sampled, temperature=Temperature(warmup_share=0, prototypes=0.8))
    nearest = nearest_code(rows, vq.codebook)
    changed = (vq(rows).indices != nearest).float().mean()
    assert 0.05 < changed < 0.95
    assert torch.equal(vq.eval()(rows.detach()).indices, nearest)


def test_spread_is_weighed_twice():
    (twice, rows), (once, _) = make(variants.SpreadTwice), make()
    out, plain = twice(rows), once(rows)
    expected = once.loss.weight * plain.stats["spread"] / once.schedule.variance
    assert (out.loss - plain.loss).item() == pytest.approx(expected.item(), rel=1e-4)
    assert expected > 0


def test_a_start_on_random_rows():
    vq, rows = make(variants.RandomStart)
    assert (vq.codebook[:, None] == rows).all(-1).any(1).all()
    assert len(vq.codebook.unique(dim=0)) == 8


def test_codes_follow_running_averages():
    vq, rows = make(variants.AveragedToo, revival=None)
    codes = vq.codebook.detach().clone()
    first = nearest_code(rows, codes)
    counts = torch.bincount(first, minlength=8).float()
    moved = rows.detach() + 1
    indices = nearest_code(moved, codes)
    vq(moved)
    vq.update_()
    for code in range(8):
        taken = moved[indices == code]
        total = 0.8 * counts[code] * codes[code] + 0.2 * taken.sum(0)
        expected = total / (0.8 * counts[code] + 0.2 * len(taken))
        assert torch.allclose(vq.codebook[code], expected, atol=1e-5)


def test_wrapped_forms_take_channels_first():
    setting = Setting(num_codes=16, dim=12, steps=10, rows=64, seed=0)
    pictures = torch.randn(4, 12, 4, 4)
    for vq in (
        variants.make_cosine(setting),
        variants.make_scaled(setting),
        variants.make_projected(setting, dim=3),
    ):
        out = vq(pictures)
        assert out.quantized.shape == pictures.shape
        assert out.indices.shape == (4, 4, 4)
