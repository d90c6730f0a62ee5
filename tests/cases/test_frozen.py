"""Case 9: a frozen codebook stays as it is, bit for bit, and what is around it trains."""

import copy

import pytest
import torch
from torch import nn

from softvq import HardVQ, SoftVQ, Temperature, attach
from softvq.models import VQVAE, VQVAEConfig
from softvq.nn import Cosine, ImplicitVQ, Projected, Quantizer, ResidualVQ
from tests.contracts.quantizer import start_on, waves

# Data that wander off from codes that stay: of course T hits a bound.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The temperature hit a bound:UserWarning"),
    pytest.mark.filterwarnings("ignore::softvq.CodebookWarning"),
]

COOL = Temperature(gradient=0.8, warmup_share=0.0, anneal_steps=50)
KINDS = {
    "soft": lambda: SoftVQ(16, 8, temperature=COOL),
    "soft in its warm-up": lambda: SoftVQ(16, 8, temperature=Temperature(anneal_steps=50)),
    "averages": lambda: HardVQ(16, 8),
    "gradient": lambda: HardVQ(16, 8, codebook="gradient"),
    "implicit": lambda: ImplicitVQ(16, 8, temperature=COOL),
    "cosine": lambda: Cosine(HardVQ(16, 8)),
    "residual": lambda: ResidualVQ([SoftVQ(16, 8, temperature=COOL), HardVQ(16, 8)]),
    "projected": lambda: Projected(SoftVQ(16, 4, temperature=COOL), 8),
}
CODES = ("codebook", "table", "change", "shift", "ema_counts", "ema_sums")


def codes_of(model):
    state = model.state_dict()
    return {k: v.clone() for k, v in state.items() if k.rsplit(".", 1)[-1] in CODES}


def train(model, encoder, *, steps=15):
    """Steps past the point where unused codes are revived; whether the encoder had gradients."""
    optimizer = torch.optim.AdamW(
        [*encoder.parameters(), *model.parameters()], lr=1e-2, weight_decay=0.1
    )
    attach(nn.ModuleList([encoder, model]), optimizer)
    reached = True
    for step in range(steps):
        optimizer.zero_grad()
        z = waves(4, 12, 8, phase=float(step)) + step
        out = model(encoder(z))
        ((out.quantized - z).square().mean() + out.loss).backward()
        reached &= bool(encoder.weight.grad.any())
        optimizer.step()
    return reached


@pytest.mark.parametrize("fresh", [False, True], ids=["started", "fresh"])
@pytest.mark.parametrize("name", list(KINDS))
def test_frozen_codes_keep_every_bit_and_the_encoder_learns(name, fresh):
    model = KINDS[name]() if fresh else start_on(KINDS[name](), waves(4, 24, 8))
    model.freeze_()
    before = codes_of(model)
    assert train(model, nn.Linear(8, 8))
    after = codes_of(model)
    assert [key for key in before if not torch.equal(after[key], before[key])] == []
    held = [each for each in model.modules() if isinstance(each, Quantizer)]
    assert all(each.is_frozen and int(each.updates) >= 15 for each in held)


@pytest.mark.parametrize("name", list(KINDS))
def test_codes_that_are_let_go_learn_again(name):
    model = start_on(KINDS[name](), waves(4, 24, 8))
    model.freeze_()
    model.freeze_(False)
    before = codes_of(model)
    train(model, nn.Linear(8, 8))
    after = codes_of(model)
    assert any(not torch.equal(after[key], before[key]) for key in before)


def test_a_codebook_that_requires_no_grad_is_frozen():
    model = start_on(SoftVQ(16, 8, temperature=COOL), waves(64, 8))
    model.codebook.requires_grad_(False)
    before = codes_of(model)
    train(model, nn.Linear(8, 8))
    assert model.is_frozen
    assert torch.equal(model.codebook, before["codebook"])


def test_freezing_drops_a_gradient_that_a_step_would_follow():
    model = start_on(SoftVQ(16, 8, temperature=COOL), waves(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(waves(64, 8)).loss.backward()
    model.freeze_()
    before = codes_of(model)
    optimizer.step()
    assert torch.equal(model.codebook, before["codebook"])


def test_the_temperature_of_a_frozen_codebook_follows_the_data():
    model = start_on(SoftVQ(16, 8, temperature=COOL), waves(64, 8))
    model.freeze_()
    first = model.temperature.item()
    for _ in range(5):
        model(3 * waves(64, 8))
        model.update_()
    assert model.temperature.item() > 1.5 * first


def test_a_whole_vqvae_trains_around_frozen_codes():
    config = VQVAEConfig(dim=8, hidden=8, residual_hidden=4, blocks=1)
    model = VQVAE(SoftVQ(16, 8, temperature=COOL, layout="channels_first"), config)
    images = waves(2, 3, 16, 16).clamp(-1, 1)
    model(images)
    model.quantizer.freeze_()
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    attach(model, optimizer)
    for _ in range(12):
        optimizer.zero_grad()
        out = model(images)
        ((out.reconstruction - images).square().mean() + out.quantizer.loss).backward()
        optimizer.step()
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert "quantizer.codebook" not in changed
    assert {k for k in before if k.startswith(("encoder", "decoder"))} <= changed
