"""`VQModel` of diffusers: quantizes inside decode, saves and loads by its own methods."""

import copy

import torch

from tests.hosts.contract import check_restore, check_swap, run_without_softvq, train_swapped

LOAD = """
import warnings; warnings.simplefilter("ignore")
import sys, torch
from diffusers import VQModel
model = VQModel.from_pretrained(sys.argv[1]).eval()
with torch.no_grad():
    out = model(torch.load(sys.argv[2], weights_only=True)).sample
assert torch.equal(out, torch.load(sys.argv[3], weights_only=True))
"""


def images():
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(4, 3, 2, 2, generator=generator).repeat_interleave(8, 2).repeat_interleave(8, 3)
    )


def loss_of_batch(model):
    x = images()
    out = model(x)
    loss = (out.sample - x).square().mean()
    return loss + out.commit_loss if model.training else loss


def test_a_vqmodel_is_swapped_trained_restored_saved_and_loaded(diffusers, tmp_path):
    torch.manual_seed(0)
    model = diffusers.VQModel(
        block_out_channels=(8, 8),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=4,
        num_vq_embeddings=32,
        latent_channels=4,
    ).eval()
    untouched = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with torch.no_grad():
        pictures = model(images()).sample
        z = model.encode(images()).latents
    report = check_swap(model, quantizer=lambda m: m.quantize, z=z)
    assert report.swapped[0].codebook == "quantize.embedding.weight"
    assert report.added_parameters == ()
    assert any("legacy beta" in each for each in report.swapped[0].remarks)
    with torch.no_grad():
        assert torch.equal(model(images()).sample, pictures)
    found = model.quantize(z)[2][2]
    entry = model.quantize.get_codebook_entry(found, (4, 8, 8, 4))
    torch.testing.assert_close(entry, model.quantize(z)[0])
    assert (model.quantize.n_e, model.quantize.vq_embed_dim) == (32, 4)
    before, after = train_swapped(model, loss_of_batch, optimizer=optimizer)
    assert after < before
    check_restore(model, untouched, quantizer=lambda m: m.quantize, z=z)
    model.save_pretrained(tmp_path / "model")
    torch.save(images(), tmp_path / "in.pt")
    with torch.no_grad():
        torch.save(model(images()).sample, tmp_path / "out.pt")
    run_without_softvq(LOAD, tmp_path / "model", tmp_path / "in.pt", tmp_path / "out.pt")


def test_positional_weight_averages_keep_working(diffusers):
    from diffusers.training_utils import EMAModel

    from softvq import restore, swap

    model = diffusers.VQModel(block_out_channels=(8,), norm_num_groups=4, num_vq_embeddings=32)
    averages = EMAModel(model.parameters())
    swap(model)
    averages.step(model.parameters())
    averages.copy_to(model.parameters())
    assert restore(model) == ["quantize"]
