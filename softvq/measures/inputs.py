"""How pictures of any declared range become what an image net reads."""

import torch.nn.functional as F
from einops import repeat
from jaxtyping import Float
from torch import Tensor

from softvq.checks import check_floating

CHUNK_PIXELS = 2**18
"""Pixels that go through a net at once: 256 pictures of 32 x 32."""


def to_net_range(
    images: Float[Tensor, "b c h w"], *, low: float, high: float, resize: int | None = None
) -> Float[Tensor, "b 3 y x"]:
    """What these nets read: three channels in [-1, 1].

    Args:
        images: In [low, high], of 1 or 3 channels; grey is repeated.
        low: Low end of their range.
        high: High end.
        resize: Bring both sides to so many pixels, bilinear, antialiased where it shrinks.

    Returns:
        float32.

    Raises:
        ValueError: For another number of channels.

    Example:
        >>> import torch
        >>> to_net_range(torch.tensor([[[[0.0, 1.0]]]]), low=0.0, high=1.0)[0, :, 0].tolist()
        [[-1.0, 1.0], [-1.0, 1.0], [-1.0, 1.0]]
    """
    check_floating("images", images)
    if images.shape[1] not in (1, 3):
        raise ValueError(f"images must have 1 or 3 channels; got shape {tuple(images.shape)}.")
    # About the center: exact at both ends, and for pictures that are in [-1, 1] already.
    scaled = (images.float() - (low + high) / 2) / ((high - low) / 2)
    if images.shape[1] == 1:
        scaled = repeat(scaled, "b 1 h w -> b c h w", c=3)
    if resize is None or images.shape[-2:] == (resize, resize):
        return scaled
    return F.interpolate(scaled, size=(resize, resize), mode="bilinear", antialias=True)


def split_batch(images: Float[Tensor, "b c h w"], *, side: int | None) -> list[Tensor]:
    """Parts of a batch that a net takes at once without much memory.

    Args:
        images: The batch.
        side: Side that the net will see; None where it sees the pictures' own.

    Example:
        >>> import torch
        >>> [len(part) for part in split_batch(torch.zeros(600, 1, 32, 32), side=None)]
        [256, 256, 88]
    """
    pixels = images.shape[-2] * images.shape[-1] if side is None else side**2
    return list(images.split(max(1, CHUNK_PIXELS // max(pixels, 1))))


def describe_resize(resize: int | None) -> str:
    """How a report names a change of size.

    Example:
        >>> describe_resize(64), describe_resize(None)
        ('64 x 64 bilinear', 'none')
    """
    return "none" if resize is None else f"{resize} x {resize} bilinear"
