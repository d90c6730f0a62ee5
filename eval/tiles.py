"""Test pictures side by side: what went in, what came out by hard and by soft codes, and the rest.

Shape letters: P pictures, C channels, H height, W width.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from einops import rearrange
from jaxtyping import UInt8
from torch import Tensor

from eval.results import Results

MOST_PIXELS = 2**17
GAIN = 2


class Tile(NamedTuple):
    """One method: its label, strips of pictures (RGB, H x PW x 3) and PSNR of each picture in dB.

    ``soft`` and ``psnr_soft`` are None for a method without soft weights.
    """

    name: str
    label: str
    hard: Tensor
    soft: Tensor | None
    residual: Tensor
    psnr_hard: list[float]
    psnr_soft: list[float] | None


class Tiles(NamedTuple):
    """The pictures that went in, as a strip, how many, their sizes, and a tile a method."""

    inputs: Tensor
    num_pictures: int
    height: int
    width: int
    methods: list[Tile]


def make_tiles(results: Results, pictures: Mapping[str, Tensor]) -> Tiles:
    """Return the tiles of every method that has pictures.

    Args:
        results: A whole comparison, for the order and labels of methods.
        pictures: As `eval.pictures.load_pictures` gives them.

    Returns:
        Fewer pictures where they are large, so that the page stays small.

    Example:
        >>> import torch
        >>> tiles = make_tiles({"methods": {}}, {"inputs": torch.zeros(3, 1, 4, 4).byte()})
        >>> tiles.num_pictures, tiles.inputs.shape
        (3, torch.Size([4, 12, 3]))
    """
    inputs = pictures["inputs"]
    height, width = inputs.shape[-2:]
    count = min(len(inputs), max(2, MOST_PIXELS // (height * width)))
    inputs = inputs[:count]
    methods = []
    for name, method in results["methods"].items():
        if f"{name}/hard" not in pictures:
            continue
        hard, soft = pictures[f"{name}/hard"][:count], pictures.get(f"{name}/soft")
        soft = None if soft is None else soft[:count]
        methods.append(
            Tile(
                name,
                method["label"],
                hard=join_row(hard),
                soft=None if soft is None else join_row(soft),
                residual=join_row(find_residual(inputs, hard)),
                psnr_hard=find_psnr(inputs, hard),
                psnr_soft=None if soft is None else find_psnr(inputs, soft),
            )
        )
    return Tiles(join_row(inputs), count, height, width, methods)


def find_residual(
    inputs: UInt8[Tensor, "p c h w"], outputs: UInt8[Tensor, "p c h w"]
) -> UInt8[Tensor, "p c h w"]:
    """Return output minus input, `GAIN` times, about middle grey.

    Example:
        >>> import torch
        >>> find_residual(torch.full((1, 1, 1, 1), 9).byte(), torch.full((1, 1, 1, 1), 5).byte())
        tensor([[[[120]]]], dtype=torch.uint8)
    """
    difference = outputs.short() - inputs.short()
    return (128 + GAIN * difference).clamp(0, 255).byte()


def find_psnr(inputs: UInt8[Tensor, "p c h w"], outputs: UInt8[Tensor, "p c h w"]) -> list[float]:
    """Return the PSNR of each picture, of bytes, in dB; infinite where they are equal.

    Example:
        >>> import torch
        >>> find_psnr(torch.zeros(1, 1, 1, 2).byte(), torch.tensor([[[[0, 255]]]]).byte())
        [3.010299956639812]
    """
    errors = (outputs.double() - inputs.double()).square().flatten(1).mean(1)
    return [10 * math.log10(255**2 / error) if error else math.inf for error in errors.tolist()]


def join_row(pictures: UInt8[Tensor, "p c h w"]) -> UInt8[Tensor, "h w2 3"]:
    """Return the pictures in one row, grey as colour.

    Example:
        >>> import torch
        >>> join_row(torch.zeros(3, 1, 4, 5).byte()).shape
        torch.Size([4, 15, 3])
    """
    return rearrange(pictures.expand(-1, 3, -1, -1), "p c h w -> h (p w) c")
