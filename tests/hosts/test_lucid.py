"""`VectorQuantize` of vector-quantize-pytorch in its settings, alone and in a residual stack."""

import copy

import pytest
import torch
from torch import nn
from vector_quantize_pytorch import ResidualVQ, VectorQuantize

from softvq import attach, restore, swap
from tests.hosts.contract import (
    COOL,
    check_restore,
    check_swap,
    equal_trees,
    run_without_softvq,
    train_swapped,
)
from tests.hosts.kinds import Autoencoder, data

LOAD = """
import sys, torch
from vector_quantize_pytorch import VectorQuantize
host = VectorQuantize(8, 16, codebook_dim=4)
host.load_state_dict(torch.load(sys.argv[1], weights_only=True), strict=True)
z, *out = torch.load(sys.argv[2], weights_only=True)
with torch.no_grad():
    again = host.eval()(z)
assert all(torch.equal(a, b) for a, b in zip(again, out, strict=True))
"""

SETTINGS = {
    "plain": {},
    "image maps": {"accept_image_fmap": True},
    "channels first": {"channel_last": False},
    "cosine": {"use_cosine_sim": True},
    "heads": {"heads": 2, "codebook_dim": 4},
    "separate heads": {"heads": 2, "codebook_dim": 4, "separate_codebook_per_head": True},
    "projection": {"codebook_dim": 4},
    "cosine heads projected": {"use_cosine_sim": True, "heads": 2, "codebook_dim": 3},
    "learned": {"learnable_codebook": True, "ema_update": False},
    "rotation off": {"rotation_trick": False},
}


def make(name):
    torch.manual_seed(0)
    host = VectorQuantize(8, 16, **SETTINGS[name])
    return Autoencoder(host, first=name in ("image maps", "channels first"), dim=8)


def batch(name):
    return data(grid=(4, 5) if name == "image maps" else (20,))


def input_of(model, name):
    z = model.encoder(batch(name)).detach()
    return z.movedim(-1, 1).contiguous() if model.first else z


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_swaps_trains_and_comes_back(name):
    model, untouched = make(name).eval(), make(name)
    z = input_of(model, name)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    check_swap(model, quantizer=lambda m: m.quantize, z=z)

    def loss_of_batch(model):
        x = batch(name)
        out, loss = model(x)
        return (out - x).square().mean() + (loss if model.training else 0)

    before, after = train_swapped(model, loss_of_batch, optimizer=optimizer)
    assert after < before
    check_restore(model, untouched, quantizer=lambda m: m.quantize, z=z)


def test_methods_go_on_working():
    model = make("heads")
    swap(model, temperature=COOL)
    model.eval()
    quantized, found, _ = model.quantize(input_of(model, "heads"))
    codes = model.quantize.get_codes_from_indices(found)
    assert torch.equal(codes.flatten(-2), quantized)
    assert model.quantize.codebook.shape == (16, 4)


def test_cosine_codes_stay_on_the_sphere():
    model = make("cosine")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-1)
    swap(model, temperature=COOL)
    attach(model, optimizer)
    for _ in range(3):
        out, loss = model(batch("cosine"))
        optimizer.zero_grad()
        (out.square().mean() + loss).backward()
        optimizer.step()
    norms = model.quantize.codebook.norm(dim=-1)
    torch.testing.assert_close(norms, torch.ones_like(norms))


def test_masks_and_lengths_in_training():
    model = make("projection")
    z = input_of(model, "projection")
    swap(model, temperature=COOL)
    mask = torch.arange(20) < torch.arange(5, 13)[:, None]
    poisoned = torch.where(mask[..., None], z, torch.nan)
    quantized, found, loss = copy.deepcopy(model.quantize)(z, mask=mask)
    assert torch.equal(found >= 0, mask)
    assert not quantized[~mask].any()
    by_length = copy.deepcopy(model.quantize)(z, lens=torch.arange(5, 13))
    assert torch.equal(by_length[1], found)
    other = copy.deepcopy(model.quantize)(poisoned, mask=mask)
    assert torch.equal(other[2], loss)


def test_a_frozen_codebook_gets_no_gradient_and_no_update():
    model = make("plain")
    z = input_of(model, "plain").requires_grad_()
    swap(model, temperature=COOL)
    quantized, _, loss = model.quantize(z, freeze_codebook=True)
    (quantized.square().mean() + loss).backward()
    assert model.quantize._codebook.embed.grad is None
    assert z.grad.any()
    assert not model.quantize.softvq[0]._tally


def test_a_breakdown_of_the_loss_has_the_hosts_form():
    model = make("plain")
    z = input_of(model, "plain")
    expected = copy.deepcopy(model.quantize)(z, return_loss_breakdown=True)[3]
    swap(model, temperature=COOL)
    *_, loss, terms = model.quantize(z, return_loss_breakdown=True)
    assert type(terms) is type(expected)
    assert torch.equal(terms.commitment, loss)


STACKS = {
    "plain": {},
    "sizes": {"codebook_size": (16, 8, 4)},
    "projected": {"codebook_dim": 4},
    "one codebook": {"shared_codebook": True},
    "learned": {"learnable_codebook": True, "ema_update": False},
    "k-means": {"kmeans_init": True},
}


def make_stack(**options):
    torch.manual_seed(0)
    model = Autoencoder(nn.Identity(), first=False, dim=8)
    sizes = {"dim": 8, "num_quantizers": 3, "codebook_size": 16}
    model.quantize = ResidualVQ(**{**sizes, **options}).eval()
    return model


@pytest.mark.filterwarnings("ignore:The temperature hit a bound")
@pytest.mark.parametrize("name", STACKS)
def test_a_residual_stack_is_swapped_as_one(name):
    model = make_stack(**STACKS[name])
    host, untouched = model.quantize, copy.deepcopy(model.quantize)
    z = input_of(model, "plain").detach()
    if name == "k-means":
        with torch.no_grad():
            host.train()(z)
        host.eval()
    before = host(z)
    report = swap(model, temperature=COOL)
    assert [each.name for each in report.swapped] == ["quantize"]
    assert "residual stack of 3 stages" in report.swapped[0].family
    assert len(host.softvq) == (1 if name == "one codebook" else 3)
    assert equal_trees(host(z), before)
    leaf = z.clone().requires_grad_()
    quantized, found, losses = host.train()(leaf)
    assert (quantized.shape, found.shape, losses.shape) == (z.shape, (8, 20, 3), (3,))
    (quantized.square().mean() + losses.sum()).backward()
    assert leaf.grad.any()
    codes = host.eval().get_output_from_indices(found)
    torch.testing.assert_close(quantized, codes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first, last = train_swapped(model, loss_of_stack, optimizer=optimizer)
    assert last < first
    hard = host.eval()(z)
    restore(model)
    assert equal_trees(host(z), hard)
    assert list(host.state_dict()) == list(untouched.state_dict())
    untouched.load_state_dict(host.state_dict(), strict=True)
    assert equal_trees(untouched.eval()(z), hard)


def loss_of_stack(model):
    x = data(grid=(20,))
    quantized, _, losses = model.quantize(model.encoder(x))
    return (model.decoder(quantized) - x).square().mean() + losses.sum() * model.training


def test_a_masked_stack_leaves_the_padding_alone():
    model = make_stack()
    host, z = model.quantize, input_of(model, "plain").detach()
    mask = torch.arange(20) < torch.tensor([20, 3, 1, 0, 7, 9, 20, 2])[:, None]
    swap(model, temperature=COOL)
    for training in (True, False):
        quantized, found, _ = host.train(training)(z, mask=mask)
        assert not quantized[~mask].any()
        assert torch.equal(found >= 0, mask[..., None].expand(-1, -1, 3))
    junk = torch.where(mask[..., None], z, torch.nan)
    clean, dirty = host.train()(z, mask=mask), host(junk, mask=mask)
    assert torch.equal(clean[2], dirty[2])


def test_a_frozen_call_of_a_stack_trains_no_code():
    model = make_stack()
    host, z = model.quantize, input_of(model, "plain").detach()
    swap(model, temperature=COOL)
    host.train()(z)
    quantized, _, losses = host(z.requires_grad_(), freeze_codebook=True)
    (quantized.square().mean() + losses.sum()).backward()
    grads = [each._codebook.embed.grad for each in host.layers]
    assert not any(grad is not None and grad.any() for grad in grads)


@pytest.mark.parametrize(
    "options",
    [{"use_cosine_sim": True}, {"quantize_dropout": True}],
    ids=["cosine", "dropout"],
)
def test_a_stack_with_a_rule_of_its_own_is_swapped_stage_by_stage(options):
    model = make_stack(**options)
    report = swap(model, temperature=COOL)
    assert [each.name for each in report.swapped] == [f"quantize.layers.{i}" for i in range(3)]


def test_stages_are_swapped_one_by_one_where_that_is_asked_for():
    model = make_stack()
    host, z = model.quantize, input_of(model, "plain")
    before = host(z)
    report = swap(model, temperature=COOL, only=lambda name: "layers." in name)
    assert [each.name for each in report.swapped] == [f"quantize.layers.{i}" for i in range(3)]
    assert equal_trees(host(z), before)
    quantized, found, losses = host.train()(z)
    assert (quantized.shape, found.shape, losses.shape) == (z.shape, (8, 20, 3), (3,))


def test_a_saved_host_needs_no_softvq(tmp_path):
    torch.manual_seed(0)
    host = VectorQuantize(8, 16, codebook_dim=4)
    z = torch.randn(2, 5, 8)
    swap(host, temperature=COOL)
    host(z)
    restore(host)
    torch.save(host.state_dict(), tmp_path / "host.pt")
    with torch.no_grad():
        torch.save([z, *host.eval()(z)], tmp_path / "out.pt")
    run_without_softvq(LOAD, tmp_path / "host.pt", tmp_path / "out.pt")


@pytest.mark.bad_input
def test_an_option_that_has_no_meaning_is_refused():
    model = make("plain")
    swap(model, temperature=COOL)
    with pytest.raises(ValueError, match=r"sample_codebook_temp=0\.5 cannot be honoured"):
        model.quantize(input_of(model, "plain"), sample_codebook_temp=0.5)


@pytest.mark.bad_input
def test_affine_codes_are_refused():
    host = VectorQuantize(8, 16, affine_param=True)
    host(torch.randn(2, 5, 8))
    with pytest.raises(ValueError, match=r"VectorQuantize\): returns family C"):
        swap(host)
