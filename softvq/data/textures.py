"""Drawn pictures for where no photographs are at hand: waves, blobs, edges, gradients, checkers.

Every picture is two drawn layers, each in two colours of its own, on either side of a soft
border; so neighbouring patches differ within a picture and alike patches recur between pictures,
which is what a codebook can learn.

Shape letters: n pictures, c channels, h and w pixels, p parameters.
"""

import math

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from softvq.checks import check_count, choose
from softvq.data.images import TensorImages

SPLITS = ("train", "test")

# Pixels drawn at once: bounds the memory, not the result.
PIXELS_AT_ONCE = 2_000_000

KINDS = 5
BLOBS = 4
# Numbers a layer is drawn from: kind, angle, frequency, phase, two offsets; then a blob's centre
# and width; then two colours of three channels.
SHAPE_NUMBERS, BLOB_NUMBERS, COLOUR_NUMBERS = 6, 3 * BLOBS, 6
LAYER_NUMBERS = SHAPE_NUMBERS + BLOB_NUMBERS + COLOUR_NUMBERS
# Border between the layers: angle, offset, softness.
BORDER_NUMBERS = 3


def draw_textures(
    split: str,
    *,
    num_images: int = 2000,
    size: int = 32,
    channels: int = 3,
    seed: int = 0,
) -> TensorImages:
    """Return drawn pictures; the same arguments give the same pictures.

    The first n pictures of a longer draw are those of a shorter one, and ``channels`` does not
    change the shapes.

    Args:
        split: "train" or "test": different random streams, so no picture is in both.
        num_images: How many.
        size: Height and width in pixels.
        channels: 1 (grey) or 3 (RGB).
        seed: Which draw, from 0.

    Returns:
        uint8 pictures with keys "train/00017" and no labels.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> images = draw_textures("train", num_images=10, size=16)
        >>> images.name, images.batch(torch.arange(10)).shape
        ('textures (drawn, not photographs) train', torch.Size([10, 3, 16, 16]))
    """
    choose("split", split, SPLITS)
    check_count("num_images", num_images)
    check_count("size", size)
    check_count("seed", seed, least=0)
    if channels not in (1, 3):
        raise ValueError(f"channels must be 1 (grey) or 3 (RGB); got {channels!r}.")
    # Even seeds for train and odd ones for test: no two draws share a stream.
    generator = torch.Generator().manual_seed(2 * seed + SPLITS.index(split))
    numbers = torch.rand(num_images, 2 * LAYER_NUMBERS + BORDER_NUMBERS, generator=generator)
    images = torch.empty(num_images, channels, size, size, dtype=torch.uint8)
    for rows in torch.arange(num_images).split(max(1, PIXELS_AT_ONCE // size**2)):
        images[rows] = (_draw(numbers[rows], size=size, channels=channels) * 255).round().byte()
    keys = [f"{split}/{i:05d}" for i in range(num_images)]
    return TensorImages(images, name=f"textures (drawn, not photographs) {split}", keys=keys)


def _draw(numbers: Float[Tensor, "n p"], *, size: int, channels: int) -> Float[Tensor, "n c h w"]:
    """Draw one picture a row of uniform numbers; values in [0, 1]."""
    # Pixel centres in [-1, 1].
    line = (torch.arange(size) + 0.5) * (2 / size) - 1
    y, x = rearrange(line, "h -> 1 h 1"), rearrange(line, "w -> 1 1 w")
    first, second, border = numbers.split([LAYER_NUMBERS, LAYER_NUMBERS, BORDER_NUMBERS], dim=1)
    below = _layer(first, x, y, channels=channels)
    above = _layer(second, x, y, channels=channels)
    angle, offset, softness = _columns(border)
    along = torch.cos(2 * math.pi * angle) * x + torch.sin(2 * math.pi * angle) * y
    mask = torch.sigmoid((along - (offset - 0.5)) / (0.02 + 0.2 * softness))
    return below + rearrange(mask, "n h w -> n 1 h w") * (above - below)


def _layer(
    numbers: Float[Tensor, "n p"],
    x: Float[Tensor, "1 1 w"],
    y: Float[Tensor, "1 h 1"],
    *,
    channels: int,
) -> Float[Tensor, "n c h w"]:
    shape, blobs, colours = numbers.split([SHAPE_NUMBERS, BLOB_NUMBERS, COLOUR_NUMBERS], dim=1)
    height = _heights(shape, blobs, x, y)
    ends = rearrange(colours, "n (end c) -> end n c 1 1", end=2)[:, :, :channels]
    return ends[0] + rearrange(height, "n h w -> n 1 h w") * (ends[1] - ends[0])


def _heights(
    shape: Float[Tensor, "n p"],
    blobs: Float[Tensor, "n q"],
    x: Float[Tensor, "1 1 w"],
    y: Float[Tensor, "1 h 1"],
) -> Float[Tensor, "n h w"]:
    """Draw each layer's height in [0, 1], by the kind that its first number chooses."""
    kinds = _kinds(shape)
    heights = torch.empty(len(shape), y.shape[1], x.shape[2])
    for kind in range(KINDS):
        rows = (kinds == kind).nonzero().flatten()
        _, angle, frequency, phase, left, top = _columns(shape[rows])
        cosine, sine = torch.cos(2 * math.pi * angle), torch.sin(2 * math.pi * angle)
        along = cosine * x + sine * y
        across = cosine * y - sine * x
        # One to eight periods a picture, evenly on a logarithmic scale.
        wave = math.pi * 8**frequency
        if kind == 0:
            heights[rows] = 0.5 + 0.5 * torch.sin(wave * along + 2 * math.pi * phase)
        elif kind == 1:
            heights[rows] = _blobs(blobs[rows], x, y)
        elif kind == 2:
            heights[rows] = torch.sigmoid((along - (left - 0.5)) * (4 + 60 * frequency))
        elif kind == 3:
            heights[rows] = (0.5 + 0.35 * along + (top - 0.5) * across**2).clamp(0, 1)
        else:
            start = 2 * math.pi * phase
            product = torch.sin(wave * along + start) * torch.sin(wave * across + start)
            # Steep, not a step: a step would make stairs of slanted sides.
            heights[rows] = torch.sigmoid(12 * product)
    return heights


def _kinds(shape: Float[Tensor, "n p"]) -> Int[Tensor, " n"]:
    return (shape[:, 0] * KINDS).long().clamp(max=KINDS - 1)


def _blobs(
    numbers: Float[Tensor, "n q"], x: Float[Tensor, "1 1 w"], y: Float[Tensor, "1 h 1"]
) -> Float[Tensor, "n h w"]:
    """Draw the union of round spots with soft rims."""
    rest = torch.ones(())
    for blob in numbers.split(3, dim=1):
        left, top, width = _columns(blob)
        squared = (x - (2 * left - 1)) ** 2 + (y - (2 * top - 1)) ** 2
        rest = rest * (1 - torch.exp(-squared / (0.05 + 0.3 * width) ** 2))
    return 1 - rest


def _columns(numbers: Float[Tensor, "n p"]) -> tuple[Tensor, ...]:
    """Split columns, each shaped to meet the pixel grid."""
    return rearrange(numbers, "n p -> p n 1 1").unbind()
