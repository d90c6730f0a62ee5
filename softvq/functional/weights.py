"""The weights of a soft assignment themselves: dense in N x K, for few codes."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from softvq.checks import check_mask
from softvq.functional.precision import without_autocast, working_dtype


def soft_weights(
    z: Float[Tensor, "*batch n d"],
    codebook: Float[Tensor, "k d"],
    *,
    temperature: Float[Tensor, ""],
    mask: Bool[Tensor, "*batch n"] | None = None,
) -> Float[Tensor, "*batch n k"]:
    """Weights softmax_k(-|z - p_k|^2 / T) of each row.

    `softvq.functional.soft_assign` gives all that follows from them without this N x K buffer; it
    is for readers of the weights, where K is small.

    Args:
        z: Rows.
        codebook: Codes.
        temperature: T > 0 in units of squared distance.
        mask: True keeps a row; dropped rows give zeros, and their content reaches nothing.

    Returns:
        Weights in float32 at least; each kept row sums to one. Differentiable.

    Raises:
        ValueError: For a mask of another shape or dtype.

    Example:
        >>> z, codebook = torch.tensor([[0.0]]), torch.tensor([[-1.0], [1.0]])
        >>> soft_weights(z, codebook, temperature=torch.tensor(1.0)).tolist()
        [[0.5, 0.5]]
    """
    check_mask("mask", mask, shape=tuple(z.shape[:-1]))
    dtype = working_dtype(z, codebook)
    with without_autocast(z):
        codes = codebook.to(dtype)
        centre = codes.detach().mean(0)  # as in soft_assign: an offset of the data costs no digits
        codes, rows = codes - centre, z.to(dtype) - centre
        if mask is not None:
            rows = torch.where(mask[..., None], rows, 0)
        scores = 2 * rows @ codes.mT - codes.square().sum(-1)
        # The maximum goes before the division: a T that is tiny then gives one-hot and not NaN.
        scores = scores - scores.amax(-1, keepdim=True).detach()
        level = temperature.to(dtype).clamp_min(torch.finfo(dtype).tiny)
        weights = (scores / level).clamp_min(-1e30).softmax(-1)
    return weights if mask is None else torch.where(mask[..., None], weights, 0)
