"""Values of cases 1 to 11 that no other file holds: each test names its case.

`tests/CASES.md` says where all the others are.
"""

import copy

import pytest
import torch
from torch import nn

from softvq import (
    HardVQ,
    SoftVQ,
    Temperature,
)
from softvq.functional import nearest_code, soft_assign
from softvq.models import VQVAE, VQVAEConfig
from softvq.nn import DDCLReadout, Learning
from tests.contracts.quantizer import place, start_on, waves

COOL = Temperature(gradient=0.8, warmup_share=0.0, anneal_steps=50)
SMALL = {"hidden": 8, "residual_hidden": 4, "blocks": 1}


# Case 1: indices give back the quantized vectors


def test_training_decodes_the_codes_of_before_the_update():
    """1.2: with averages, what a pass gave is of the codebook that it read."""
    vq = start_on(HardVQ(512, 16, revival=None), waves(900, 16))
    z, before = 2 * waves(2, 60, 16, phase=1.0), vq.codebook.clone()
    out = vq(z)
    vq.update_()
    torch.testing.assert_close(out.quantized, before[out.indices], rtol=0, atol=1e-5)
    assert not torch.allclose(out.quantized, vq.codebook[out.indices], rtol=0, atol=1e-3)


@pytest.mark.parametrize("size", [(32, 32), (32, 48)], ids=str)
def test_decoded_indices_are_the_hard_reconstruction(size):
    """1.3: square pictures and others."""
    model = VQVAE(SoftVQ(32, 8, layout="channels_first"), VQVAEConfig(dim=8, **SMALL))
    images = waves(2, 3, *size).clamp(-1, 1)
    model(images)
    with torch.no_grad():
        model.eval()
        assert torch.equal(model.decode(model.encode(images)), model(images).reconstruction)


def test_bfloat16_gives_the_row_itself():
    """1.5: z + (e - z) is not e in bfloat16."""
    vq = place(SoftVQ(512, 16).to(torch.bfloat16), waves(512, 16, dtype=torch.bfloat16))
    z = (8 * waves(300, 16, phase=1.0)).to(torch.bfloat16)
    out = vq.eval()(z)
    assert torch.equal(out.quantized, vq.codebook[out.indices])
    assert not torch.equal(z + (out.quantized - z), out.quantized), "this shows too little"


# Case 4: fp16, bf16


@pytest.mark.parametrize("way", ["half", "float16", "bfloat16"])
def test_soft_weights_of_large_close_codes(way):
    """4: naive distances of these are NaN, infinite or off by tens of thousands."""
    codebook = (300.0 + torch.arange(8.0))[:, None].expand(8, 64)
    z = torch.full((1, 64), 303.0)
    if way == "half":
        codebook, z = codebook.half(), z.half()
    z = z.clone().requires_grad_()
    with torch.autocast("cpu", getattr(torch, "float16" if way == "half" else way)):
        out = soft_assign(z, codebook, temperature=1.0)
    out.mean.sum().backward()
    assert out.indices.tolist() == [3]
    assert torch.equal(out.mean, torch.full_like(out.mean, 303.0))
    # Two neighbours at a squared distance of 64: 2 * 64 * exp(-64) nats, and nothing else.
    assert 0 <= out.entropy.item() < 1e-24
    assert z.grad.isfinite().all()


# Case 5: beta, and the way of the gradients


def test_hard_codes_get_nothing_of_the_reconstruction_and_soft_ones_do():
    """5: straight through, and the soft mean."""
    for make, reached in ((HardVQ, False), (SoftVQ, True)):
        options = {"codebook": "gradient"} if make is HardVQ else {"temperature": COOL}
        vq = start_on(make(8, 4, **options), waves(64, 4))
        z = waves(20, 4, phase=1.0).requires_grad_()
        weight = waves(20, 4, phase=2.0)
        quantized = vq(z).quantized
        grads = torch.autograd.grad((quantized * weight).sum(), [z, vq.codebook], allow_unused=True)
        assert (grads[1] is not None and bool(grads[1].any())) is reached
        if not reached:
            torch.testing.assert_close(grads[0], weight, rtol=0, atol=0)


@pytest.mark.parametrize("make", [SoftVQ, HardVQ], ids=lambda each: each.__name__)
def test_every_code_that_was_chosen_moves_by_default(make):
    """5: 20 steps of SGD on the same data."""
    options = {"temperature": COOL} if make is SoftVQ else {}
    vq, z = start_on(make(16, 4, revival=None, **options), waves(200, 4)), waves(200, 4, phase=1.0)
    before, chosen = vq.codebook.detach().clone(), set()
    optimizer = torch.optim.SGD([*vq.parameters(), nn.Parameter(torch.zeros(1))], lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        out = vq(z)
        loss = (out.quantized - z).square().mean() + out.loss
        if loss.requires_grad:
            loss.backward()
        optimizer.step()
        vq.update_()
        chosen |= set(out.indices.tolist())
    still = (vq.codebook == before).all(-1).nonzero().flatten().tolist()
    assert len(chosen) > 8
    assert [code for code in still if code in chosen] == []


# Case 7: trained soft, decoded hard


@pytest.mark.parametrize("temperature", [1e-4, 0.01, 0.1, 0.5, 1.0, 10.0])
def test_the_likeliest_code_is_the_nearest_at_every_temperature(temperature):
    """7: 10,000 random rows, by weights of float64 loops' formula."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(10_000, 4, generator=generator)
    codebook = torch.randn(16, 4, generator=generator)
    distances = (z[:, None] - codebook).double().square().sum(-1)
    weights = torch.softmax(-distances / temperature, -1)
    indices = soft_assign(z, codebook, temperature=temperature).indices
    assert torch.equal(indices, nearest_code(z, codebook))
    best = weights.gather(1, indices[:, None])[:, 0]
    torch.testing.assert_close(best, weights.max(-1).values, rtol=1e-4, atol=0)


@pytest.mark.parametrize("estimator", ["ste", "rotation"])
@pytest.mark.parametrize(
    ("row", "code"), [([3.0, 0.0], [0.0, 1.0]), ([1.0, 0.0], [-1.0, 0.0])], ids=["right", "back"]
)
def test_no_trick_of_the_gradient_leaves_the_code(estimator, row, code):
    """7: an un-rescaled rotation gives [0, 3]."""
    vq = HardVQ(2, 2, estimator=estimator, codebook="gradient")
    place(vq, torch.tensor([code, [99.0, 99.0]]))
    z = torch.tensor([row], requires_grad=True)
    out = vq.train()(z)
    (out.quantized.sum() + out.loss).backward()
    assert torch.equal(out.quantized, torch.tensor([code]))
    assert z.grad.isfinite().all()


# Case 8: checkpoints


@pytest.mark.filterwarnings("ignore:The temperature hit a bound:UserWarning")
@pytest.mark.parametrize("make", [SoftVQ, HardVQ], ids=lambda each: each.__name__)
def test_a_loaded_run_keeps_its_codes_on_other_data(make):
    """8: five steps, saved, rebuilt and loaded; a training pass on different data places nothing.

    A code of averages at decay 1 - 1e-6, which is the most, moves by less than a rounding.
    """
    options = {"temperature": COOL} if make is SoftVQ else {"learning": Learning(decay=1 - 1e-6)}
    vq = make(16, 8, revival=None, **options)
    for step in range(5):
        vq(waves(64, 8, phase=float(step)))
        vq.update_()
    fresh = make(16, 8, revival=None, **options)
    assert set(fresh.state_dict()) == set(vq.state_dict())
    fresh.load_state_dict(copy.deepcopy(vq.state_dict()))
    fresh.train()(5 + 3 * waves(64, 8, phase=9.0))
    assert torch.equal(fresh.codebook, vq.codebook)
    fresh.update_()
    torch.testing.assert_close(fresh.codebook, vq.codebook, rtol=0, atol=1e-4)


@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod."])
def test_a_state_of_a_wrapped_model_is_never_taken_for_none(wrapper):
    """8: strict loading names the key; without it the codes are said to be random."""
    state = {
        f"{wrapper}{k}": v for k, v in start_on(SoftVQ(16, 8), waves(64, 8)).state_dict().items()
    }
    fresh = SoftVQ(16, 8)
    with pytest.raises(RuntimeError, match=rf"Unexpected key.*{wrapper}codebook"):
        fresh.load_state_dict(state)
    fresh.load_state_dict(state, strict=False)
    with pytest.warns(
        UserWarning, match=rf"holds no codebook.*{wrapper}codebook: take off the prefix"
    ):
        fresh.eval()(waves(5, 8))


# Case 9: evaluation first


def test_sanity_validation_first_changes_nothing_of_the_training():
    """9: as Lightning does it."""
    runs = []
    for first in (False, True):
        vq = SoftVQ(16, 8, temperature=COOL)
        if first:
            vq.eval()(waves(32, 8, phase=7.0))
            assert not vq.is_started
        for step in range(3):
            vq.train()(waves(64, 8, phase=float(step)))
            vq.update_()
        runs.append(vq.codebook.detach().clone())
    assert torch.equal(*runs)


# Case 10: the grid


def test_another_grid_of_the_same_list_is_another_picture():
    """10: 3 x 48 x 80 at f = 8 is 6 x 10, row by row."""
    model = VQVAE(
        SoftVQ(64, 8, layout="channels_first"), VQVAEConfig(dim=8, downsampling=8, **SMALL)
    ).eval()
    with torch.no_grad():
        assert model.encode(torch.zeros(2, 3, 48, 80)).shape == (2, 6, 10)
        grid = torch.arange(60).reshape(1, 6, 10)
        picture = model.decode(grid)
        assert picture.shape == (1, 3, 48, 80)
        flat = grid.reshape(1, 60)
        assert torch.equal(model.decode(flat.reshape(1, 6, 10)), picture)
        assert model.decode(flat.reshape(1, 10, 6)).shape == (1, 3, 80, 48)


# Case 11: fully masked sequences behind a transformer


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("nested", [True, False], ids=["nested", "plain"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_an_empty_sequence_spoils_nothing_in_any_of_the_four_ways(nested, training):
    """11: eval without nested tensors gives NaN in the empty row."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)
    absolute = Temperature(gradient=0.5, prototypes=0.3, unit="absolute")
    head = DDCLReadout(8, 4, temperature=absolute)
    z, mask = waves(3, 5, 8), torch.ones(3, 5, dtype=torch.bool)
    mask[1], mask[2, 3:] = False, False
    head(z, mask=mask)
    kept = torch.tensor([0, 2])
    encoder.train(training)
    head.train(training)
    with torch.set_grad_enabled(training):
        leaf = z.clone().requires_grad_(training)
        out = head(encoder(leaf, src_key_padding_mask=~mask), mask=mask)
        alone = head(encoder(z[kept], src_key_padding_mask=~mask[kept]), mask=mask[kept])
    assert out.mean.isfinite().all()
    assert not out.mean[1].any()
    assert not out.assignment[1].any()
    torch.testing.assert_close(out.mean[kept], alone.mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(out.loss, alone.loss, rtol=1e-5, atol=1e-6)
    if training:
        (out.mean.square().sum() + out.loss).backward()
        assert leaf.grad[kept].isfinite().all()
