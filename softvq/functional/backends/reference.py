"""The definition: soft assignment as its formulas, dense in N x K, differentiable without end.

N rows, D features, K codes, S temperatures. Every other back end is tested against this one. The
method is DDCL (deep dual competitive learning), Cirrincione, arXiv 2604.01740, and Cirrincione and
Kumar, arXiv 2604.03850 (2026).
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from softvq.functional.backends.blocks import pad_columns
from softvq.functional.backends.contract import Assigned

LEAST_LOGIT = -1e30  # finite, so that a weight of zero times its logit is zero


def soft_assign(
    z: Float[Tensor, "n d"],
    codebook: Float[Tensor, "k d"],
    temperature: Float[Tensor, " s"],
    keep: Float[Tensor, " n"] | None = None,
    usable: Bool[Tensor, " k"] | None = None,
) -> Assigned:
    """Assign every row to every code with Boltzmann weights, at S temperatures.

    With d_nk = |z_n - p_k|^2 and l_nk = (2 z_n . p_k - |p_k|^2) / T, where |z_n|^2 / T cancels::

        q_nk = softmax_k(l_nk)                       weights
        mean_n = sum_k q_nk p_k
        spread_n = sum_k q_nk |p_k|^2 - |mean_n|^2   (at least 0)
        free_energy_n = |z_n|^2 - T log sum_k exp(l_nk)
        entropy_n = -sum_k q_nk log q_nk
        index_n = argmin_k d_nk                      (ties to the lowest)
        use_k = mean of q_nk over the rows that count

    Args:
        z: Rows.
        codebook: Codes, in the same dtype.
        temperature: T > 0, in units of squared distance.
        keep: 1 for rows that count in ``use``, 0 for others; None counts all.
        usable: False for codes that no row may take; None allows all.

    Returns:
        The fields of `Assigned`, with a leading axis S except for ``indices``.
    """
    squared = codebook.square().sum(-1)
    scores = _score(z, codebook, usable)
    top, indices = scores.max(-1)
    # The maximum is subtracted before the division, so that the smallest T gives one-hot, not NaN.
    # T's gradient goes through T over its own value, which is one: 1 / T^2 would overflow.
    levels = temperature[:, None, None]
    logits = ((scores - top[:, None].detach()) / levels.detach()).clamp_min(LEAST_LOGIT)
    logits = logits / (levels / levels.detach())
    # Weights and partition apart: F's gradient, of the order of T here, would be rounded away
    # beside that of the weights.
    weights = logits.softmax(-1)
    log_total = logits.logsumexp(-1)
    mean = weights @ codebook
    spread = (weights @ squared - mean.square().sum(-1)).clamp_min(0)
    free_energy = z.square().sum(-1) - top.detach() - temperature[:, None] * log_total
    entropy = -(weights * logits.log_softmax(-1)).sum(-1)
    if keep is None:
        use = weights.mean(-2) if z.shape[0] else weights.sum(-2)
    else:
        use = (keep @ weights) / keep.sum().clamp_min(1)
    return Assigned(mean, spread, free_energy, entropy.clamp_min(0), indices, use)


def nearest_code(
    z: Float[Tensor, "n d"],
    codebook: Float[Tensor, "k d"],
    usable: Bool[Tensor, " k"] | None = None,
) -> Int[Tensor, " n"]:
    """Index of the nearest code of each row, ties to the lowest."""
    return _score(z, codebook, usable).argmax(-1)


def _score(z: Tensor, codebook: Tensor, usable: Tensor | None) -> Tensor:
    """2 z . p - |p|^2, and the least score for codes that no row may take."""
    product = 2 * z @ pad_columns(codebook.mT)
    scores = product[..., : codebook.shape[0]] - codebook.square().sum(-1)
    return scores if usable is None else scores.masked_fill(~usable, LEAST_LOGIT)
