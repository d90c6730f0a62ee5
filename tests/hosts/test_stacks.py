"""Hosts of several quantizers: an audio codec's stages, and the two levels of VQ-VAE-2."""

import copy
import pickle

import pytest
import torch
from torch import nn

from softvq import SoftVQ, restore, swap
from softvq.nn import ResidualVQ
from tests.hosts.contract import COOL, equal_trees, train_swapped
from tests.hosts.kinds import AudioStack, D, K, TwoLevels


def sounds():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(4, D, 40, generator=generator)


@pytest.fixture
def stack():
    torch.manual_seed(0)
    return AudioStack().eval()


@pytest.mark.parametrize("forward_value", ["hard", "soft", "blurred"])
@pytest.mark.parametrize("n_q", [None, 2])
def test_an_audio_codec_trains_as_a_residual_vq(stack, forward_value, n_q):
    """The swapped host answers what `ResidualVQ` of the same codes answers."""
    z = sounds()
    before = stack(z, n_q=n_q)
    report = swap(stack, temperature=COOL, forward_value=forward_value)
    assert [each.name for each in report.swapped] == [""]
    assert "residual stack of 3 stages" in str(report)
    assert equal_trees(stack(z, n_q=n_q), before)
    stack.train()
    options = {"temperature": COOL, "forward_value": forward_value}
    stages = [SoftVQ(K, D, **options) for _ in range(n_q or 3)]
    for stage, core, layer in zip(stages, stack.softvq, stack.layers, strict=False):
        core.start_(z.movedim(1, -1))
        stage.load_state_dict({**core.state_dict(), "codebook": layer._codebook.embed.detach()})
    ours = ResidualVQ(stages, layout="channels_first")
    host_in, our_in = z.clone().requires_grad_(), z.clone().requires_grad_()
    quantized, indices, losses = stack(host_in, n_q=n_q)
    out = ours(our_in)
    assert torch.equal(indices.movedim(0, -1), out.indices)
    assert losses.shape == (n_q or 3, 1)
    torch.testing.assert_close(quantized, out.quantized)
    torch.testing.assert_close(losses.sum(), out.loss)
    (quantized.square().sum() + losses.sum()).backward()
    (out.quantized.square().sum() + out.loss).backward()
    torch.testing.assert_close(host_in.grad, our_in.grad)
    grads = [layer._codebook.embed.grad for layer in stack.layers[: n_q or 3]]
    assert all(grad.any() for grad in grads)


def autoencoder(stack):
    encoder, decoder = nn.Conv1d(1, D, 4, stride=4), nn.ConvTranspose1d(D, 1, 4, stride=4)
    model = nn.ModuleDict({"encoder": encoder, "stack": stack, "decoder": decoder})
    x = torch.sin(torch.arange(640.0) ** 1.3 / 40).reshape(4, 1, 160)

    def loss_of(model):
        quantized, _, losses = model["stack"](model["encoder"](x))
        return (model["decoder"](quantized) - x).square().mean() + losses.sum() * model.training

    return model, x, loss_of


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "by stage"])
def test_an_audio_codec_with_fewer_stages_and_back(stack, whole):
    untouched = copy.deepcopy(stack)
    model, x, loss_of = autoencoder(stack)
    only = None if whole else lambda name: "layers." in name
    report = swap(model, temperature=COOL, codes="restart", only=only)
    names = ["stack"] if whole else [f"stack.layers.{i}" for i in range(3)]
    assert [each.name for each in report.swapped] == names
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    before, after = train_swapped(model, loss_of, optimizer=optimizer)
    assert after < before
    model.eval()
    z = model["encoder"](x).detach()
    expected = [model["stack"](z, n_q=n) for n in (1, 3)]
    assert restore(model) == names
    assert type(model["stack"]) is AudioStack
    assert list(model["stack"].state_dict()) == list(untouched.state_dict())
    assert not list(model["stack"].parameters())
    untouched.load_state_dict(model["stack"].state_dict())
    for n, each in zip((1, 3), expected, strict=True):
        assert equal_trees(untouched(z, n_q=n), each)
    for layer in untouched.layers:
        held = layer._codebook
        torch.testing.assert_close(held.embed_avg / held.cluster_size[:, None], held.embed)


def test_a_swapped_stack_is_copied_pickled_and_loads_what_was_before(stack):
    before = copy.deepcopy(stack.state_dict())
    z = sounds()
    swap(stack, temperature=COOL)
    stack.train()(z)
    twins = [copy.deepcopy(stack), pickle.loads(pickle.dumps(stack))]
    for twin in twins:
        assert equal_trees(twin.eval()(z), stack.eval()(z))
        assert twin.softvq[1].parameter is twin.layers[1]._codebook.embed
        twin.load_state_dict(before, strict=True)
        twin.train()(z)


class OwnRule(AudioStack):
    """Not the sum of what its stages give."""

    def forward(self, z, n_q=None):
        total, indices, losses = super().forward(z, n_q)
        return 0.5 * total, indices, losses


class Dropping(AudioStack):
    quantize_dropout = True


@pytest.mark.parametrize("kind", [OwnRule, Dropping])
def test_what_is_no_plain_stack_is_swapped_by_stage(kind):
    torch.manual_seed(0)
    report = swap(kind().eval(), temperature=COOL)
    assert [each.name for each in report.swapped] == [f"layers.{i}" for i in range(3)]


@pytest.mark.bad_input
@pytest.mark.parametrize("n_q", [0, 4, 1.5, True])
def test_a_number_of_stages_that_there_is_not_is_refused(stack, n_q):
    swap(stack, temperature=COOL)
    with pytest.raises(ValueError, match=r"n_q must be a number of stages, 1 to 3; got"):
        stack.train()(sounds(), n_q=n_q)


def test_two_levels_are_two_quantizers():
    torch.manual_seed(0)
    model = TwoLevels().eval()
    images = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    before = model.encode(images)
    report = swap(model, temperature=COOL, codes="restart")
    assert {each.name for each in report.swapped} == {"quantize_t", "quantize_b"}
    assert equal_trees(model.encode(images), before)

    def loss_of(model):
        out, diff = model(images)
        return (out - images).square().mean() + diff * model.training

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    first, last = train_swapped(model, loss_of, optimizer=optimizer)
    assert last < first
    model.eval()
    hard = model.encode(images)
    assert sorted(restore(model)) == ["quantize_b", "quantize_t"]
    assert equal_trees(model.encode(images), hard)
