"""Passes of a back end as custom operators: one node for compilers, a gradient, a rule for vmap.

N rows, D features, K codes, S temperatures. A back end with passes of its own gives three
functions; what is around them is the same for all, and here.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softvq.functional.backends.contract import Assigned

# No postponed annotations here: the operators' schemas are read from the signatures.


class Saved(NamedTuple):
    """What a forward pass gives: the outputs, and what the backward pass needs beside them.

    The fields of `Assigned`; ``top`` (N,), the largest score of each row, where a score is
    2 z . p - |p|^2; ``log_total`` (S, N), the logarithm of the sum of weights relative to it;
    ``notes``, int32, whatever else the back end wants to find again.
    """

    mean: Tensor
    spread: Tensor
    free_energy: Tensor
    entropy: Tensor
    indices: Tensor
    use: Tensor
    top: Tensor
    log_total: Tensor
    notes: Tensor


class Kept(NamedTuple):
    """The part of `Saved` that the backward pass gets."""

    mean: Tensor
    entropy: Tensor
    indices: Tensor
    top: Tensor
    log_total: Tensor
    notes: Tensor


class Problem(NamedTuple):
    """The inputs: rows (N, D), codes (K, D), T (S,), rows that count, codes that may be taken."""

    z: Tensor
    codebook: Tensor
    temperature: Tensor
    keep: Tensor | None
    usable: Tensor | None

    @property
    def num_counted(self) -> Tensor | int:
        """Rows that count in the use, one at least."""
        return max(self.z.shape[0], 1) if self.keep is None else self.keep.sum().clamp_min(1)


class Gradients(NamedTuple):
    """Gradients of the outputs, with a leading axis S each; None where there is none."""

    mean: Tensor | None
    spread: Tensor | None
    free_energy: Tensor | None
    entropy: Tensor | None
    use: Tensor | None


class Operators(NamedTuple):
    """The functions that a back end's module offers, differentiable once."""

    soft_assign: Callable[..., Assigned]
    nearest_code: Callable[..., Tensor]


def make_operators(
    prefix: str,
    *,
    nearest: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    forward: Callable[[Problem], Saved],
    backward: Callable[[Problem, Kept, Gradients, bool], tuple[Tensor, Tensor, Tensor]],
    notes_a_row: int = 0,
) -> Operators:
    """Register ``softvq::PREFIXnearest_code``, ``...soft_assign`` and ``...soft_assign_backward``.

    Args:
        prefix: Of the operators' names.
        nearest: Rows, codes and usable codes to indices (N,).
        forward: The forward pass.
        backward: Gradients to z, codebook and temperature; the last argument says whether that to
            the temperature, but for the free energy's part, is wanted.
        notes_a_row: Length of the notes for each row at each temperature.

    Returns:
        The two functions over them.
    """
    nearest_code = _register_nearest(prefix, nearest)
    pull = _register_backward(prefix, backward)
    assign = _register_forward(prefix, forward, pull, notes_a_row)

    def soft_assign(
        z: Tensor,
        codebook: Tensor,
        temperature: Tensor,
        keep: Tensor | None = None,
        usable: Tensor | None = None,
    ) -> Assigned:
        """Contract of `reference.soft_assign`, differentiable once."""
        return Assigned(*assign(z, codebook, temperature, keep, usable)[:6])

    def find_nearest(z: Tensor, codebook: Tensor, usable: Tensor | None = None) -> Tensor:
        """Index of the nearest code of each row (N,), ties to the lowest, no N x K buffer."""
        return nearest_code(z, codebook, usable)

    return Operators(soft_assign, find_nearest)


def _register_nearest(prefix: str, nearest: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @torch.library.custom_op(f"softvq::{prefix}nearest_code", mutates_args=())
    def operator(z: Tensor, codebook: Tensor, usable: Tensor | None) -> Tensor:
        return nearest(z, codebook, usable)

    @operator.register_fake
    def _(z: Tensor, codebook: Tensor, usable: Tensor | None) -> Tensor:
        return z.new_empty(z.shape[0], dtype=torch.int64)

    operator.register_vmap(_loop(operator))
    return operator


def _register_forward(
    prefix: str,
    forward: Callable[[Problem], Saved],
    backward: Callable[..., tuple],
    notes_a_row: int,
) -> Callable[..., tuple]:
    @torch.library.custom_op(f"softvq::{prefix}soft_assign", mutates_args=())
    def operator(
        z: Tensor, codebook: Tensor, temperature: Tensor, keep: Tensor | None, usable: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        given = Problem(z, codebook, temperature, keep, usable)
        mean, spread, free_energy, entropy, indices, use, top, log_total, notes = forward(given)
        return mean, spread, free_energy, entropy, indices, use, top, log_total, notes

    @operator.register_fake
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
            z.new_empty(levels * num_rows * notes_a_row, dtype=torch.int32),
        )

    def differentiate(ctx: Any, *grads: Tensor | None) -> tuple:  # noqa: ANN401 - torch's
        d_mean, d_spread, d_free, d_entropy, _, d_use = grads[:6]
        by_output = (d_mean, d_spread, d_free, d_entropy, d_use)
        return (*backward(*ctx.saved_tensors, *by_output, ctx.needs_input_grad[2]), None, None)

    operator.register_autograd(differentiate, setup_context=_save)
    operator.register_vmap(_loop(operator))
    return operator


def _save(ctx: Any, inputs: tuple, output: tuple) -> None:  # noqa: ANN401 - torch's
    saved = Saved(*output)
    kept = Kept(*(getattr(saved, name) for name in Kept._fields))
    ctx.save_for_backward(*inputs, *kept)
    ctx.mark_non_differentiable(saved.indices, saved.top, saved.log_total, saved.notes)
    ctx.set_materialize_grads(False)


def _register_backward(prefix: str, backward: Callable[..., tuple]) -> Callable[..., tuple]:
    @torch.library.custom_op(f"softvq::{prefix}soft_assign_backward", mutates_args=())
    def operator(
        z: Tensor,
        codebook: Tensor,
        temperature: Tensor,
        keep: Tensor | None,
        usable: Tensor | None,
        mean: Tensor,
        entropy: Tensor,
        indices: Tensor,
        top: Tensor,
        log_total: Tensor,
        notes: Tensor,
        d_mean: Tensor | None,
        d_spread: Tensor | None,
        d_free: Tensor | None,
        d_entropy: Tensor | None,
        d_use: Tensor | None,
        wants_temperature: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        problem = Problem(z, codebook, temperature, keep, usable)
        saved = Kept(mean, entropy, indices, top, log_total, notes)
        grads = Gradients(d_mean, d_spread, d_free, d_entropy, d_use)
        return backward(problem, saved, grads, wants_temperature)

    @operator.register_fake
    def _(z: Tensor, codebook: Tensor, temperature: Tensor, *_: object) -> tuple[Tensor, ...]:
        return torch.empty_like(z), torch.empty_like(codebook), torch.empty_like(temperature)

    operator.register_vmap(_loop(operator))
    return operator


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
