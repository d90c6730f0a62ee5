"""Sequences with masks: means over what is kept, and windows that do not see the padding.

B batch, N tokens, M windows, D features.
"""

from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from softvq.functional.precision import at_least_float32


class Windows(NamedTuple):
    """A mean a window, and whether it holds anything."""

    means: Float[Tensor, "b m d"]
    mask: Bool[Tensor, "b m"]


def masked_mean(
    values: Float[Tensor, "*batch n d"], mask: Bool[Tensor, "*batch n"] | None
) -> Float[Tensor, "*batch d"]:
    """Mean over the kept entries of the axis before the last; zeros where none is kept.

    Args:
        values: Tokens; what the mask drops, NaN included, reaches nothing.
        mask: True keeps a token; None keeps all.

    Returns:
        Means in float32 at least.

    Example:
        >>> masked_mean(torch.tensor([[1.0], [9.0]]), torch.tensor([True, False])).item()
        1.0
    """
    values = at_least_float32(values)
    if mask is None:
        return values.sum(-2) / max(values.shape[-2], 1)
    kept = torch.where(mask[..., None], values, 0).sum(-2)
    return kept / mask.sum(-1, keepdim=True).clamp_min(1)


def window_means(
    tokens: Float[Tensor, "b n d"], mask: Bool[Tensor, "b n"] | None, *, window: int
) -> Windows:
    """Means over windows of ``window`` kept tokens each.

    Kept tokens are first brought together in their order, so that padding at either end, or holes,
    change no window. The last window of a sequence may be short: it is the mean of what it has.

    Args:
        tokens: Tokens.
        mask: True keeps a token; None keeps all.
        window: Tokens a window, at least 1.

    Returns:
        ceil(N / window) means in float32 at least, zeros and False where a window is empty.

    Example:
        >>> tokens = torch.tensor([[[9.0], [1.0], [3.0], [7.0]]])
        >>> out = window_means(tokens, torch.tensor([[False, True, True, True]]), window=2)
        >>> out.means.flatten().tolist(), out.mask.tolist()
        ([2.0, 7.0], [[True, True]])
    """
    if mask is None:
        mask = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
    order = torch.argsort((~mask).to(torch.uint8), dim=1, stable=True)
    mask = mask.gather(1, order)
    tokens = tokens.gather(1, order[..., None].expand_as(tokens))
    missing = -tokens.shape[1] % window
    tokens = torch.nn.functional.pad(tokens, (0, 0, 0, missing))
    mask = torch.nn.functional.pad(mask, (0, missing))
    parts = rearrange(tokens, "b (m w) d -> b m w d", w=window)
    kept = rearrange(mask, "b (m w) -> b m w", w=window)
    return Windows(masked_mean(parts, kept), kept.any(-1))
