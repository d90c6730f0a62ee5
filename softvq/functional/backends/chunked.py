"""Soft assignment in blocks of rows: memory linear in N and in K, with a backward of its own.

N rows, D features, K codes, S temperatures; B is a block of rows. The forward pass keeps two
numbers a row (the largest score and the log-partition); the backward pass computes the block's
weights again from them. Registered as custom operators, so compilers see one node and no loop.

What differs from `reference`: weights below e^-50 of the largest are held at e^-50 (2e-22). That
changes no sum in float32 or float64, and keeps denormal numbers, on which CPUs slow down eightfold,
out of the products.
"""

import torch
from torch import Tensor

from softvq.functional.backends.blocks import Blocks, first_maximum
from softvq.functional.backends.flows import make_flows
from softvq.functional.backends.operators import (
    Gradients,
    Kept,
    Problem,
    Saved,
    make_operators,
)
from softvq.functional.backends.sums import RowSums
from softvq.functional.precision import without_autocast


def _nearest(z: Tensor, codebook: Tensor, usable: Tensor | None) -> Tensor:
    indices = z.new_empty(z.shape[0], dtype=torch.int64)
    with without_autocast(z):
        for rows, scores in Blocks(z, codebook, usable):
            indices[rows] = first_maximum(scores)[1]
    return indices


def _forward(problem: Problem) -> Saved:
    z, codebook, temperature, keep, usable = problem
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
    use = use / problem.num_counted
    notes = z.new_empty(0, dtype=torch.int32)
    return Saved(mean, spread, free_energy, entropy, indices, use, top, log_total, notes)


def _backward(
    problem: Problem, kept: Kept, gradients: Gradients, wants_temperature: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients to z, codebook and temperature.

    With a_nk the gradient of the loss to q_nk, the gradient to a logit is
    q_nk (a_nk - sum_j q_nj a_nj), and that of the free energy -T q_nk on top. Logits are scores
    over T, with scores 2 z . p - |p|^2.
    """
    z, codebook, temperature, keep, usable = problem
    mean, entropy, _, top, log_total, _ = kept
    d_z, d_codebook = torch.zeros_like(z), torch.zeros_like(codebook)
    d_temperature = torch.zeros_like(temperature)
    column = z.new_zeros(codebook.shape[0])  # sum over rows of what multiplies -|p_k|^2
    with without_autocast(z):
        blocks = Blocks(z, codebook, usable)
        flows = make_flows(
            gradients,
            temperature=temperature,
            mean=mean,
            codebook=codebook,
            squared=blocks.squared,
            share=(torch.ones_like(top) if keep is None else keep) / problem.num_counted,
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
    d_free = gradients.free_energy
    if d_free is not None:
        d_z += 2 * d_free.sum(0)[:, None] * z
        d_temperature -= (d_free * entropy).sum(-1)
    return d_z, d_codebook, d_temperature


soft_assign, nearest_code = make_operators(
    "", nearest=_nearest, forward=_forward, backward=_backward
)
