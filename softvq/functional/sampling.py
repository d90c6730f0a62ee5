"""Codes drawn at random by their soft weights, without a buffer of rows by codes."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softvq.functional.distances import squared_distances
from softvq.functional.precision import without_autocast

BLOCK = 2**21


def draw_codes(
    z: Float[Tensor, "n d"],
    codebook: Float[Tensor, "k d"],
    *,
    temperature: Float[Tensor, ""] | float,
    generator: torch.Generator,
    mask: Bool[Tensor, " n"] | None = None,
) -> Int[Tensor, " n"]:
    """One code of each row, drawn with probability softmax(-|z - p|^2 / T).

    By the Gumbel-max trick (Gumbel, 1954): the largest of logits plus Gumbel noise is such a draw.
    Rows are taken in blocks, so that no more than a block of logits exists.

    Args:
        z: Rows.
        codebook: Codes.
        temperature: T > 0.
        generator: Source of randomness, on the device of ``z``; the same seed draws the same.
        mask: True keeps a row; dropped rows get -1.

    Returns:
        int64 indices. No gradient.

    Raises:
        ValueError: For a generator on another device.

    Example:
        >>> codes = torch.tensor([[0.0], [1.0]])
        >>> g = torch.Generator().manual_seed(0)
        >>> draw_codes(codes, codes, temperature=1e-3, generator=g).tolist()
        [0, 1]
    """
    if generator.device.type != z.device.type:
        raise ValueError(
            f"generator is on {generator.device}, z on {z.device}: make it with "
            f"torch.Generator({str(z.device)!r})."
        )
    rows, codes = z.detach(), codebook.detach()
    drawn = [
        _draw(block, codes, temperature, generator)
        for block in rows.split(max(1, BLOCK // len(codes)))
    ]
    indices = torch.cat(drawn)
    return indices if mask is None else torch.where(mask, indices, -1)


def _draw(
    rows: Tensor, codes: Tensor, temperature: Tensor | float, generator: torch.Generator
) -> Tensor:
    with without_autocast(rows):
        distances = squared_distances(rows, codes)
    waits = torch.empty_like(distances).exponential_(generator=generator)
    # The least of waiting times with rates exp(-d / T), by their logarithms.
    return (waits.log() + distances / temperature).argmin(-1)
