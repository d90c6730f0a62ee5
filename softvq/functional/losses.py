"""Losses of the quantizers: each a mean over the rows that count, 0 where none does."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from softvq.functional.decompose import decompose
from softvq.functional.distances import unit_rows
from softvq.functional.precision import at_least_float32, without_autocast
from softvq.types import SoftCodes


def mean_of_rows(
    values: Float[Tensor, "*batch n"], mask: Bool[Tensor, "*batch n"] | None = None
) -> Float[Tensor, ""]:
    """Mean over rows that the mask keeps; 0, with a gradient of 0, where there is none.

    Example:
        >>> mean_of_rows(torch.tensor([1.0, 9.0]), torch.tensor([True, False])).item()
        1.0
    """
    if mask is None:
        return values.sum() / max(values.numel(), 1)
    return torch.where(mask, values, 0).sum() / mask.sum().clamp_min(1)


def _blank(z: Tensor, mask: Tensor | None) -> Tensor:
    """Zeros in dropped rows: what they hold, NaN included, would reach the gradient as 0 * NaN."""
    return z if mask is None else torch.where(mask[..., None], z, 0)


def free_energy_loss(
    z: Float[Tensor, "*batch n d"],
    codes: SoftCodes,
    *,
    beta: float,
    mask: Bool[Tensor, "*batch n"] | None = None,
) -> Float[Tensor, ""]:
    """F(sg z, P) + beta F(z, sg P), averaged over rows (sg: stop gradient).

    F's gradient holds the weights fixed: 2 q_k (p_k - z) for the codes, 2 (z - mean) for the rows
    (deterministic annealing: Rose, Gurewitz and Fox, 1990). Both come from one F here: its own
    gradient to z, weighted 1, is brought to ``beta`` by a residual about the fixed mean. The
    temperature's is that of the first term alone, minus the mean entropy.

    Args:
        z: Rows, attached to the encoder.
        codes: Soft assignment of ``z``, attached to ``z`` and to the codebook; one temperature.
        beta: Weight of the rows' part.
        mask: True keeps a row.

    Returns:
        0-dim loss; may be negative.

    Example:
        >>> from softvq.functional.assign import soft_assign
        >>> z = torch.tensor([[1.0]], requires_grad=True)
        >>> codes = soft_assign(z, torch.tensor([[0.0]]), temperature=1.0)
        >>> free_energy_loss(z, codes, beta=0.25).backward()
        >>> z.grad.item()
        0.5
    """
    pull = (_blank(z, mask).to(codes.mean.dtype) - codes.mean.detach()).square().sum(-1)
    energy = codes.free_energy
    both = energy + (beta - 1) * (pull - pull.detach()) + beta * energy.detach()
    return mean_of_rows(both, mask)


def distortion_loss(
    z: Float[Tensor, "*batch n d"],
    codes: SoftCodes,
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
) -> Float[Tensor, ""]:
    """L_q, differentiated through the weights: DDCL as published (arXiv 2604.01740).

    Through the weights a code that is farther than L_q + T from a row is pushed away from it, so
    far codes flee; see `free_energy_loss` for the form that does not.

    Args:
        z: Rows.
        codes: Their soft assignment, attached.
        mask: True keeps a row.

    Returns:
        0-dim loss.

    Example:
        >>> from softvq.functional.assign import soft_assign
        >>> z, codebook = torch.tensor([[0.0]]), torch.tensor([[-1.0], [1.0]])
        >>> distortion_loss(z, soft_assign(z, codebook, temperature=1.0)).item()
        1.0
    """
    return mean_of_rows(decompose(_blank(z, mask), codes).distortion, mask)


def use_entropy(use: Float[Tensor, " k"]) -> Float[Tensor, ""]:
    """Entropy in nats of the mean weights over a batch, in [0, log K].

    Its gradient is log(use), held finite for codes that no row touches.

    Example:
        >>> print(f"{use_entropy(torch.tensor([0.5, 0.5])).item():.4f}")
        0.6931
    """
    return -(use * use.clamp_min(torch.finfo(use.dtype).tiny).log()).sum()


def commitment_loss(
    z: Float[Tensor, "*batch n d"],
    code: Float[Tensor, "*batch n d"],
    *,
    commitment: float,
    learn: bool = True,
    mask: Bool[Tensor, "*batch n"] | None = None,
) -> Float[Tensor, ""]:
    """|sg z - code|^2 + commitment |z - sg code|^2, mean over rows and features.

    The codebook and commitment terms of VQ-VAE (van den Oord, Vinyals and Kavukcuoglu, 2017), with
    the weight on the rows' term, where the paper has it.

    Args:
        z: Rows.
        code: The chosen code of each row.
        commitment: Weight of the rows' term.
        learn: Whether the codes' term is there; a codebook that learns otherwise has none.
        mask: True keeps a row.

    Returns:
        0-dim loss.

    Example:
        >>> commitment_loss(torch.tensor([[1.0]]), torch.tensor([[0.0]]), commitment=0.25).item()
        1.25
    """
    z = at_least_float32(_blank(z, mask))
    code = code.to(z.dtype)
    loss = commitment * (z - code.detach()).square().mean(-1)
    if learn:
        loss = loss + (z.detach() - code).square().mean(-1)
    return mean_of_rows(loss, mask)


def orthogonality_loss(codebook: Float[Tensor, "k d"]) -> Float[Tensor, ""]:
    """Mean squared cosine between different codes, without a K x K matrix.

    With U the codes at length one, sum_ij (u_i . u_j)^2 = |U'U|^2, a D x D matrix; the K terms with
    i = j are left out.

    Args:
        codebook: Codes.

    Returns:
        0-dim, in [0, 1]; 0 for one code.

    Example:
        >>> orthogonality_loss(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]])).item()
        0.3333333432674408
    """
    codes = unit_rows(at_least_float32(codebook))
    with without_autocast(codes):
        products = codes.mT @ codes
    same = codes.square().sum(-1).square().sum()
    pairs = max(len(codes) * (len(codes) - 1), 1)
    # Rounding must not make it negative.
    return ((products.square().sum() - same) / pairs).clamp_min(0)
