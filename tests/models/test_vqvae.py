import re

import pytest
import torch
from einops import rearrange
from torch import nn
from torch.testing import assert_close

from softvq import HardVQ, QuantizerOutput, SoftVQ
from softvq.models import VQVAE, VQVAEConfig

# Height, width, downsampling, grid: multiples of the factor and not, smaller than it too.
GRIDS = [
    (32, 32, 4, (8, 8)),
    (32, 32, 8, (4, 4)),
    (32, 32, 16, (2, 2)),
    (32, 48, 4, (8, 12)),
    (48, 80, 8, (6, 10)),
    (48, 80, 16, (3, 5)),
    (30, 31, 4, (8, 8)),
    (30, 31, 8, (4, 4)),
    (30, 31, 16, (2, 2)),
    (1, 5, 8, (1, 1)),
]


@pytest.mark.parametrize("kind", ["soft", "hard"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_a_cast_model_decodes_its_indices(make_model, make_images, kind, dtype):
    """Averages of codes stay float32, the net does not."""
    model = make_model(kind).to(dtype).eval()
    images = make_images(2, 3, 16, 16).to(dtype)
    with torch.no_grad():
        assert torch.equal(model.decode(model.encode(images)), model(images).reconstruction)


@pytest.mark.parametrize("kind", ["soft", "hard"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("height", "width", "factor", "grid"), GRIDS, ids=str)
def test_shapes(make_model, make_images, kind, channels, height, width, factor, grid):
    model = make_model(kind, channels=channels, downsampling=factor).train()
    images = make_images(2, channels, height, width)
    reconstruction, out = model(images)
    assert reconstruction.shape == images.shape
    assert reconstruction.dtype == torch.float32
    assert out.quantized.shape == (2, 5, *grid)
    assert out.indices.shape == (2, *grid)
    assert out.indices.dtype == torch.int64


@pytest.mark.parametrize("kind", ["soft", "hard"])
@pytest.mark.parametrize(("height", "width", "factor", "grid"), GRIDS, ids=str)
def test_decoded_indices_are_the_reconstruction(
    make_model, make_images, kind, height, width, factor, grid
):
    model = make_model(kind, downsampling=factor)
    images = make_images(2, 3, height, width)
    model(images)
    model.eval()
    indices = model.encode(images)
    assert indices.shape == (2, *grid)
    assert indices.dtype == torch.int64
    with torch.no_grad():
        reconstruction, out = model(images)
        assert torch.equal(model.decode(indices, size=(height, width)), reconstruction)
        uncropped = model.decode(indices)
    assert torch.equal(indices, out.indices)
    assert uncropped.shape == (2, 3, factor * grid[0], factor * grid[1])
    assert torch.equal(uncropped[..., :height, :width], reconstruction)


def test_started_model_uses_several_codes(make_model, make_images):
    # Otherwise the exact round trips above would hold for any order of the grid.
    model = make_model(downsampling=8)
    images = make_images(2, 3, 48, 80)
    model(images)
    assert len(model.eval().encode(images).unique()) > 20


def test_padding_repeats_the_edge(make_model, make_images):
    model = make_model(downsampling=8).eval()
    images = make_images(1, 3, 30, 31)
    padded = torch.cat([images, images[:, :, -1:].expand(-1, -1, 2, -1)], dim=2)
    padded = torch.cat([padded, padded[..., -1:]], dim=3)
    assert padded.shape == (1, 3, 32, 32)
    assert torch.equal(model.latents(images), model.latents(padded))


def test_forward_leaves_the_images_as_they_are(make_model, make_images):
    images = make_images(1, 3, 30, 31)
    before = images.clone()
    make_model()(images)
    assert torch.equal(images, before)


def test_grid_is_read_row_by_row(make_model):
    """A grid forced to 0..59 flattens to 0..59, and comes back from its flat list and shape."""
    model = make_model(dim=5).eval()
    wanted = rearrange(torch.arange(60), "(h w) -> 1 h w", h=6)
    model.encoder = Fixed(
        rearrange(model.quantizer.codebook[wanted].detach(), "b h w d -> b d h w")
    )
    indices = model.encode(torch.zeros(1, 3, 48, 80))
    assert torch.equal(indices, wanted)
    flat = rearrange(indices, "b h w -> b (h w)")
    assert flat.tolist() == [list(range(60))]
    picture = model.decode(indices)
    assert picture.shape == (1, 3, 48, 80)
    assert torch.equal(model.decode(rearrange(flat, "b (h w) -> b h w", h=6)), picture)
    turned = model.decode(rearrange(flat, "b (h w) -> b h w", h=10))
    assert turned.shape == (1, 3, 80, 48)
    # Not the same picture on its side either.
    assert not torch.allclose(rearrange(turned, "b c h w -> b c w h"), picture)


class Fixed(nn.Module):
    """An encoder whose latents are given."""

    def __init__(self, latents):
        super().__init__()
        self.latents = latents

    def forward(self, images):
        return self.latents


@pytest.mark.parametrize("size", [32, 30], ids=["multiple", "padded"])
def test_no_images_give_no_images(make_model, size):
    model = make_model().eval()
    with torch.no_grad():
        reconstruction, out = model(torch.zeros(0, 3, size, size))
    assert reconstruction.shape == (0, 3, size, size)
    assert out.indices.shape == (0, 4, 4)
    assert model.decode(out.indices).shape == (0, 3, 32, 32)


def test_gradient_reaches_every_parameter(make_model, make_images):
    model = make_model().train()
    model.quantizer.schedule.warming.fill_(False)  # in the warm-up nothing is asked of the codes
    images = make_images(2, 3, 32, 48)
    reconstruction, out = model(images)
    ((reconstruction - images).square().mean() + out.loss).backward()
    assert [name for name, each in model.named_parameters() if not each.grad.any()] == []


def test_encode_in_eval_needs_no_no_grad(make_model, make_images):
    """Indices carry no gradient: no warning that none reaches the encoder (warnings are errors)."""
    model = make_model().eval()
    assert not model.encode(make_images(1, 3, 32, 32)).requires_grad


def test_any_quantizer_of_the_contract_fits(make_images):
    class Rounding(nn.Module):
        def forward(self, z):
            indices = (z[:, 0] > 0).long()
            return QuantizerOutput(self.codes(indices), indices, z.new_zeros(()), {})

        def codes(self, indices):
            return torch.stack([indices, 1 - indices], 1).float()

    model = VQVAE(Rounding(), VQVAEConfig(hidden=8, dim=2, residual_hidden=4, blocks=1)).eval()
    images = make_images(1, 3, 32, 48)
    assert torch.equal(model.decode(model.encode(images)), model(images).reconstruction)


def test_the_default_is_the_public_recipe():
    model = VQVAE(SoftVQ(512, 64, layout="channels_first"))
    assert model.encode(torch.zeros(1, 3, 32, 32)).shape == (1, 8, 8)
    assert model.encoder[0].weight.shape == (64, 3, 4, 4)
    assert model.encoder[2].weight.shape == (128, 64, 4, 4)
    assert len(model.encoder[5]) == 3  # two residual blocks and a ReLU
    assert model.encoder[5][0].body[1].weight.shape == (32, 128, 3, 3)


def test_reconstruction_is_not_clamped(make_model):
    model = make_model().eval()
    with torch.no_grad():
        model.decoder[-1].bias.fill_(3.0)
        assert model(torch.zeros(1, 3, 32, 32)).reconstruction.max() > 2


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channels": 2}, "channels must be 1 (grey) or 3 (RGB); got 2."),
        ({"downsampling": 2}, "downsampling must be 4, 8 or 16; got 2."),
        ({"hidden": 9}, "hidden must be even, as half of it is used; got 9."),
        ({"hidden": 0}, "hidden must be a whole number of at least 1; got 0."),
        ({"dim": 1.5}, "dim must be a whole number of at least 1; got 1.5."),
        ({"blocks": -1}, "blocks must be a whole number of at least 0; got -1."),
    ],
    ids=str,
)
def test_sizes_that_make_no_net_are_refused(options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        VQVAEConfig(**options)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("quantizer", "message"),
    [
        (HardVQ(8, 4, layout="channels_first"), "quantizer has dim=4, config has dim=64"),
        (HardVQ(8, 64), "quantizer has layout='channels_last'; a VQVAE needs"),
    ],
    ids=["dim", "layout"],
)
def test_a_quantizer_that_does_not_fit_is_refused(quantizer, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        VQVAE(quantizer)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("images", "message"),
    [
        (
            torch.zeros(1, 1, 32, 32),
            r"images must be (B, 3, H, W) with H and W at least 1; got (1,",
        ),
        (torch.zeros(3, 32, 32), r"images must be (B, 3, H, W) with H and W at least 1; got (3,"),
        (torch.zeros(1, 3, 0, 32), r"with H and W at least 1; got (1, 3, 0, 32)."),
        (torch.zeros(1, 32, 32, 3), r"images must be (B, 3, H, W)"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.uint8), "images must be a floating-point tensor"),
        ([[0.0]], "images must be a tensor; got list."),
    ],
    ids=["grey", "no batch", "no height", "channels last", "bytes", "list"],
)
@pytest.mark.parametrize("call", ["forward", "encode"])
def test_what_is_no_image_is_refused(make_model, call, images, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        getattr(make_model(), call)(images)


@pytest.mark.bad_input
@pytest.mark.parametrize("shape", [(60,), (1, 60), (1, 6, 10, 1)], ids=str)
def test_indices_that_are_no_grid_are_refused(make_model, shape):
    indices = torch.zeros(shape, dtype=torch.int64)
    with pytest.raises(
        ValueError, match=r"indices must be \(B, grid height, grid width\); got sha"
    ):
        make_model().decode(indices)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("index", "message"),
    [
        (64, "indices must lie in [0, 64), the codes of this codebook; got values from 0 to 64."),
        (-1, "indices must lie in [0, 64), the codes of this codebook; got values from -1 to 0."),
    ],
)
def test_indices_out_of_range_are_refused(make_model, index, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make_model().decode(torch.tensor([[[0, index]]]))


def test_cropped_decoding_is_a_part_of_the_whole(make_model):
    model = make_model().eval()
    indices = rearrange(torch.arange(8), "(b h w) -> b h w", b=1, h=2)
    assert_close(model.decode(indices, size=(13, 30)), model.decode(indices)[..., :13, :30])


class Encode(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images):
        return self.model.encode(images)


class Decode(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, indices):
        return self.model.decode(indices)


@pytest.mark.compiled
@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_encode_and_decode_export_with_any_batch_height_and_width(make_model, make_images, kind):
    model = make_model(kind, downsampling=4)
    model(make_images(2, 3, 16, 16))
    model.eval()
    batch, height, width = (torch.export.Dim(name, min=2) for name in ("batch", "height", "width"))
    to_tokens = torch.export.export(
        Encode(model),
        (make_images(3, 3, 24, 20),),
        dynamic_shapes=({0: batch, 2: 4 * height, 3: 4 * width},),
    ).module()
    to_images = torch.export.export(
        Decode(model),
        (torch.zeros(3, 6, 5, dtype=torch.int64),),
        dynamic_shapes=({0: batch, 1: height, 2: width},),
    ).module()
    for size in [(2, 8, 12), (5, 40, 8), (7, 64, 64)]:
        images = make_images(size[0], 3, *size[1:])
        tokens = to_tokens(images)
        assert torch.equal(tokens, model.encode(images))
        with torch.no_grad():
            assert_close(to_images(tokens), model.decode(tokens))
