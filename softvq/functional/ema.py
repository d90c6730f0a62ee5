"""Exponential moving averages of a codebook, in float32 at least."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

IDLE = 1e-5


class CodebookAverages(NamedTuple):
    """Averages of rows per code (K,) and of their sums (K, D)."""

    counts: Tensor
    sums: Tensor


def update_averages(
    averages: CodebookAverages,
    *,
    counts: Float[Tensor, " k"],
    sums: Float[Tensor, "k d"],
    decay: float,
) -> CodebookAverages:
    """N <- decay n + (1 - decay) counts, and the same for the sums.

    A code without rows keeps its place, since both decay alike; its averages stop at 1e-5 of a row,
    before the ratio of two vanishing numbers would lose it.

    Args:
        averages: The averages so far.
        counts: Rows per code in this step, over all processes.
        sums: Their sums.
        decay: In [0, 1).

    Returns:
        New averages; the code of row k is ``sums[k] / counts[k]``.

    Example:
        >>> old = CodebookAverages(torch.ones(1), torch.ones(1, 1))
        >>> sums = torch.full((1, 1), 3.0)
        >>> new = update_averages(old, counts=torch.ones(1), sums=sums, decay=0.5)
        >>> codes_from_averages(new).item()
        2.0
    """
    new = CodebookAverages(
        averages.counts.lerp(counts.to(averages.counts.dtype), 1 - decay),
        averages.sums.lerp(sums.to(averages.sums.dtype), 1 - decay),
    )
    idle = (new.counts < IDLE) & (counts == 0)
    return CodebookAverages(
        torch.where(idle, averages.counts, new.counts),
        torch.where(idle[:, None], averages.sums, new.sums),
    )


def codes_from_averages(averages: CodebookAverages) -> Float[Tensor, "k d"]:
    """M / n; zeros for a code that never had a row.

    Args:
        averages: Averages of counts and sums.

    Returns:
        Codes.

    Example:
        >>> codes_from_averages(CodebookAverages(torch.tensor([2.0]), torch.tensor([[4.0]]))).item()
        2.0
    """
    return averages.sums / averages.counts.clamp_min(torch.finfo(torch.float32).tiny)[:, None]
