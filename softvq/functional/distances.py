"""Squared distances, dense, for small problems: diagnostics, starts and temperature solves."""

import torch
from jaxtyping import Float
from torch import Tensor

from softvq.functional.precision import without_autocast, working_dtype


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
    dtype = working_dtype(z, codebook)
    z, codebook = z.to(dtype), codebook.to(dtype)
    centre = codebook.detach().mean(0)
    z, codebook = z - centre, codebook - centre
    with without_autocast(z):
        cross = z @ codebook.mT
    return (z.square().sum(-1, keepdim=True) + codebook.square().sum(-1) - 2 * cross).clamp_min(0)


def unit_rows(rows: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """Rows of length one; a row of no length has no direction and stays zero.

    Args:
        rows: Rows, in float32 at least for the digits of their lengths.

    Returns:
        Rows in their own dtype. A row of no length takes no gradient, so none explodes.

    Example:
        >>> unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
        [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    # By the largest entry first: squares of tiny and of huge numbers would leave the range.
    scale = rows.detach().abs().amax(-1, keepdim=True)
    directed = scale > torch.finfo(rows.dtype).tiny
    scaled = torch.where(directed, rows / torch.where(directed, scale, 1), 0)
    norm = torch.where(directed, scaled.square().sum(-1, keepdim=True), 1).sqrt()
    return scaled / norm
