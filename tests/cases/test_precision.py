"""Part 3: low and high precision, steps that a scaler skips, deterministic mode.

Statistics and averages are float32 in all of them.
"""

import pytest
import torch
from torch import nn

from softvq import HardVQ, SoftVQ, Temperature, attach
from softvq.models import VQVAE, VQVAEConfig
from tests.contracts.quantizer import snapshot, start_on, waves

COOL = Temperature(gradient=0.8, warmup_share=0.0, anneal_steps=50)
KINDS = {
    "soft": lambda **o: SoftVQ(16, 8, temperature=COOL, **o),
    "averages": lambda **o: HardVQ(16, 8, **o),
    "gradient": lambda **o: HardVQ(16, 8, codebook="gradient", **o),
}
pytestmark = [
    pytest.mark.filterwarnings("ignore:The temperature hit a bound:UserWarning"),
    pytest.mark.filterwarnings("ignore::softvq.CodebookWarning"),
]


@pytest.fixture(params=list(KINDS))
def make(request):
    return KINDS[request.param]


def float_statistics(model):
    """Dtypes of the counters, averages and levels."""
    return {
        name: each.dtype
        for name, each in model.state_dict().items()
        if each.is_floating_point()
        and name.rsplit(".", 1)[-1] not in ("codebook", "weight", "bias")
    }


def make_vqvae(make):
    torch.manual_seed(0)
    config = VQVAEConfig(dim=8, hidden=8, residual_hidden=4, blocks=1)
    return VQVAE(make(layout="channels_first"), config)


def test_float16_under_a_scaler_with_outputs_a_hundred_times_as_large(make):
    """Case 4: 50 steps, no NaN, and the scale is not at its floor; some steps are skipped."""
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(8, 8), make(), nn.Linear(8, 8)])
    encoder, vq, decoder = model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=10)
    attach(model, optimizer)
    skipped = 0
    for step in range(50):
        optimizer.zero_grad()
        x = waves(4, 16, 8, phase=float(step % 7))
        with torch.autocast("cpu", torch.float16):
            out = vq(100 * encoder(x))
            loss = (decoder(out.quantized) / 100 - x).square().mean() + out.loss / 1e4
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
    assert all(each.isfinite().all() for each in model.state_dict().values())
    assert 0 < skipped < 40
    assert int(vq.updates) == 50 - skipped
    assert scaler.get_scale() > 1
    assert set(float_statistics(vq).values()) == {torch.float32}


def test_a_skipped_step_leaves_codes_averages_and_schedule(make):
    vq = start_on(make(), waves(64, 8))
    encoder = nn.Linear(8, 8)
    optimizer = torch.optim.SGD([*encoder.parameters(), *vq.parameters()], lr=1e-2)
    scaler = torch.amp.GradScaler("cpu")
    attach(nn.ModuleList([encoder, vq]), optimizer)
    before = snapshot(vq)
    out = vq(encoder(waves(64, 8)))
    scaler.scale((out.quantized.square().mean() + out.loss) * torch.inf).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    changed = [k for k, v in vq.state_dict().items() if not torch.equal(v, before[k])]
    assert changed == []


def test_bfloat16_autocast_trains_as_float32_does(make):
    results = []
    for enabled in (False, True):
        model = make_vqvae(make)
        images = waves(4, 3, 16, 16).clamp(-1, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        attach(model, optimizer)
        for _ in range(25):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                out = model(images)
                error = (out.reconstruction.float() - images).square().mean()
            (error + out.quantizer.loss).backward()
            optimizer.step()
        assert set(float_statistics(model.quantizer).values()) == {torch.float32}
        assert out.quantizer.loss.dtype == torch.float32
        results.append(error.item())
    assert results[1] == pytest.approx(results[0], rel=0.1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_a_whole_model_of_another_dtype_trains(make, dtype):
    model = make_vqvae(make).to(dtype)
    images = waves(4, 3, 16, 16).clamp(-1, 1).to(dtype)
    optimizer = torch.optim.SGD([*model.parameters()], lr=1e-3)
    attach(model, optimizer)
    for _ in range(12):
        optimizer.zero_grad()
        out = model(images)
        loss = (out.reconstruction - images).float().square().mean() + out.quantizer.loss
        loss.backward()
        assert all(each.grad.isfinite().all() for each in model.parameters())
        optimizer.step()
    vq = model.quantizer
    assert out.reconstruction.dtype == dtype
    assert out.quantizer.indices.dtype == torch.int64
    assert out.quantizer.loss.dtype == torch.promote_types(dtype, torch.float32)
    assert int(vq.updates) == 12
    assert set(float_statistics(vq).values()) == {torch.float32}
    assert all(each.isfinite().all() for each in vq.state_dict().values())
    with torch.no_grad():
        out = model.eval()(images).quantizer
        assert torch.equal(vq.codes(out.indices).to(dtype), out.quantized)


@pytest.fixture
def deterministic():
    """PyTorch's own mode, in which new memory holds NaN rather than what was there."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
def test_deterministic_mode_gives_the_same_bits_twice(make):
    states = []
    for _ in range(2):
        model = make_vqvae(make)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        attach(model, optimizer)
        for step in range(14):
            optimizer.zero_grad()
            images = waves(2, 3, 16, 16, phase=float(step)).clamp(-1, 1)
            out = model(images)
            ((out.reconstruction - images).square().mean() + out.quantizer.loss).backward()
            optimizer.step()
        states.append(snapshot(model))
    assert torch.are_deterministic_algorithms_enabled()
    assert [k for k in states[0] if not torch.equal(states[0][k], states[1][k])] == []
    assert all(each.isfinite().all() for each in states[0].values())


@pytest.mark.usefixtures("deterministic")
def test_no_kernel_reads_memory_that_it_did_not_write(make):
    """New memory is NaN in this mode: what would be left of it would be seen."""
    vq, z = start_on(make(), waves(64, 8)), waves(50, 8, phase=1.0).requires_grad_()
    out = vq(z, mask=torch.arange(50) % 3 > 0)
    (out.quantized.square().sum() + out.loss).backward()
    vq.update_()
    assert z.grad.isfinite().all()
    assert out.quantized.isfinite().all()
    assert all(each.isfinite().all() for each in out.stats.values())
    assert all(each.isfinite().all() for each in vq.state_dict().values())
