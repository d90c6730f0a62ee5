"""Compilers see one graph. Run without the run-time shape checks, which they would trace."""

from functools import partial

import pytest
import torch
import torch._dynamo.testing
from torch import nn

from softvq import HardVQ, SoftVQ, Temperature, attach
from tests.contracts.quantizer import snapshot, start_on, waves

pytestmark = pytest.mark.compiled

KINDS = {
    "soft": SoftVQ,
    "soft mean": partial(SoftVQ, forward_value="soft"),
    "soft two temperatures": partial(SoftVQ, temperature=Temperature(gradient=2.5)),
    "hard gradient": partial(HardVQ, codebook="gradient"),
    "hard ema": partial(HardVQ, codebook="ema"),
    "hard rotation": partial(HardVQ, codebook="ema", estimator="rotation"),
}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(params=list(KINDS))
def vq(request):
    return start_on(KINDS[request.param](64, 8), waves(512, 8))


@pytest.fixture
def counter():
    return torch._dynamo.testing.CompileCounterWithBackend("eager")


def step(model, z, **options):
    out = model(z, **options)
    (out.quantized.square().mean() + out.loss).backward()
    return out


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_one_graph_without_breaks(vq, counter, training, masked):
    compiled = torch.compile(vq.train(training), backend=counter, fullgraph=True)
    z, mask = waves(4, 16, 8), (waves(4, 16) > -0.5 if masked else None)
    expected = vq(z, mask=mask)
    out = compiled(z, mask=mask)
    assert counter.frame_count == 1
    assert torch.equal(out.indices, expected.indices)
    torch.testing.assert_close(out.quantized, expected.quantized)
    torch.testing.assert_close(out.loss, expected.loss)
    torch.testing.assert_close(dict(out.stats), dict(expected.stats))


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_batch_sizes_share_their_graphs(vq, counter, training):
    """16 rows an entry: 8 to 32 entries are on both sides of where back ends change."""
    compiled = torch.compile(vq.train(training), backend=counter, fullgraph=True)
    for size in (8, 16, 24, 32):
        z = waves(size, 16, 8).requires_grad_(training)
        out = compiled(z)
        if training:
            (out.quantized.square().mean() + out.loss).backward()
            vq.update_()
    assert counter.frame_count <= 2


def test_a_new_temperature_is_no_new_graph(counter):
    schedule = Temperature(gradient=(2.0, 0.5), anneal_steps=20)
    vq = start_on(SoftVQ(64, 8, temperature=schedule), waves(512, 8))
    compiled = torch.compile(vq, backend=counter, fullgraph=True)
    levels = set()
    for _ in range(20):
        step(compiled, waves(64, 8))
        vq.update_()
        levels.add(vq.temperature.item())
    assert len(levels) > 10
    assert counter.frame_count == 1


def test_accumulation_needs_few_graphs(counter):
    vq = start_on(SoftVQ(64, 8), waves(512, 8))
    compiled = torch.compile(vq, backend=counter, fullgraph=True)
    for _ in range(3):
        for _ in range(4):
            step(compiled, waves(64, 8))
        vq.update_()
    assert counter.frame_count <= 2
    assert vq.updates.item() == 4


def train_five(model, *, through, phase=0.0):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    attach(model, optimizer)
    indices = []
    for count in range(5):
        optimizer.zero_grad()
        indices.append(step(through, waves(128, 8, phase=phase + count)).indices)
        optimizer.step()
    return torch.stack(indices)


@pytest.mark.parametrize(
    ("name", "backend"),
    [("soft", "inductor"), ("hard ema", "aot_eager"), ("hard gradient", "aot_eager")],
)
def test_training_is_what_it_is_without_a_compiler(name, backend):
    """Forward and backward, once with the real compiler: equal indices, codes close."""
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(nn.Sequential(nn.Linear(8, 8), start_on(KINDS[name](32, 8), waves(512, 8))))
    plain, other = models
    expected = train_five(plain, through=plain)
    actual = train_five(other, through=torch.compile(other, backend=backend, fullgraph=True))
    assert torch.equal(actual, expected)
    after, before = snapshot(other), snapshot(plain)
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)
    assert other[1].updates.item() == 6


# Dynamo looks at .grad of what enters the graph after the start, and hides what torch says.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_the_first_pass_may_be_compiled_too():
    """It starts on data, outside of any graph."""
    vq = SoftVQ(32, 8).train()
    plain = SoftVQ(32, 8).train()
    out = torch.compile(vq, backend="eager")(waves(256, 8))
    assert vq.is_started
    assert torch.equal(out.indices, plain(waves(256, 8)).indices)


def test_checkpointing_inside_a_graph_counts_once():
    vq = start_on(SoftVQ(32, 8), waves(256, 8))
    encoder = nn.Linear(8, 8)

    def body(x):
        out = vq(encoder(x))
        return out.quantized.square().mean() + out.loss

    def run(x):
        return torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False)

    torch.compile(run, backend="aot_eager")(waves(64, 8)).backward()
    assert int(vq._tally.counts.sum()) == 64


class Encode(nn.Module):
    def __init__(self, vq):
        super().__init__()
        self.vq = vq

    def forward(self, z):
        return self.vq(z).indices


class Decode(nn.Module):
    def __init__(self, vq):
        super().__init__()
        self.vq = vq

    def forward(self, indices):
        return self.vq.codes(indices)


@pytest.mark.parametrize("name", ["soft", "hard ema"])
@pytest.mark.parametrize("part", [Encode, Decode])
def test_eval_modules_export_with_any_batch(name, part):
    """Case 24, on both sides of where back ends change."""
    vq = start_on(KINDS[name](64, 8), waves(512, 8)).eval()
    model = part(vq)
    inputs = {
        size: waves(size, 16, 8)
        if part is Encode
        else torch.arange(size * 16).reshape(size, 16) % 64
        for size in (1, 3, 7, 100)
    }
    batch = torch.export.Dim("batch", min=1)
    exported = torch.export.export(model, (inputs[3],), dynamic_shapes=({0: batch},)).module()
    results = {size: exported(each) for size, each in inputs.items()}
    differing = [size for size in inputs if not torch.equal(results[size], model(inputs[size]))]
    assert differing == []
