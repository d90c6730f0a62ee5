"""Soft targets: the nearest codes of a row and their weights, for generators that learn from both.

Shape letters: N rows, D features, K codes, m codes kept.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softvq.checks import check_count, check_number

DISTANCES_AT_ONCE = 2**22
"""Bounds the memory: 16 MiB of float32."""


@dataclass(frozen=True, kw_only=True)
class SoftTargets:
    """How many codes of a token are kept, and how soft their weights are.

    Attributes:
        top: m, codes a token.
        temperature: T in units of squared distance; None takes the quantizer's own.
    """

    top: int = 8
    temperature: float | None = None

    def __post_init__(self) -> None:
        check_count("top", self.top)
        if self.temperature is not None:
            check_number("temperature", self.temperature, above=0)


class TopCodes(NamedTuple):
    """Codes of each row, the assigned one first, then by falling weight."""

    indices: Int[Tensor, "n m"]
    weights: Float[Tensor, "n m"]
    """Of the softmax over all K codes: what a row lacks of 1 lies on the codes left out."""


@torch.no_grad()
def top_codes(
    rows: Float[Tensor, "n d"],
    codebook: Float[Tensor, "k d"],
    *,
    assigned: Int[Tensor, " n"],
    soft: SoftTargets,
) -> TopCodes:
    """The m codes of the largest weights softmax(-|z - p|^2 / T).

    Args:
        rows: Latent vectors.
        codebook: Codes.
        assigned: The hard index of each row. It comes first even where rounding or a tie puts
            another code level with it.
        soft: m and T; T must be a number here.

    Returns:
        Indices int64 and weights float32.

    Raises:
        ValueError: If m exceeds K.

    Example:
        >>> rows, codebook = torch.zeros(1, 1), torch.tensor([[0.0], [1.0], [9.0]])
        >>> soft = SoftTargets(top=2, temperature=1.0)
        >>> got = top_codes(rows, codebook, assigned=torch.tensor([0]), soft=soft)
        >>> got.indices.tolist(), [round(weight, 4) for weight in got.weights[0].tolist()]
        ([[0, 1]], [0.7311, 0.2689])
    """
    if soft.top > len(codebook):
        raise ValueError(f"top is {soft.top}; the codebook has {len(codebook)} codes.")
    assert soft.temperature is not None, "the caller has filled in the quantizer's temperature"
    # About the codes' mean, so that an offset of the data costs no digits.
    centre = codebook.float().mean(0)
    codes = codebook.float() - centre
    squares = codes.square().sum(1)
    parts = []
    chunk = max(1, DISTANCES_AT_ONCE // len(codebook))
    for some, first in zip(rows.split(chunk), assigned.split(chunk), strict=True):
        logits = (2 * (some.float() - centre) @ codes.mT - squares) / soft.temperature
        parts.append(_pick(logits, first.to(rows.device)[:, None], top=soft.top))
    return TopCodes(
        torch.cat([part.indices for part in parts]).cpu(),
        torch.cat([part.weights for part in parts]).cpu(),
    )


def _pick(logits: Tensor, assigned: Tensor, *, top: int) -> TopCodes:
    ranked = logits.scatter(1, assigned, torch.inf)
    indices = ranked.topk(top, dim=1).indices
    weights = (logits.gather(1, indices) - logits.logsumexp(1, keepdim=True)).exp()
    return TopCodes(indices, weights)
