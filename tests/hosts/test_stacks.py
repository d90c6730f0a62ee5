"""Hosts of several quantizers: an audio codec's stages, and the two levels of VQ-VAE-2."""

import copy
import dataclasses

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


def test_an_audio_codec_trains_as_a_residual_vq(stack):
    """Stage by stage the swapped host answers what `ResidualVQ` of the same codes answers."""
    z = sounds()
    before = stack(z)
    swap(stack, temperature=COOL, forward_value="blurred")
    assert equal_trees(stack(z), before)
    stack.train()
    cool = dataclasses.replace(COOL, warmup_share=0.0)
    stages = [SoftVQ(K, D, temperature=cool, forward_value="hard") for _ in stack.layers]
    for stage, layer in zip(stages, stack.layers, strict=True):
        layer.softvq[0].start_(z.movedim(1, -1))
        state = {**layer.softvq[0].state_dict(), "codebook": layer._codebook.embed.detach()}
        stage.load_state_dict(state)
    ours = ResidualVQ(stages, layout="channels_first")
    host_in, our_in = z.clone().requires_grad_(), z.clone().requires_grad_()
    quantized, indices, losses = stack(host_in)
    out = ours(our_in)
    assert torch.equal(indices.movedim(0, -1), out.indices)
    torch.testing.assert_close(quantized, out.quantized)
    torch.testing.assert_close(losses.sum(), out.loss)
    (quantized.square().sum() + losses.sum()).backward()
    (out.quantized.square().sum() + out.loss).backward()
    torch.testing.assert_close(host_in.grad, our_in.grad)
    assert all(layer._codebook.embed.grad.any() for layer in stack.layers)


def test_an_audio_codec_with_fewer_stages_and_back(stack):
    untouched = copy.deepcopy(stack)
    encoder, decoder = nn.Conv1d(1, D, 4, stride=4), nn.ConvTranspose1d(D, 1, 4, stride=4)
    model = nn.ModuleDict({"encoder": encoder, "stack": stack, "decoder": decoder})
    x = torch.sin(torch.arange(640.0) ** 1.3 / 40).reshape(4, 1, 160)
    report = swap(model, temperature=COOL, codes="restart")
    assert [each.name for each in report.swapped] == [f"stack.layers.{i}" for i in range(3)]

    def loss_of(model):
        quantized, _, losses = model["stack"](model["encoder"](x))
        return (model["decoder"](quantized) - x).square().mean() + losses.sum() * model.training

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    before, after = train_swapped(model, loss_of, optimizer=optimizer)
    assert after < before
    model.eval()
    z = model["encoder"](x).detach()
    expected = [model["stack"](z, n_q=n) for n in (1, 3)]
    restore(model)
    untouched.load_state_dict(model["stack"].state_dict())
    for n, each in zip((1, 3), expected, strict=True):
        assert equal_trees(untouched(z, n_q=n), each)


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
