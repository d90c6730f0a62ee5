"""Chameleon's VQ-VAE and EnCodec's codec modules, from transformers, at tiny sizes."""

import copy

import pytest
import torch

from softvq import restore, swap
from tests.hosts.contract import (
    COOL,
    check_restore,
    check_swap,
    run_without_softvq,
    train_swapped,
)

LOAD_CHAMELEON = """
import warnings; warnings.simplefilter("ignore")
import sys, torch
from transformers.models.chameleon.modeling_chameleon import ChameleonVQVAE
model = ChameleonVQVAE.from_pretrained(sys.argv[1]).eval()
with torch.no_grad():
    out = model.encode(torch.load(sys.argv[2], weights_only=True)).quantized_last_hidden_state
assert torch.equal(out, torch.load(sys.argv[3], weights_only=True))
"""

LOAD_ENCODEC = """
import warnings; warnings.simplefilter("ignore")
import sys, torch
from transformers import EncodecModel
model = EncodecModel.from_pretrained(sys.argv[1]).eval()
with torch.no_grad():
    out = model(torch.load(sys.argv[2], weights_only=True)).audio_values
assert torch.equal(out, torch.load(sys.argv[3], weights_only=True))
"""


def images():
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def loss_with(decoder):
    def loss_of_batch(model):
        quantized, loss, _ = model.quantize(model.quant_conv(model.encoder(images())))
        error = (decoder(quantized) - images()).square().mean()
        return error + loss if model.training else error

    return loss_of_batch


def test_chameleon(transformers, tmp_path):
    from transformers.models.chameleon.modeling_chameleon import ChameleonVQVAE

    torch.manual_seed(0)
    config = transformers.ChameleonVQVAEConfig(
        embed_dim=4,
        num_embeddings=32,
        latent_channels=8,
        resolution=8,
        base_channels=32,
        channel_multiplier=[1, 1],
        num_res_blocks=1,
        attn_type="none",
    )
    model = ChameleonVQVAE(config)
    with torch.no_grad():
        z = model.quant_conv(model.encoder(images()))
        # Codes among the rows, as of a trained host; the port ends before a decoder.
        model.quantize.embedding.weight.copy_(z.movedim(1, -1).reshape(-1, 4)[:32])
    untouched = copy.deepcopy(model)
    decoder = torch.nn.ConvTranspose2d(4, 3, 2, stride=2)
    parameters = [*model.parameters(), *decoder.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=3e-3)
    report = check_swap(model, quantizer=lambda m: m.quantize, z=z)
    assert report.swapped[0].family.startswith("D")
    before, after = train_swapped(model, loss_with(decoder), optimizer=optimizer)
    assert after < before
    check_restore(model, untouched, quantizer=lambda m: m.quantize, z=z)
    model.save_pretrained(tmp_path / "model")
    torch.save(images(), tmp_path / "in.pt")
    with torch.no_grad():
        torch.save(model.encode(images()).quantized_last_hidden_state, tmp_path / "out.pt")
    run_without_softvq(LOAD_CHAMELEON, tmp_path / "model", tmp_path / "in.pt", tmp_path / "out.pt")


@pytest.fixture
def encodec(transformers):
    torch.manual_seed(0)
    config = transformers.EncodecConfig(
        num_filters=4,
        hidden_size=8,
        codebook_dim=8,
        codebook_size=32,
        upsampling_ratios=[2, 2],
        num_lstm_layers=1,
        num_residual_layers=1,
        target_bandwidths=[60.0],  # two quantizers
        sampling_rate=24000,
    )
    model = transformers.EncodecModel(config).eval()
    with torch.no_grad():
        rest = model.encoder(sound())
        for layer in model.quantizer.layers:
            layer.codebook.embed.copy_(rest.movedim(1, -1).reshape(-1, 8)[:32])
            rest = rest - layer.decode(layer.encode(rest))
    return model


def sound():
    return torch.randn(2, 1, 256, generator=torch.Generator().manual_seed(0))


def residual_loss(model):
    """The loop that a user of the port writes: each stage on what the last one left."""
    latent = rest = model.encoder(sound())
    total = 0.0
    for layer in model.quantizer.layers:
        quantized, _, loss = layer(rest)
        total = total + (loss if model.training else 0)
        rest = rest - quantized
    return total + (model.decoder(latent - rest) - sound()).square().mean()


@pytest.mark.filterwarnings("ignore:The temperature hit a bound")  # an encoder of small outputs
def test_encodec_by_quantizer(encodec, tmp_path):
    model, untouched = encodec, copy.deepcopy(encodec)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with torch.no_grad():
        codes, sounds = model.encode(sound()).audio_codes, model(sound()).audio_values
    report = swap(model, temperature=COOL, only=lambda name: "layers." in name)
    assert [each.name for each in report.swapped] == ["quantizer.layers.0", "quantizer.layers.1"]
    with torch.no_grad():
        assert torch.equal(model.encode(sound()).audio_codes, codes)
        assert torch.equal(model(sound()).audio_values, sounds)
    model.load_state_dict(untouched.state_dict(), strict=True)
    before, after = train_swapped(model, residual_loss, optimizer=optimizer)
    assert after < before
    model.eval()
    with torch.no_grad():
        sounds = model(sound()).audio_values
    restore(model)
    with torch.no_grad():
        assert torch.equal(model(sound()).audio_values, sounds)
    assert list(model.state_dict()) == list(untouched.state_dict())
    assert not list(model.quantizer.parameters())
    layer = model.quantizer.layers[0].codebook
    torch.testing.assert_close(layer.embed_avg / layer.cluster_size[:, None], layer.embed)
    model.save_pretrained(tmp_path / "model")
    torch.save(sound(), tmp_path / "in.pt")
    torch.save(sounds, tmp_path / "out.pt")
    run_without_softvq(LOAD_ENCODEC, tmp_path / "model", tmp_path / "in.pt", tmp_path / "out.pt")


def stack_loss(model):
    """The loop that a user of the port writes who swaps its whole stack."""
    quantized, _, loss = model.quantizer(model.encoder(sound()))
    error = (model.decoder(quantized) - sound()).square().mean()
    return error + loss if model.training else error


@pytest.mark.filterwarnings("ignore:The temperature hit a bound")
def test_encodec_as_one_stack(encodec):
    model, untouched = encodec, copy.deepcopy(encodec)
    with torch.no_grad():
        codes, sounds = model.encode(sound()).audio_codes, model(sound()).audio_values
    report = swap(model, temperature=COOL)
    assert [each.name for each in report.swapped] == ["quantizer"]
    with torch.no_grad():
        assert torch.equal(model.encode(sound()).audio_codes, codes)
        assert torch.equal(model(sound()).audio_values, sounds)
    model.load_state_dict(untouched.state_dict(), strict=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    before, after = train_swapped(model, stack_loss, optimizer=optimizer)
    assert after < before
    model.eval()
    with torch.no_grad():
        sounds = model(sound()).audio_values
        restore(model)
        assert torch.equal(model(sound()).audio_values, sounds)
        untouched.load_state_dict(model.state_dict(), strict=True)
        assert torch.equal(untouched(sound()).audio_values, sounds)
    assert list(model.state_dict()) == list(untouched.state_dict())


@pytest.mark.bad_input
def test_dac_is_refused_by_name(transformers):
    from transformers.models.dac.modeling_dac import DacVectorQuantize

    host = DacVectorQuantize(transformers.DacConfig(codebook_dim=4, hidden_size=8))
    with pytest.raises(ValueError, match=r"DacVectorQuantize\): returns family G \(DAC\)"):
        swap(host)
