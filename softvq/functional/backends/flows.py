"""What the backward pass carries at one temperature: from the outputs to weights and codes.

N rows, D features, K codes; B rows are a block.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

MOST_EARLY = 1e12
WEIGHT_FLOOR = 2e-22  # just above e^-50


def make_flows(
    gradients: Sequence[Tensor | None],
    *,
    temperature: Tensor,
    mean: Tensor,
    codebook: Tensor,
    squared: Tensor,
    share: Tensor,
) -> list[tuple[int, "Flow"]]:
    """What flows back at each level that has anything; levels with the free energy alone come last.

    Args:
        gradients: Of mean, spread, free energy, entropy and use, each with a leading axis S.
        temperature: (S,).
        mean: (S, N, D), as the forward pass gave it.
        codebook: (K, D).
        squared: |p|^2, (K,).
        share: Part of each row (N,) in the soft use.

    Returns:
        Level and flow, for each level that has any.
    """
    levels = temperature.shape[0]
    by_level = zip(*(_split(each, levels) for each in gradients), strict=True)
    flows = [
        (s, Flow(each, temperature[s], mean[s], codebook, squared, share))
        for s, each in enumerate(by_level)
        if any(part is not None for part in each)
    ]
    return sorted(flows, key=lambda flow: flow[1].is_free_alone)


def _split(gradient: Tensor | None, levels: int) -> list[Tensor | None]:
    """The gradient of each level; None for zeros, which a loss on one level leaves at the others.

    Looking costs a pass over rows, not over codes; on a device it would cost a wait, so not there.
    """
    if gradient is None:
        return [None] * levels
    if gradient.device.type != "cpu" or gradient.numel() == 0:
        return list(gradient)
    return [each if _is_any(each) else None for each in gradient]


def _is_any(gradient: Tensor) -> bool:
    """Whether anything is not zero, NaN included; `any` would take ten times as long."""
    low, high = torch.aminmax(gradient)
    return bool((low != 0) | (high != 0))


class Flow:
    """Gradients of the outputs at one temperature, and how they reach weights and codes."""

    def __init__(
        self,
        gradients: Sequence[Tensor | None],
        temperature: Tensor,
        mean: Tensor,
        codebook: Tensor,
        squared: Tensor,
        share: Tensor,
    ) -> None:
        self._pull, self._spread, self._free, self._entropy, use = gradients
        # 1 / T goes into the operands, which are small; where it could overflow there, it waits
        # until weights have made zeros of what it magnifies.
        inverse = temperature.reciprocal()
        early = temperature.device.type == "cpu" and inverse.item() < MOST_EARLY
        self._early, self._late = (inverse, None) if early else (1.0, inverse)
        if self._spread is not None:  # V = sum q |p|^2 - |mean|^2: its second part pulls the mean
            through_mean = -2 * self._spread[:, None] * mean
            self._pull = through_mean if self._pull is None else self._pull + through_mean
        # a_nk / T, less the entropy's part, as one product of (N, C) and (C, K).
        left, right = [], []
        if self._pull is not None:
            left, right = [self._pull], [codebook]
        if self._spread is not None:
            left, right = [*left, self._spread[:, None]], [*right, squared[:, None]]
        if use is not None:
            left, right = [*left, share[:, None]], [*right, use[:, None]]
        self._left = torch.cat(left, -1) * self._early if left else None
        self._right = torch.cat(right, -1).mT.contiguous() if left else None

    @property
    def is_free_alone(self) -> bool:
        """Whether only the free energy has a gradient, which needs no gradient of the weights."""
        return self._left is None and self._entropy is None

    def add_values(self, rows: slice, weights: Tensor, d_codebook: Tensor, column: Tensor) -> None:
        """What reaches the codes as values, the weights held: of the mean, and of |p|^2 in V."""
        if self._pull is not None:
            d_codebook.addmm_(weights.mT, self._pull[rows])
        if self._spread is not None:
            column.addmv_(weights.mT, self._spread[rows], alpha=-1)

    def to_scores(self, rows: slice, weights: Tensor, log_weights: Tensor, *, out: Tensor) -> None:
        """Gradient to the scores through the weights, q_nk (a_nk - sum_j q_nj a_nj) / T.

        Weights at their floor become zero here, as 1 / T would magnify them.
        """
        F.threshold(weights, WEIGHT_FLOOR, 0.0, inplace=True)
        if self._left is None or self._right is None:
            out.zero_()
        else:
            torch.mm(self._left[rows], self._right, out=out)
        if self._entropy is not None:
            out.addcmul_(self._entropy[rows, None] * self._early, log_weights, value=-1)
        out.sub_((weights * out).sum(-1, keepdim=True)).mul_(weights)
        if self._late is not None:
            out.mul_(self._late)

    def add_free(self, rows: slice, weights: Tensor, d_scores: Tensor) -> None:
        """The free energy's gradient to the scores: minus the weights."""
        if self._free is not None:
            d_scores.addcmul_(weights, self._free[rows, None], value=-1)
