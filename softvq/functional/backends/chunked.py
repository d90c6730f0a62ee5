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
BLOCK_ELEMENTS = {"cpu": 2**19}  # 2 MiB of float32: a block stays in the cache from step to step
BLOCK_ELEMENTS_DEVICE = 2**25


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
    rows = max(1, budget // max(1, len(codebook)))
    for begin in range(0, len(z), rows):
        yield slice(begin, min(begin + rows, len(z)))


@torch.library.custom_op("softvq::nearest_code", mutates_args=())
def _nearest(z: Tensor, codebook: Tensor) -> Tensor:
    negative = -codebook.square().sum(-1)
    keys = codebook.mT * 2
    out = z.new_empty(len(z), dtype=torch.int64)
    with without_autocast(z):
        for rows in _blocks(z, codebook):
            out[rows] = torch.addmm(negative, z[rows], keys).argmax(-1)
    return out


@_nearest.register_fake
def _(z: Tensor, codebook: Tensor) -> Tensor:
    return z.new_empty(z.shape[0], dtype=torch.int64)


@torch.library.custom_op("softvq::soft_assign", mutates_args=())
def _assign(
    z: Tensor, codebook: Tensor, temperature: Tensor, keep: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    squared = codebook.square().sum(-1)
    keys = codebook.mT * 2
    num_rows, num_codes, levels = len(z), len(codebook), len(temperature)
    mean = z.new_empty(levels, *z.shape)
    second = z.new_empty(levels, num_rows)
    entropy = torch.empty_like(second)
    log_total = torch.empty_like(second)
    top = z.new_empty(num_rows)
    indices = z.new_empty(num_rows, dtype=torch.int64)
    use = z.new_zeros(levels, num_codes)
    inverse = temperature.reciprocal()
    with without_autocast(z):
        for rows in _blocks(z, codebook):
            scores = torch.addmm(-squared, z[rows], keys)
            top[rows], indices[rows] = scores.max(-1)
            scores -= top[rows, None]
            for s in range(levels):
                logits = (scores * inverse[s]).clamp_min_(LOG_FLOOR)
                weights = logits.exp()
                total = weights.sum(-1)
                log_total[s, rows] = total.log()
                each = total.reciprocal()
                mean[s, rows] = (weights @ codebook) * each[:, None]
                second[s, rows] = (weights @ squared) * each
                use[s] += (each if keep is None else each * keep[rows]) @ weights
                entropy[s, rows] = log_total[s, rows] - weights.mul_(logits).sum(-1) * each
    counted = max(num_rows, 1) if keep is None else keep.sum().clamp_min(1)
    spread = (second - mean.square().sum(-1)).clamp_min_(0)
    free_energy = z.square().sum(-1) - top - temperature[:, None] * log_total
    return mean, spread, free_energy, entropy.clamp_min_(0), indices, use / counted, top, log_total


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
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients to z, codebook and temperature, from those of the outputs (None: no gradient).

    With a_nk the gradient of the loss to q_nk, the gradient to a logit is
    q_nk (a_nk - sum_j q_nj a_nj), and that of the free energy -T q_nk on top. Logits are scores
    over T, with scores 2 z . p - |p|^2.
    """
    squared = codebook.square().sum(-1)
    keys = codebook.mT * 2
    inverse = temperature.reciprocal()
    pull = d_mean
    if d_spread is not None:  # V = sum q |p|^2 - |mean|^2: its second part is a pull on the mean
        through_mean = -2 * d_spread[..., None] * mean
        pull = through_mean if d_mean is None else d_mean + through_mean
    if d_use is not None:
        d_use = d_use / (max(len(z), 1) if keep is None else keep.sum().clamp_min(1))
    d_z, d_codebook = torch.zeros_like(z), torch.zeros_like(codebook)
    d_temperature = torch.zeros_like(temperature)
    column = z.new_zeros(len(codebook))  # sum over rows of what multiplies -|p_k|^2
    with without_autocast(z):
        for rows in _blocks(z, codebook):
            scores = torch.addmm(-squared, z[rows], keys) - top[rows, None]
            d_scores = torch.zeros_like(scores)
            for s in range(len(temperature)):
                logits = (scores * inverse[s]).clamp_min_(LOG_FLOOR)
                log_weights = logits - log_total[s, rows, None]
                weights = F.threshold(log_weights.exp(), WEIGHT_FLOOR, 0.0, inplace=True)
                if pull is not None:
                    d_codebook.addmm_(weights.mT, pull[s, rows])
                if d_spread is not None:
                    column -= d_spread[s, rows] @ weights
                d_weights = _weights_gradient(
                    log_weights,
                    codebook,
                    squared,
                    pull=None if pull is None else pull[s, rows],
                    d_spread=None if d_spread is None else d_spread[s, rows, None],
                    d_entropy=None if d_entropy is None else d_entropy[s, rows, None],
                    d_use=None if d_use is None else d_use[s],
                    keep=None if keep is None else keep[rows, None],
                )
                if d_weights is not None:
                    d_weights -= (weights * d_weights).sum(-1, keepdim=True)
                    d_weights *= weights
                    d_temperature[s] -= (d_weights * logits).sum() * inverse[s]
                    d_scores.add_(d_weights.mul_(inverse[s]))
                if d_free is not None:
                    d_scores.addcmul_(weights, d_free[s, rows, None], value=-1)
            d_z[rows] = 2 * (d_scores @ codebook)
            d_codebook.addmm_(d_scores.mT, z[rows], alpha=2)
            column += d_scores.sum(0)
    d_codebook -= 2 * column[:, None] * codebook
    if d_free is not None:
        d_z += 2 * d_free.sum(0)[:, None] * z
        d_temperature -= (d_free * entropy).sum(-1)
    return d_z, d_codebook, d_temperature


def _weights_gradient(
    log_weights: Tensor,
    codebook: Tensor,
    squared: Tensor,
    *,
    pull: Tensor | None,
    d_spread: Tensor | None,
    d_entropy: Tensor | None,
    d_use: Tensor | None,
    keep: Tensor | None,
) -> Tensor | None:
    """a_nk of one block at one temperature; None where only the free energy has a gradient."""
    parts = []
    if pull is not None:
        parts.append(pull @ codebook.mT)
    if d_spread is not None:
        parts.append(d_spread * squared)
    if d_entropy is not None:
        parts.append(-d_entropy * log_weights)
    if d_use is not None:
        parts.append(d_use if keep is None else d_use * keep)
    if not parts:
        return None
    total = parts[0].expand_as(log_weights).clone() if parts[0].ndim == 1 else parts[0]
    for part in parts[1:]:
        total.add_(part)
    return total


@_assign_backward.register_fake
def _(z: Tensor, codebook: Tensor, temperature: Tensor, *_: Tensor | None) -> tuple[Tensor, ...]:
    return torch.empty_like(z), torch.empty_like(codebook), torch.empty_like(temperature)


def _save(ctx: Any, inputs: tuple, output: tuple) -> None:  # noqa: ANN401 - torch's
    z, codebook, temperature, keep = inputs
    mean, _, _, entropy, indices, _, top, log_total = output
    ctx.save_for_backward(z, codebook, temperature, keep, mean, entropy, top, log_total)
    ctx.mark_non_differentiable(indices, top, log_total)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *grads: Tensor | None) -> tuple:  # noqa: ANN401 - torch's
    d_mean, d_spread, d_free, d_entropy, _, d_use = grads[:6]
    return (*_assign_backward(*ctx.saved_tensors, d_mean, d_spread, d_free, d_entropy, d_use), None)


_assign.register_autograd(_backward, setup_context=_save)
