"""The share of each prototype in every token of an input, and in the whole of it.

B batch, N tokens, D features, H heads, K prototypes.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from softvq.functional.windows import masked_mean
from softvq.nn.readout import DDCLAttention, DDCLReadout


class Shares(NamedTuple):
    """How much of each token, and of each input, belongs to each prototype."""

    tokens: Float[Tensor, "b h n k"]
    """Sums to one over K for kept tokens, zeros for others."""
    total: Float[Tensor, "b h k"]
    """Mean over the kept tokens."""


@torch.no_grad()
def explain_shares(
    layer: DDCLAttention | DDCLReadout,
    tokens: Float[Tensor, "b n d"],
    *,
    mask: Bool[Tensor, "b n"] | None = None,
) -> Shares:
    """Ask a layer what it sees, without a trace in its training state.

    Args:
        layer: Holds the prototypes; it is read in eval mode and left in the mode that it had.
        tokens: Tokens.
        mask: True keeps a token.

    Returns:
        The shares.

    Raises:
        ValueError: For tokens or a mask that do not fit the layer.

    Example:
        >>> shares = explain_shares(DDCLReadout(8, 4), torch.zeros(2, 5, 8))
        >>> shares.tokens.shape, shares.total.shape
        (torch.Size([2, 1, 5, 4]), torch.Size([2, 1, 4]))
    """
    heads = layer.prototypes
    training = heads.training
    try:
        weights = heads.eval()(tokens, mask=mask).assignment
    finally:
        heads.train(training)
    keep = None if mask is None else mask[:, None].expand(weights.shape[:3])
    return Shares(weights, masked_mean(weights, keep))
