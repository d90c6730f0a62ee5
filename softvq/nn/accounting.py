"""What an arrangement costs: bits of a token and of an item, as named and as used."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Integer
from torch import Tensor

from softvq.checks import check_count
from softvq.functional.assign import count_codes
from softvq.nn.arrangement import AnyQuantizer
from softvq.nn.layout import check_range, check_whole
from softvq.nn.parts import check_quantizer, numbers_of


class Bits(NamedTuple):
    """Bits of a quantizer's answers."""

    codes: tuple[int, ...]
    """K of each index of a token."""
    per_index: tuple[float, ...]
    """log2 K of each."""
    per_token: float
    """Their sum: what a token costs where all names of an index have one length."""
    per_item: float
    """Of all tokens of an item."""
    entropy_per_index: tuple[float, ...] | None
    """Bits at the frequencies that were counted, for each index by itself; None without any."""
    entropy_per_token: float | None
    """Their sum: what a coder of each index by itself needs; one that sees them all needs less."""
    entropy_per_item: float | None
    """Of all tokens of an item."""


def measure_bits(
    vq: AnyQuantizer, *, positions: int = 1, indices: Integer[Tensor, "..."] | None = None
) -> Bits:
    """Bits of a token and an item.

    Args:
        vq: Any quantizer of softvq.
        positions: Tokens of an item: 64 for a grid of 8 x 8.
        indices: Some that it gave, (..., *index_tail), to count how often each is used; -1 counts
            nowhere.

    Returns:
        Bits, and their entropy where there are indices.

    Raises:
        ValueError: For what is no quantizer, positions that are no count, or indices that are not
            of this quantizer.

    Example:
        >>> from softvq.nn.hard import HardVQ
        >>> from softvq.nn.residual import ResidualVQ
        >>> vq = ResidualVQ([HardVQ(1024, 4) for _ in range(4)])
        >>> bits = measure_bits(vq, positions=64)
        >>> bits.per_token, bits.per_item
        (40.0, 2560.0)
    """
    check_count("positions", positions)
    tail, codes, _ = numbers_of(check_quantizer("vq", vq))
    per_index = tuple(math.log2(num) for num in codes)
    entropies = None if indices is None else _entropies(indices, tail, codes)
    total = None if entropies is None else math.fsum(entropies)
    return Bits(
        codes,
        per_index,
        math.fsum(per_index),
        math.fsum(per_index) * positions,
        entropies,
        total,
        None if total is None else total * positions,
    )


def entropy_bits(counts: Tensor) -> float:
    """Entropy in bits of the shares of counts; 0 where there are none.

    Example:
        >>> entropy_bits(torch.tensor([2, 0, 2]))
        1.0
    """
    share = counts.double() / counts.sum().clamp_min(1)
    return float(torch.special.entr(share).sum() / math.log(2))


def _entropies(indices: Tensor, tail: tuple[int, ...], codes: tuple[int, ...]) -> tuple[float, ...]:
    check_whole(indices)
    places = indices.ndim - len(tail)
    if places < 0 or tuple(indices.shape[places:]) != tail:
        raise ValueError(
            f"indices must end in {tail}, the indices of one token; got shape "
            f"{tuple(indices.shape)}."
        )
    flat = indices.reshape(-1, len(codes)).long()
    for each, num in zip(flat.unbind(-1), codes, strict=True):
        check_range(each, num_codes=num, least=-1)
    return tuple(
        entropy_bits(count_codes(each, num_codes=num))
        for each, num in zip(flat.unbind(-1), codes, strict=True)
    )
