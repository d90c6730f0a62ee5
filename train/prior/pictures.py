"""Sampled tokens as pictures: decoded in batches, laid out in a grid, written as a PNG.

Shape letters: B items, C channels, H height, W width.
"""

from pathlib import Path

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int, UInt8
from PIL import Image
from torch import Tensor

from softvq.checks import check_count
from softvq.export import Codebook
from softvq.export.source import take_codebook
from softvq.files import replacing
from softvq.models import VQVAE
from train.prior.vocabulary import Vocabulary

BATCH = 250
GAP = 2
WHITE = 255


def check_tokenizer(vocabulary: Vocabulary, model: VQVAE | Codebook) -> None:
    """Raise unless a model's codes are those that a prior has learned.

    Args:
        vocabulary: Of the prior.
        model: The tokenizer, or its codebook.

    Raises:
        ValueError: With both digests.
    """
    held = model if isinstance(model, Codebook) else take_codebook(model)
    if held.digest != vocabulary.codebook_digest:
        raise ValueError(
            f"tokenizer has codes of digest {held.digest}; the prior learned tokens of a codebook "
            f"of digest {vocabulary.codebook_digest}. Give the model that made them."
        )


@torch.no_grad()
def decode(
    tokens: Int[Tensor, "b gh gw"], model: VQVAE, *, size: tuple[int, int] | None = None
) -> Float[Tensor, "b c h w"]:
    """Pictures of codes, a batch at a time.

    Args:
        tokens: As `train.prior.sampling.sample` gives them.
        model: The tokenizer, in eval mode.
        size: To crop to.

    Returns:
        In [-1, 1] but for what the decoder oversteps, on the CPU.
    """
    device = next(model.parameters()).device
    parts = [model.decode(part.to(device), size=size).cpu() for part in tokens.split(BATCH)]
    return torch.cat(parts).float()


def lay_out(
    pictures: UInt8[Tensor, "b c h w"], *, columns: int, scale: int = 2
) -> UInt8[Tensor, "y x 3"]:
    """Pictures row by row on white, enlarged without smoothing.

    Args:
        pictures: Bytes.
        columns: Pictures in a row; empty places of the last row stay white.
        scale: Pixels for a pixel.

    Example:
        >>> lay_out(torch.zeros(3, 1, 4, 4, dtype=torch.uint8), columns=2, scale=1).shape
        torch.Size([10, 10, 3])
    """
    check_count("columns", columns)
    count, channels, height, width = pictures.shape
    large = repeat(pictures, "b c h w -> b c (h i) (w j)", i=scale, j=scale)
    rows = -(-count // columns)
    tiles = large.new_full((rows * columns, 3, height * scale + GAP, width * scale + GAP), WHITE)
    tiles[:count, :, :-GAP, :-GAP] = large.expand(-1, 3, -1, -1) if channels == 1 else large
    grid = rearrange(tiles, "(r k) c h w -> (r h) (k w) c", k=columns)
    return grid[:-GAP, :-GAP]


def write_png(pixels: UInt8[Tensor, "y x 3"], path: Path | str) -> Path:
    """Write a picture, whole or not at all.

    Args:
        pixels: Bytes, on the CPU.
        path: The file.

    Returns:
        The path.
    """
    path = Path(path)
    with replacing(path) as beside:
        Image.fromarray(pixels.contiguous().numpy()).save(beside, format="PNG", optimize=True)
    return path
