"""Values of cases 15 to 27 that no other file holds: each test names its case."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from softvq import Cosine, HardVQ, Learning, Loss, SoftVQ, Temperature, attach
from softvq.functional import soft_assign
from tests.contracts.quantizer import place, start_on, waves

COOL = Temperature(gradient=0.8, warmup_share=0.0, anneal_steps=50)


# Case 15: temperatures


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("temperature", [0.01, 1e-40])
def test_tiny_temperatures_are_one_hot(dtype, temperature):
    """15: e_k = k ones(64), z = 10 ones."""
    codebook = torch.arange(4.0)[:, None].expand(4, 64).to(dtype)
    out = soft_assign(torch.full((1, 64), 10.0, dtype=dtype), codebook, temperature=temperature)
    assert torch.equal(out.mean, torch.full_like(out.mean, 3.0))
    assert out.entropy.item() == pytest.approx(0, abs=1e-19)


def test_fifty_steps_from_hot_to_cold_stay_finite():
    """15: T from 1 to 1e-4; after its end the schedule stays at the floor exactly."""
    walk = Temperature(
        gradient=(1.0, 1e-4),
        prototypes=None,
        unit="absolute",
        anneal_steps=50,
        anneal_share=1.0,
        warmup_share=0.0,
    )
    vq, z = SoftVQ(8, 4, temperature=walk, revival=None, forward_value="soft"), waves(64, 4)
    for _ in range(60):
        leaf = z.clone().requires_grad_()
        out = vq(leaf)
        vq.zero_grad()
        (out.quantized.square().mean() + out.loss).backward()
        assert out.loss.isfinite()
        assert leaf.grad.isfinite().all()
        assert vq.codebook.grad.isfinite().all()
        vq.update_()
    assert vq.temperature.item() == torch.tensor(1e-4).item()


def test_two_equal_codes_share_by_halves():
    """15: ties."""
    codebook = torch.tensor([[1.0, 0.0], [1.0, 0.0], [9.0, 0.0]])
    out = soft_assign(torch.zeros(1, 2), codebook, temperature=1e-4)
    assert out.entropy.item() == pytest.approx(0.693147, abs=1e-6)
    assert out.indices.tolist() == [0]


# Case 17: cosine


def test_cosine_normalises_both_sides():
    """17d: a bare dot product takes code 0, also after a step of the optimizer."""
    vq = Cosine(SoftVQ(2, 2, temperature=COOL))
    place(vq.vq, torch.tensor([[10.0, 0.0], [0.6, 0.8]]))
    with torch.no_grad():
        vq.vq._settle()
    z = torch.tensor([[0.6, 0.8]])
    assert vq.eval()(z).indices.tolist() == [1]
    optimizer = torch.optim.SGD(vq.parameters(), lr=0.1)
    attach(vq, optimizer)
    out = vq.train()(waves(20, 2))
    (out.loss + out.quantized.sum()).backward()
    optimizer.step()
    torch.testing.assert_close(vq.vq.codebook.norm(dim=-1), torch.ones(2))
    assert vq.eval()(z).indices.tolist() == [1]


def test_cosine_of_zeros_has_no_large_gradient():
    """17b: F.normalize gives 1e12 here, z / |z| NaN."""
    vq = start_on(Cosine(SoftVQ(8, 4, temperature=COOL)), waves(64, 4))
    z = torch.zeros(3, 4, requires_grad=True)
    out = vq(z)
    (out.quantized.sum() + out.loss).backward()
    assert z.grad.abs().max() <= 1e4


# Case 18: masks


@pytest.mark.parametrize("last", [1e6, -7.0, torch.nan], ids=str)
def test_a_masked_value_is_in_no_figure(last):
    """18: the squared error is 1.0, and 2.5e11 with the last value counted in."""
    vq = HardVQ(1, 1, codebook="gradient", learning=Learning(commitment=1.0), revival=None)
    place(vq, torch.zeros(1, 1))
    z = torch.tensor([[1.0], [1.0], [1.0], [last]], requires_grad=True)
    out = vq.train()(z, mask=torch.tensor([True, True, True, False]))
    out.loss.backward()
    assert out.loss.item() == 2.0  # the codes' term and the rows', 1.0 each
    assert out.stats["ols"].item() == 1.0
    assert out.indices.tolist() == [0, 0, 0, -1]
    torch.testing.assert_close(z.grad[:, 0], torch.tensor([2 / 3, 2 / 3, 2 / 3, 0]))


# Case 19: memory


GROWTH = """
import torch
from softvq import HardVQ
torch.set_num_threads(1)

def status(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

vq = HardVQ(65536, 8, learning=__import__("softvq").Learning(start="uniform"))
z = torch.randn(16384, 8)
vq(z[:64])
vq.update_()
with open("/proc/self/clear_refs", "w") as reset:
    reset.write("5")
before = status("VmRSS")
vq(z)
vq.update_()
print(status("VmHWM") - before, int(vq.updates))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells a process its peak")
def test_a_training_step_of_averages_at_65536_codes_makes_no_matrix():
    """19: a one-hot matrix of this step would be 4 GiB."""
    done = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    grown, updates = done.stdout.split()
    assert float(grown) < 1024
    assert updates == "2"


# Case 27f, 27g


@pytest.mark.parametrize("around", ["plain", "cosine"])
def test_the_codebook_loss_gives_the_rows_nothing(around):
    """27f: with no commitment all that is left is the codes' term."""
    vq = HardVQ(8, 4, codebook="gradient", learning=Learning(commitment=0.0))
    vq = start_on(Cosine(vq) if around == "cosine" else vq, waves(64, 4))
    z = waves(20, 4, phase=1.0).requires_grad_()
    vq(z).loss.backward()
    assert not z.grad.any()


# Any two settings meet in one of these.
PAIRS = {
    "soft blurred fixed plain": ("blurred", "fixed"),
    "soft blurred full cosine": ("blurred", "full"),
    "soft hard fixed cosine": ("hard", "fixed"),
    "soft hard full plain": ("hard", "full"),
    "soft soft fixed plain": ("soft", "fixed"),
    "soft soft full cosine": ("soft", "full"),
    "hard ste gradient plain": ("ste", "gradient"),
    "hard ste ema cosine": ("ste", "ema"),
    "hard rotation gradient cosine": ("rotation", "gradient"),
    "hard rotation ema plain": ("rotation", "ema"),
}


def make_pair(name):
    first, second = PAIRS[name]
    if name.startswith("soft"):
        vq = SoftVQ(8, 4, temperature=COOL, forward_value=first, loss=Loss(assignment_grad=second))
    else:
        vq = HardVQ(8, 4, estimator=first, codebook=second)
    return Cosine(vq) if name.endswith("cosine") else vq


@pytest.mark.filterwarnings("ignore:The temperature hit a bound:UserWarning")
@pytest.mark.filterwarnings("ignore::softvq.CodebookWarning")
@pytest.mark.parametrize("name", list(PAIRS))
def test_every_pair_of_options_trains(name):
    """27g: 200 steps, all finite, and a hard error that is not above its start."""
    torch.manual_seed(0)
    vq, encoder, decoder = make_pair(name), nn.Linear(4, 4), nn.Linear(4, 4)
    model = nn.ModuleList([encoder, vq, decoder])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    attach(model, optimizer)
    x = waves(48, 4)

    def hard_error():
        vq.eval()
        with torch.no_grad():
            error = (decoder(vq(encoder(x)).quantized) - x).square().mean().item()
        vq.train()
        return error

    vq.start_(encoder(x))
    start = hard_error()
    for _ in range(200):
        optimizer.zero_grad()
        out = vq(encoder(x))
        loss = (decoder(out.quantized) - x).square().mean() + out.loss
        assert loss.isfinite()
        loss.backward()
        optimizer.step()
    assert all(each.isfinite().all() for each in model.state_dict().values())
    assert hard_error() <= start
