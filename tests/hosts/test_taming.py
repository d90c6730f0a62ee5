"""Quantizers of taming-transformers, where its package is at hand."""

import copy

import pytest
import torch

from softvq import attach, swap
from tests.hosts.contract import COOL, check_restore, check_swap, train_swapped
from tests.hosts.kinds import Autoencoder, data

quantize = pytest.importorskip(
    "taming.modules.vqvae.quantize",
    reason="taming-transformers-rom1504 is not installed (it wants pytorch-lightning)",
)


def make(kind):
    torch.manual_seed(0)
    options = {"sane_index_shape": True, "legacy": False} if kind == "sane" else {}
    name = "VectorQuantizer" if kind == "first" else "VectorQuantizer2"
    return Autoencoder(getattr(quantize, name)(32, 4, 0.25, **options), first=True)


@pytest.mark.parametrize("kind", ["first", "second", "sane"])
def test_every_version(kind):
    model, untouched = make(kind).eval(), make(kind)
    z = model.encoder(data()).detach().movedim(-1, 1).contiguous()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    report = check_swap(model, quantizer=lambda m: m.quantize, z=z)
    legacy = any("legacy" in each for each in report.swapped[0].remarks)
    assert legacy == (kind != "sane")

    def loss_of_batch(model):
        x = data()
        out, loss = model(x)
        return (out - x).square().mean() + (loss if model.training else 0)

    before, after = train_swapped(model, loss_of_batch, optimizer=optimizer)
    assert after < before
    found = model.quantize(z)[2][2]
    entry = model.quantize.get_codebook_entry(found.reshape(-1), shape=(8, 4, 5, 4))
    torch.testing.assert_close(entry, model.quantize(z)[0])
    check_restore(model, untouched, quantizer=lambda m: m.quantize, z=z)


def test_the_keywords_of_the_interface_pass():
    model = make("second")
    swap(model, temperature=COOL)
    z = torch.randn(2, 4, 3, 5)
    out = model.quantize(z, temp=1.0, rescale_logits=False, return_logits=False)
    assert out[0].shape == z.shape


def test_an_optimizer_that_lists_the_modules():
    """As `configure_optimizers` of taming does, before the swap."""
    model = make("second")
    parts = (model.encoder, model.decoder, model.quantize)
    optimizer = torch.optim.Adam([p for part in parts for p in part.parameters()], lr=1e-3)
    swap(model, temperature=COOL)
    attach(model, optimizer)
    assert [len(group["params"]) for group in optimizer.param_groups] == [4, 1]
    assert copy.deepcopy(model)


@pytest.mark.bad_input
def test_gumbel_is_refused():
    with pytest.raises(ValueError, match=r"family A.*logits"):
        swap(quantize.GumbelQuantize(4, 4, 16))
