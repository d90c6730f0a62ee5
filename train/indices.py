"""Quantizers that give a vector several indices, seen as the comparison needs them.

Whatever shows one code of a vector shows the first: of residual stages the coarsest.
"""

import itertools
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


def codes_per_index(quantizer: Any) -> tuple[int, ...]:  # noqa: ANN401 - softvq's or a peer's
    """K of each index of a vector.

    Example:
        >>> from softvq import HardVQ
        >>> codes_per_index(HardVQ(8, 4))
        (8,)
    """
    return getattr(quantizer, "codes_per_index", (quantizer.num_codes,))


def split_indices(indices: Int[Tensor, "b gh gw ..."]) -> list[Int[Tensor, "b gh gw"]]:
    """The indices of a grid, one tensor for each index of a vector.

    Example:
        >>> [each.shape for each in split_indices(torch.zeros(2, 8, 8, 3, dtype=torch.int64))][0]
        torch.Size([2, 8, 8])
    """
    return list(indices.reshape(*indices.shape[:3], -1).unbind(-1))


def first_codebook(quantizer: Any) -> Float[Tensor, "k d"]:  # noqa: ANN401
    """The codes (K, D) of the first index.

    Example:
        >>> from softvq import HardVQ
        >>> first_codebook(HardVQ(8, 4)).shape
        torch.Size([8, 4])
    """
    if hasattr(quantizer, "codebook"):
        return quantizer.codebook.detach()
    num = codes_per_index(quantizer)[0]
    device = next(itertools.chain(quantizer.parameters(), quantizer.buffers())).device
    indices = torch.arange(num, device=device)
    # One number a vector, or the first of several.
    return quantizer.codes(indices[:, None] if quantizer.index_tail else indices).detach()
