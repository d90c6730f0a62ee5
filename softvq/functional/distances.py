"""Squared distances, dense, for small problems: diagnostics, starts and temperature solves."""

import torch
from jaxtyping import Float
from torch import Tensor

from softvq.functional.precision import without_autocast


def squared_distances(
    z: Float[Tensor, "n d"], codebook: Float[Tensor, "k d"]
) -> Float[Tensor, "n k"]:
    """|z_n - p_k|^2 for all pairs, taken about the codebook's mean: offsets cost no digits.

    Args:
        z: Rows.
        codebook: Codes.

    Returns:
        N x K distances in float32 at least; this holds the whole matrix, so give it samples.

    Example:
        >>> squared_distances(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2)).item()
        25.0
    """
    dtype = torch.promote_types(torch.promote_types(z.dtype, codebook.dtype), torch.float32)
    z, codebook = z.to(dtype), codebook.to(dtype)
    centre = codebook.detach().mean(0)
    z, codebook = z - centre, codebook - centre
    with without_autocast(z):
        cross = z @ codebook.mT
    return (z.square().sum(-1, keepdim=True) + codebook.square().sum(-1) - 2 * cross).clamp_min(0)
