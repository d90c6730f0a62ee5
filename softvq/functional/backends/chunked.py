"""Soft assignment in blocks of rows: memory linear in N and in K, with a backward of its own.

N rows, D features, K codes, S temperatures; B is a block of rows. The forward pass keeps two
numbers a row (the largest score and the log-partition); the backward pass computes the block's
weights again from them. Registered as custom operators, so compilers see one node and no loop.

What differs from `reference`: weights below e^-50 of the largest are held at e^-50 (2e-22). That
changes no sum in float32 or float64, and keeps denormal numbers, on which CPUs slow down eightfold,
out of the products.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from softvq.functional.backends.blocks import Blocks, first_maximum
from softvq.functional.backends.contract import Assigned
from softvq.functional.backends.flows import make_flows
from softvq.functional.backends.sums import RowSums
from softvq.functional.precision import without_autocast

# No postponed annotations here: the operators' schemas are read from the signatures.


def soft_assign(
    z: Tensor,
    codebook: Tensor,
    temperature: Tensor,
    keep: Tensor | None = None,
    usable: Tensor | None = None,
) -> Assigned:
    """Contract of `reference.soft_assign`, differentiable once.

    Args:
        z: Rows (N, D).
        codebook: Codes (K, D), same dtype.
        temperature: (S,), T > 0.
        keep: 1 for rows that count in ``use``, 0 for others; None counts all.
        usable: (K,), False for codes that no row may take; None allows all.

    Returns:
        The fields of `Assigned`.
    """
    return Assigned(*_assign(z, codebook, temperature, keep, usable)[:6])


def nearest_code(z: Tensor, codebook: Tensor, usable: Tensor | None = None) -> Tensor:
    """Index of the nearest code of each row (N,), ties to the lowest, without an N x K buffer."""
    return _nearest(z, codebook, usable)


@torch.library.custom_op("softvq::nearest_code", mutates_args=())
def _nearest(z: Tensor, codebook: Tensor, usable: Tensor | None) -> Tensor:
    indices = z.new_empty(z.shape[0], dtype=torch.int64)
    with without_autocast(z):
        for rows, scores in Blocks(z, codebook, usable):
            indices[rows] = first_maximum(scores)[1]
    return indices


@_nearest.register_fake
def _(z: Tensor, codebook: Tensor, usable: Tensor | None) -> Tensor:
    return z.new_empty(z.shape[0], dtype=torch.int64)


@torch.library.custom_op("softvq::soft_assign", mutates_args=())
def _assign(
    z: Tensor, codebook: Tensor, temperature: Tensor, keep: Tensor | None, usable: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    top = z.new_empty(z.shape[0])
    indices = z.new_empty(z.shape[0], dtype=torch.int64)
    use = z.new_zeros(temperature.shape[0], codebook.shape[0])
    with without_autocast(z):
        blocks = Blocks(z, codebook, usable)
        sums = [RowSums(z, codebook, blocks.squared, level) for level in temperature]
        for rows, scores in blocks:
            top[rows], indices[rows] = first_maximum(scores)
            scores.sub_(top[rows, None])
            for s, level in enumerate(sums):
                weights = level.add(blocks, rows, scores)
                use[s].addmv_(weights.mT, level.share(rows, keep))
        levels = [level.finish() for level in sums]
    mean, spread, entropy, log_total = (torch.stack(parts) for parts in zip(*levels, strict=True))
    free_energy = z.square().sum(-1) - top - temperature[:, None] * log_total
    return mean, spread, free_energy, entropy, indices, use / _count(z, keep), top, log_total


@_assign.register_fake
def _(
    z: Tensor, codebook: Tensor, temperature: Tensor, keep: Tensor | None, usable: Tensor | None
) -> tuple[Tensor, ...]:
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
    usable: Tensor | None,
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
    d_z, d_codebook = torch.zeros_like(z), torch.zeros_like(codebook)
    d_temperature = torch.zeros_like(temperature)
    column = z.new_zeros(codebook.shape[0])  # sum over rows of what multiplies -|p_k|^2
    with without_autocast(z):
        blocks = Blocks(z, codebook, usable)
        flows = make_flows(
            (d_mean, d_spread, d_free, d_entropy, d_use),
            temperature=temperature,
            mean=mean,
            codebook=codebook,
            squared=blocks.squared,
            share=(torch.ones_like(top) if keep is None else keep) / _count(z, keep),
        )
        for rows, scores in blocks if flows else ():
            scores.sub_(top[rows, None])
            d_scores = blocks.buffer("gradient", rows)
            for i, (s, flow) in enumerate(flows):
                logits = blocks.buffer("logits", rows)
                blocks.soften(scores, temperature[s], log_total[s, rows], out=logits)
                weights = torch.exp(logits, out=blocks.buffer("weights", rows))
                part = blocks.buffer("part", rows) if i else d_scores
                if not flow.is_free_alone:
                    flow.add_values(rows, weights, d_codebook, column)
                    flow.to_scores(rows, weights, logits, out=part)
                    if wants_temperature:
                        d_temperature[s] -= (part * logits).sum()
                    if i:
                        d_scores.add_(part)
                elif i == 0:
                    d_scores.zero_()
                flow.add_free(rows, weights, d_scores)
            blocks.average(d_scores, codebook, out=d_z[rows])
            d_codebook.addmm_(d_scores.mT, z[rows], alpha=2)
            column += d_scores.sum(0)
    d_z *= 2
    d_codebook -= 2 * column[:, None] * codebook
    if d_free is not None:
        d_z += 2 * d_free.sum(0)[:, None] * z
        d_temperature -= (d_free * entropy).sum(-1)
    return d_z, d_codebook, d_temperature


@_assign_backward.register_fake
def _(z: Tensor, codebook: Tensor, temperature: Tensor, *_: object) -> tuple[Tensor, ...]:
    return torch.empty_like(z), torch.empty_like(codebook), torch.empty_like(temperature)


def _count(z: Tensor, keep: Tensor | None) -> Tensor | int:
    """Rows that count in ``use``, one at least."""
    return max(z.shape[0], 1) if keep is None else keep.sum().clamp_min(1)


def _save(ctx: Any, inputs: tuple, output: tuple) -> None:  # noqa: ANN401 - torch's
    mean, _, _, entropy, indices, _, top, log_total = output
    ctx.save_for_backward(*inputs, mean, entropy, top, log_total)
    ctx.mark_non_differentiable(indices, top, log_total)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *grads: Tensor | None) -> tuple:  # noqa: ANN401 - torch's
    d_mean, d_spread, d_free, d_entropy, _, d_use = grads[:6]
    by_output = (d_mean, d_spread, d_free, d_entropy, d_use)
    found = _assign_backward(*ctx.saved_tensors, *by_output, ctx.needs_input_grad[2])
    return (*found, None, None)


_assign.register_autograd(_backward, setup_context=_save)


def _loop(operator: Callable[..., Any]) -> Callable[..., Any]:
    """A vmap rule that calls the operator once for each slice: heads are few, rows are many."""

    def rule(info: Any, dims: tuple, *inputs: Any) -> tuple:  # noqa: ANN401 - torch's
        slices = [
            [x if d is None else x.select(d, i) for x, d in zip(inputs, dims, strict=True)]
            for i in range(info.batch_size)
        ]
        results = [operator(*each) for each in slices]
        if isinstance(results[0], Tensor):
            return torch.stack(results), 0
        stacked = tuple(torch.stack(parts) for parts in zip(*results, strict=True))
        return stacked, (0,) * len(stacked)

    return rule


for _operator in (_nearest, _assign, _assign_backward):
    _operator.register_vmap(_loop(_operator))
