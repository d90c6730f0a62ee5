"""The exact split of the soft distortion into a residual and a spread."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from softvq.types import SoftCodes


class Split(NamedTuple):
    """L_q = OLS + V, a row each."""

    ols: Float[Tensor, "*batch n"]
    spread: Float[Tensor, "*batch n"]
    distortion: Float[Tensor, "*batch n"]


def decompose(z: Float[Tensor, "*batch n d"], codes: SoftCodes) -> Split:
    """Split sum_k q_nk |z_n - p_k|^2 into |z_n - mean_n|^2 and the codes' spread about the mean.

    The bias-variance identity, true for any weights on the simplex (DDCL, arXiv 2604.01740). Sums
    over features; rows that a mask dropped hold zeros in ``codes.mean`` and should not be read.

    Args:
        z: Rows.
        codes: Their soft assignment, with or without a leading axis of temperatures.

    Returns:
        Residual, spread, and their sum.

    Example:
        >>> import torch
        >>> from softvq.functional.assign import soft_assign
        >>> z, codebook = torch.tensor([[0.0]]), torch.tensor([[-1.0], [1.0]])
        >>> split = decompose(z, soft_assign(z, codebook, temperature=1.0))
        >>> split.ols.item(), split.spread.item(), split.distortion.item()
        (0.0, 1.0, 1.0)
    """
    ols = (z.to(codes.mean.dtype) - codes.mean).square().sum(-1)
    return Split(ols, codes.spread, ols + codes.spread)
