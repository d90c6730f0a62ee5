"""Exponential moving averages of a codebook, in float32 at least."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


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

    Args:
        averages: The averages so far.
        counts: Rows per code in this step, over all processes.
        sums: Their sums.
        decay: In [0, 1).

    Returns:
        New averages; the code of row k is ``sums[k] / counts[k]``.

    Example:
        >>> import torch
        >>> old = CodebookAverages(torch.ones(1), torch.ones(1, 1))
        >>> sums = torch.full((1, 1), 3.0)
        >>> new = update_averages(old, counts=torch.ones(1), sums=sums, decay=0.5)
        >>> codes_from_averages(new).item()
        2.0
    """
    return CodebookAverages(
        averages.counts.lerp(counts.to(averages.counts.dtype), 1 - decay),
        averages.sums.lerp(sums.to(averages.sums.dtype), 1 - decay),
    )


def codes_from_averages(averages: CodebookAverages, *, eps: float = 1e-5) -> Float[Tensor, "k d"]:
    """M / n; a code whose average count fell under ``eps`` of a row keeps its direction and size.

    Counts and sums of an idle code decay alike, so their ratio holds until both reach zero; the
    floor only guards that end.

    Args:
        averages: Averages of counts and sums.
        eps: Floor of the counts.

    Returns:
        Codes.

    Example:
        >>> import torch
        >>> codes_from_averages(CodebookAverages(torch.tensor([2.0]), torch.tensor([[4.0]]))).item()
        2.0
    """
    return averages.sums / averages.counts.clamp_min(eps)[:, None]
