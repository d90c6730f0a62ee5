import pytest
import torch
from torch import nn
from torch.testing import assert_close

from softvq.models.blocks import Residual, decoder, encoder, residual_stack

SIZES = {"hidden": 8, "residual_hidden": 4, "blocks": 2}


@pytest.mark.parametrize("halvings", [2, 3, 4])
@pytest.mark.parametrize("channels", [1, 3])
def test_encoder_halves_and_decoder_doubles(channels, halvings):
    images = torch.zeros(2, channels, 32, 48)
    latents = encoder(channels, 5, halvings=halvings, **SIZES)(images)
    assert latents.shape == (2, 5, 32 >> halvings, 48 >> halvings)
    assert decoder(channels, 5, halvings=halvings, **SIZES)(latents).shape == images.shape


def test_residual_block_is_its_formula():
    torch.manual_seed(0)
    block = Residual(3, 2)
    x = torch.linspace(-1, 1, 3 * 4 * 5).reshape(1, 3, 4, 5)
    wide, narrow = (layer for layer in block.body if isinstance(layer, nn.Conv2d))
    inner = nn.functional.conv2d(x.clamp(min=0), wide.weight, wide.bias, padding=1)
    change = nn.functional.conv2d(inner.clamp(min=0), narrow.weight, narrow.bias)
    assert_close(block(x), x + change)


def test_a_block_leaves_its_input_as_it_is():
    x = torch.linspace(-1, 1, 3 * 4 * 5).reshape(1, 3, 4, 5)
    before = x.clone()
    Residual(3, 2)(x)
    assert torch.equal(x, before)


def test_a_stack_without_blocks_is_a_relu():
    x = torch.linspace(-1, 1, 3 * 4 * 5).reshape(1, 3, 4, 5)
    assert_close(residual_stack(3, 2, 0)(x), x.clamp(min=0))


def test_pictures_may_be_negative():
    torch.manual_seed(0)
    pictures = decoder(3, 5, halvings=2, **SIZES)(torch.ones(1, 5, 4, 4))
    assert pictures.min() < 0 < pictures.max()


def test_latents_may_be_negative():
    torch.manual_seed(0)
    latents = encoder(3, 5, halvings=2, **SIZES)(torch.ones(1, 3, 16, 16))
    assert latents.min() < 0 < latents.max()
