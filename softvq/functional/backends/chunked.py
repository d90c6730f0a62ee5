"""Soft assignment in blocks of rows: memory linear in N and in K, with a backward of its own.

N rows, D features, K codes, S temperatures; B is a block of rows. The forward pass keeps two
numbers a row (the largest score and the log-partition); the backward pass computes the block's
weights again from them. Registered as a custom operator, so compilers see one node and no loop.

What differs from `reference`: weights below e^-50 of the largest are held at e^-50 (2e-22). That
changes no sum in float32 or float64, and keeps denormal numbers, on which CPUs slow down eightfold,
out of the products. In the backward pass, where 1 / T would magnify them, they are zero.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from softvq.functional.backends.contract import Assigned
from softvq.functional.precision import without_autocast

# No postponed annotations here: the operator's schema is read from the signatures.

LOG_FLOOR = -50.0
WEIGHT_FLOOR = 2e-22  # just above e^-50
BLOCK_ELEMENTS = {"cpu": 2**18}  # a thread: 1 MiB of float32, which stays in its core's cache
BLOCK_ELEMENTS_DEVICE = 2**25
STRETCH = 64


def soft_assign(
    z: Tensor, codebook: Tensor, temperature: Tensor, keep: Tensor | None = None
) -> Assigned:
    """Contract of `reference.soft_assign`, differentiable once.

    Args:
        z: Rows (N, D).
        codebook: Codes (K, D), same dtype.
        temperature: (S,), T > 0.
        keep: 1 for rows that count in ``use``, 0 for others; None counts all.

    Returns:
        The fields of `Assigned`.
    """
    return Assigned(*_assign(z, codebook, temperature, keep)[:6])


def nearest_code(z: Tensor, codebook: Tensor) -> Tensor:
    """Index of the nearest code of each row (N,), ties to the lowest, without an N x K buffer."""
    return _nearest(z, codebook)


def _blocks(z: Tensor, codebook: Tensor) -> Iterator[slice]:
    budget = BLOCK_ELEMENTS.get(z.device.type, BLOCK_ELEMENTS_DEVICE)
    if z.device.type == "cpu":
        budget *= torch.get_num_threads()
    rows = max(1, budget // max(1, len(codebook)))
    for begin in range(0, len(z), rows):
        yield slice(begin, min(begin + rows, len(z)))


def _score_operands(codebook: Tensor) -> tuple[Tensor, Tensor]:
    """-|p|^2 (K,) and 2 p' (D, K): rows times the second, plus the first, are the scores."""
    return -codebook.square().sum(-1), codebook.mT.contiguous() * 2


def _first_maximum(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Maximum of each row and its lowest place.

    On a CPU a maximum with its place costs as much as the product that made the scores, and one
    without it an eighth: so the place is looked for in the one stretch that holds the maximum.
    """
    stretches = scores.shape[-1] // STRETCH
    if scores.device.type != "cpu" or scores.shape[-1] % STRETCH or stretches < 2:
        return scores.max(-1)
    by_stretch = scores.unflatten(-1, (stretches, STRETCH))
    top, which = by_stretch.amax(-1).max(-1)
    inside = by_stretch[torch.arange(len(scores)), which].argmax(-1)
    return top, which * STRETCH + inside


def _scale(scores: Tensor, inverse: Tensor, *, last: bool) -> Tensor:
    """Logits, floored; the last level takes the scores' own memory."""
    logits = scores.mul_(inverse) if last else scores * inverse
    return logits.clamp_min_(LOG_FLOOR)


@torch.library.custom_op("softvq::nearest_code", mutates_args=())
def _nearest(z: Tensor, codebook: Tensor) -> Tensor:
    negative, keys = _score_operands(codebook)
    out = z.new_empty(len(z), dtype=torch.int64)
    with without_autocast(z):
        for rows in _blocks(z, codebook):
            out[rows] = _first_maximum(torch.addmm(negative, z[rows], keys))[1]
    return out


@_nearest.register_fake
def _(z: Tensor, codebook: Tensor) -> Tensor:
    return z.new_empty(z.shape[0], dtype=torch.int64)


@torch.library.custom_op("softvq::soft_assign", mutates_args=())
def _assign(
    z: Tensor, codebook: Tensor, temperature: Tensor, keep: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    negative, keys = _score_operands(codebook)
    num_rows, dim = z.shape
    levels = len(temperature)
    # One product with the weights gives sum q p, sum q |p|^2 and sum q.
    values = torch.cat([codebook, -negative[:, None], torch.ones_like(negative)[:, None]], -1)
    sums = z.new_empty(levels, num_rows, dim + 2)
    cross = z.new_empty(levels, num_rows)
    top = z.new_empty(num_rows)
    indices = z.new_empty(num_rows, dtype=torch.int64)
    use = z.new_zeros(levels, len(codebook))
    inverse = temperature.reciprocal()
    with without_autocast(z):
        for rows in _blocks(z, codebook):
            scores = torch.addmm(negative, z[rows], keys)
            top[rows], indices[rows] = _first_maximum(scores)
            scores.sub_(top[rows, None])
            for s in range(levels):
                logits = _scale(scores, inverse[s], last=s == levels - 1)
                weights = logits.exp()
                sums[s, rows] = weights @ values
                share = sums[s, rows, -1].reciprocal()
                use[s].addmv_(weights.mT, share if keep is None else share * keep[rows])
                cross[s, rows] = weights.mul_(logits).sum(-1)
    total = sums[..., -1]
    mean = sums[..., :dim] / total[..., None]
    log_total = total.log()
    entropy = (log_total - cross / total).clamp_min_(0)
    spread = (sums[..., dim] / total - mean.square().sum(-1)).clamp_min_(0)
    free_energy = z.square().sum(-1) - top - temperature[:, None] * log_total
    counted = max(num_rows, 1) if keep is None else keep.sum().clamp_min(1)
    return mean, spread, free_energy, entropy, indices, use / counted, top, log_total


@_assign.register_fake
def _(z: Tensor, codebook: Tensor, temperature: Tensor, keep: Tensor | None) -> tuple[Tensor, ...]:
    # Sizes from shapes: len() would pin a symbolic size, and compile anew for every batch size.
    levels, num_rows = temperature.shape[0], z.shape[0]
    by_row = [z.new_empty(levels, num_rows) for _ in range(4)]
    return (
        z.new_empty(levels, *z.shape),
        *by_row[:3],
        z.new_empty(num_rows, dtype=torch.int64),
        z.new_empty(levels, codebook.shape[0]),
        z.new_empty(num_rows),
        by_row[3],
    )


@torch.library.custom_op("softvq::soft_assign_backward", mutates_args=())
def _assign_backward(
    z: Tensor,
    codebook: Tensor,
    temperature: Tensor,
    keep: Tensor | None,
    mean: Tensor,
    entropy: Tensor,
    top: Tensor,
    log_total: Tensor,
    d_mean: Tensor | None,
    d_spread: Tensor | None,
    d_free: Tensor | None,
    d_entropy: Tensor | None,
    d_use: Tensor | None,
    wants_temperature: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients to z, codebook and temperature, from those of the outputs (None: no gradient).

    With a_nk the gradient of the loss to q_nk, the gradient to a logit is
    q_nk (a_nk - sum_j q_nj a_nj), and that of the free energy -T q_nk on top. Logits are scores
    over T, with scores 2 z . p - |p|^2.
    """
    negative, keys = _score_operands(codebook)
    inverse = temperature.reciprocal()
    flows = [
        _Flow(*parts)
        for parts in zip(
            *(_by_level(each, len(temperature)) for each in (d_mean, d_spread, d_free)),
            *(_by_level(each, len(temperature)) for each in (d_entropy, d_use)),
            mean,
            strict=True,
        )
    ]
    counted = max(len(z), 1) if keep is None else keep.sum().clamp_min(1)
    d_z, d_codebook = torch.zeros_like(z), torch.zeros_like(codebook)
    d_temperature = torch.zeros_like(temperature)
    column = z.new_zeros(len(codebook))  # sum over rows of what multiplies -|p_k|^2
    with without_autocast(z):
        for rows in _blocks(z, codebook):
            scores = torch.addmm(negative, z[rows], keys).sub_(top[rows, None])
            d_scores = None
            for s, flow in enumerate(flows):
                log_weights = _scale(scores, inverse[s], last=s == len(flows) - 1)
                log_weights.sub_(log_total[s, rows, None])
                weights = F.threshold(log_weights.exp(), WEIGHT_FLOOR, 0.0, inplace=True)
                flow.add_values(rows, weights, d_codebook, column)
                part = flow.to_weights(rows, log_weights, codebook, negative, keep, counted)
                if part is not None:
                    part.sub_((weights * part).sum(-1, keepdim=True)).mul_(weights)
                    if wants_temperature:
                        d_temperature[s] -= (part * log_weights).sum() * inverse[s]
                    part.mul_(inverse[s])
                if flow.free is not None:
                    weights.mul_(-flow.free[rows, None])
                    part = weights if part is None else part.add_(weights)
                if part is not None:
                    d_scores = part if d_scores is None else d_scores.add_(part)
            if d_scores is not None:
                d_z[rows] = d_scores @ codebook
                d_codebook.addmm_(d_scores.mT, z[rows], alpha=2)
                column += d_scores.sum(0)
    d_z *= 2
    d_codebook -= 2 * column[:, None] * codebook
    if d_free is not None:
        d_z += 2 * d_free.sum(0)[:, None] * z
        d_temperature -= (d_free * entropy).sum(-1)
    return d_z, d_codebook, d_temperature


def _by_level(gradient: Tensor | None, levels: int) -> list[Tensor | None]:
    """The gradient of each level; None for zeros, which a loss on one level leaves at the others.

    Looking costs a pass over rows, not over codes; on a device it would cost a wait, so not there.
    """
    if gradient is None:
        return [None] * levels
    if gradient.device.type != "cpu":
        return list(gradient)
    return [each if each.any() else None for each in gradient]


class _Flow:
    """Gradients of the outputs at one temperature, and how they reach weights and codes."""

    def __init__(
        self,
        d_mean: Tensor | None,
        d_spread: Tensor | None,
        d_free: Tensor | None,
        d_entropy: Tensor | None,
        d_use: Tensor | None,
        mean: Tensor,
    ) -> None:
        self.spread, self.free, self.entropy, self.use = d_spread, d_free, d_entropy, d_use
        self.pull = d_mean
        if d_spread is not None:  # V = sum q |p|^2 - |mean|^2: its second part pulls the mean
            through_mean = -2 * d_spread[:, None] * mean
            self.pull = through_mean if d_mean is None else d_mean + through_mean

    def add_values(self, rows: slice, weights: Tensor, d_codebook: Tensor, column: Tensor) -> None:
        """What reaches the codes as values, the weights held: of the mean, and of |p|^2 in V."""
        if self.pull is not None:
            d_codebook.addmm_(weights.mT, self.pull[rows])
        if self.spread is not None:
            column.addmv_(weights.mT, self.spread[rows], alpha=-1)

    def to_weights(
        self,
        rows: slice,
        log_weights: Tensor,
        codebook: Tensor,
        negative: Tensor,
        keep: Tensor | None,
        counted: Tensor | int,
    ) -> Tensor | None:
        """a_nk of a block; None where only the free energy has a gradient."""
        if self.pull is None and self.entropy is None and self.use is None:
            return None
        if self.pull is not None:
            total = self.pull[rows] @ codebook.mT
        else:
            total = torch.zeros_like(log_weights)
        if self.use is not None:
            use = self.use / counted
            total.add_(use if keep is None else use * keep[rows, None])
        if self.spread is not None:
            total.addcmul_(self.spread[rows, None], negative, value=-1)
        if self.entropy is not None:
            total.addcmul_(self.entropy[rows, None], log_weights, value=-1)
        return total


@_assign_backward.register_fake
def _(z: Tensor, codebook: Tensor, temperature: Tensor, *_: object) -> tuple[Tensor, ...]:
    return torch.empty_like(z), torch.empty_like(codebook), torch.empty_like(temperature)


def _save(ctx: Any, inputs: tuple, output: tuple) -> None:  # noqa: ANN401 - torch's
    z, codebook, temperature, keep = inputs
    mean, _, _, entropy, indices, _, top, log_total = output
    ctx.save_for_backward(z, codebook, temperature, keep, mean, entropy, top, log_total)
    ctx.mark_non_differentiable(indices, top, log_total)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *grads: Tensor | None) -> tuple:  # noqa: ANN401 - torch's
    d_mean, d_spread, d_free, d_entropy, _, d_use = grads[:6]
    by_output = (d_mean, d_spread, d_free, d_entropy, d_use)
    return (*_assign_backward(*ctx.saved_tensors, *by_output, ctx.needs_input_grad[2]), None)


_assign.register_autograd(_backward, setup_context=_save)
