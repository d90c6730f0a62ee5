"""What tells a healthy codebook from a collapsed one. Nothing here needs or gives a gradient."""

import math

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor

from softvq.checks import choose
from softvq.functional.backends.blocks import LOG_FLOOR

DISTINCT_SHARE = 1e-3
TOLD_APART = 0.5


def perplexity(counts: Num[Tensor, " k"]) -> Float[Tensor, ""]:
    """Exp of the entropy of the shares: 1 for one code, K for even use, 0 for no rows.

    Args:
        counts: Rows, or weight, per code.

    Returns:
        0-dim, float32.

    Example:
        >>> print(f"{perplexity(torch.tensor([6, 2, 0])).item():.4f}")
        1.7548
    """
    total = counts.sum()
    share = counts.double() / total.clamp_min(torch.finfo(torch.float32).tiny)
    return torch.where(total > 0, torch.special.entr(share).sum().exp(), 0).float()


def separation(
    codebook: Float[Tensor, "k d"], total_variance: Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """Root mean square distance between codes, over the root of the data's total variance.

    Over all ordered pairs E|p_i - p_j|^2 = 2 tr Cov(P), so this costs K D, not K^2.

    Args:
        codebook: Codes.
        total_variance: tr Cov(z).

    Returns:
        sqrt(2 tr Cov(P) / tr Cov(z)); 0 for a collapsed codebook, sqrt(2) for codes spread as the
        data.

    Example:
        >>> print(f"{separation(torch.tensor([[-1.0], [1.0]]), torch.tensor(1.0)).item():.4f}")
        1.4142
    """
    codes = codebook.detach().double()
    spread = (codes - codes.mean(0)).square().mean(0).sum()
    return (2 * spread / total_variance.double().clamp_min(1e-30)).sqrt().float()


def distinct_codes(
    codebook: Float[Tensor, "k d"], total_variance: Float[Tensor, ""]
) -> Int[Tensor, ""]:
    """Number of codes left when those closer than 1e-3 of the data's deviation count once.

    Args:
        codebook: Codes.
        total_variance: tr Cov(z).

    Returns:
        0-dim int64 in [1, K].

    Example:
        >>> codes = torch.tensor([[0.0], [0.0], [1.0]])
        >>> distinct_codes(codes, torch.tensor(1.0)).item()
        2
    """
    deviation = total_variance.float().clamp_min(0).sqrt().item()
    return count_apart(codebook, DISTINCT_SHARE * deviation)


def told_apart(codebook: Float[Tensor, "k d"], temperature: Float[Tensor, ""]) -> Int[Tensor, ""]:
    """Number of codes left when those that weights at T hardly tell apart count once.

    Two codes are one where |p - p'|^2 <= T / 2: a row on either gives the other over exp(-1/2) =
    61 % of its own weight. T stands for the scale at which codes work, so that neither the unit,
    nor K, nor D matters: codes placed by k-means are all told apart at entropies of up to half a
    nat, in one feature as in hundreds; at several nats in few features neighbours are not.

    Args:
        codebook: Codes.
        temperature: T > 0.

    Returns:
        0-dim int64 in [1, K].

    Example:
        >>> codes = torch.tensor([[0.0], [0.2], [1.0]])
        >>> [told_apart(codes, torch.tensor(level)).item() for level in (0.05, 0.5, 50.0)]
        [3, 2, 1]
    """
    return count_apart(codebook, (TOLD_APART * temperature.double()).sqrt().item())


def count_apart(codebook: Float[Tensor, "k d"], radius: float) -> Int[Tensor, ""]:
    """Number of codes left when those within the radius of another count once.

    A code counts unless an earlier one, along the axis on which codes vary most, lies within the
    radius. Exact differences: products would lose the digits that tell close codes apart.

    Args:
        codebook: Codes.
        radius: Distance, at least 0.

    Returns:
        0-dim int64 in [1, K].

    Example:
        >>> count_apart(torch.tensor([[0.0], [0.2], [1.0]]), 0.5).item()
        2
    """
    codes = codebook.detach().float()
    codes = codes - codes.mean(0)
    # Codes within the radius are within it in every projection: sorted along the widest axis, each
    # needs to look only at its neighbours, and no further than the first that it repeats. The next
    # widest axis spares most of those the full difference.
    axes = codes.var(0, unbiased=False).argsort(descending=True)
    codes = codes[codes[:, axes[0]].argsort(stable=True)]
    line, other = codes[:, axes[0]].contiguous(), codes[:, axes[:2][-1]].contiguous()
    place = torch.arange(len(codes), device=codes.device)
    reach = place - torch.searchsorted(line, line - radius)
    repeated = torch.zeros_like(place, dtype=torch.bool)
    step, pending = 1, place
    while len(pending):
        pending = pending[(reach[pending] >= step) & ~repeated[pending]]
        close = pending[(other[pending] - other[pending - step]).abs() <= radius]
        apart = (codes[close] - codes[close - step]).square().sum(-1)
        repeated[close[apart <= radius**2]] = True
        step += 1
    return (~repeated).sum()


def critical_temperature(
    z: Float[Tensor, "n d"], *, assignment_grad: str = "fixed"
) -> Float[Tensor, ""]:
    """T above which a merged codebook stays merged: 2 lambda, or 4 lambda through the weights.

    Rose's first critical temperature; lambda is the largest eigenvalue of Cov(z).

    Args:
        z: Rows.
        assignment_grad: "fixed" (free energy) or "full" (L_q through the weights).

    Returns:
        0-dim float32.

    Raises:
        ValueError: For another ``assignment_grad``.

    Example:
        >>> critical_temperature(torch.tensor([[-1.0], [1.0]])).item()
        2.0
    """
    factor = {"fixed": 2, "full": 4}[choose("assignment_grad", assignment_grad, ("fixed", "full"))]
    rows = z.detach().double()
    rows = rows - rows.mean(0)
    covariance = rows.mT @ rows / max(len(rows), 1)
    largest = torch.linalg.eigvalsh(covariance)[-1].clamp_min(0)
    return (largest * factor).float()


def entropy_at(distances: Float[Tensor, "n k"], temperature: float) -> tuple[float, float]:
    """Mean entropy in nats of the weights at T, and its derivative to log T.

    dH / d log T is the variance of d / T under the weights.

    Args:
        distances: Squared distances of a sample of rows.
        temperature: T > 0.

    Returns:
        Entropy and slope, both at least 0.

    Example:
        >>> print("%.4f" % entropy_at(torch.tensor([[1.0, 1.0]]), 1.0)[0])
        0.6931
    """
    scores = distances.amin(-1, keepdim=True) - distances
    logits = (scores / max(temperature, 1e-37)).clamp_min_(LOG_FLOOR)
    weights = logits.exp()
    total = weights.sum(-1)
    first = (weights.mul_(logits)).sum(-1) / total
    second = (weights.mul_(logits)).sum(-1) / total
    entropy, slope = total.log() - first, second - first.square()
    result = torch.stack([entropy.mean(), slope.mean()]).tolist()
    return max(result[0], 0.0), max(result[1], 0.0)


def effective_codes(entropy: float) -> float:
    """Exp of an entropy in nats: how many codes a row spreads over.

    Example:
        >>> effective_codes(0.0)
        1.0
    """
    return math.exp(entropy)
