"""Soft assignment by Triton kernels on a CUDA device: memory linear in N and in K.

N rows, D features, K codes, S temperatures. The forward pass walks over the codes once with a
running maximum, and once more for the use; the backward pass computes weights again, once over
blocks of rows and once over blocks of codes, without atomics: the same numbers every time. The
kernels are in `triton_forward` and `triton_backward`, imported at the first call. `operators`
makes custom operators of the passes, so compilers see one node.

What differs from `reference`: products of float32 numbers on matrix units are sums of three in tf32
("tf32x3", which keeps float32's digits). Where the caller has allowed tf32 by
``torch.set_float32_matmul_precision``, means and gradients take it; scores, and so the indices,
never do.
"""

import importlib
import importlib.util
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softvq.functional.backends.operators import (
    Gradients,
    Kept,
    Problem,
    Saved,
    make_operators,
)

MAX_DIM = 256
LEAST_SCORE = -1e30  # of a code that is dropped
SCORE_PRECISION = "tf32x3"
PROGRAMS_A_PROCESSOR = 4
INTERPRETED_PROCESSORS = 1


class Blocks(NamedTuple):
    """How a kernel is cut: rows and codes of a block, features of a step, warps, stages.

    ``levels`` temperatures share a launch: one where the sums of two do not fit in the registers.
    """

    rows: int
    codes: int
    chunk: int
    warps: int
    stages: int
    levels: int = 2


# By features, padded to a power of two. Chosen for few spilled registers on compute capability
# 9.0, by the assembler's report; `python -m eval.gpu_check` times others beside them. The tables
# agree in the features of a step, so that all kernels add up a score in one order.
FORWARD_BLOCKS = {
    16: Blocks(64, 32, 16, 4, 2),
    32: Blocks(64, 32, 32, 4, 2),
    64: Blocks(64, 32, 16, 4, 2),
    128: Blocks(64, 32, 32, 4, 2, levels=1),
    256: Blocks(64, 32, 16, 8, 2, levels=1),
}
ROW_BLOCKS = {
    16: Blocks(64, 32, 16, 4, 2),
    32: Blocks(64, 32, 32, 4, 2),
    64: Blocks(64, 32, 16, 4, 2),
    128: Blocks(64, 32, 32, 8, 2),
    256: Blocks(64, 32, 16, 8, 2),
}
CODE_BLOCKS = {
    16: Blocks(32, 64, 16, 4, 2),
    32: Blocks(32, 64, 32, 4, 2),
    64: Blocks(32, 64, 16, 8, 2),
    128: Blocks(32, 64, 32, 8, 2),
    256: Blocks(32, 64, 16, 8, 2, levels=1),
}


def unavailable(device: torch.device, dim: int, dtype: torch.dtype) -> str | None:
    """Why this back end cannot run a problem, or None where it can.

    Args:
        device: Where the tensors are.
        dim: D.
        dtype: Of the computation.

    Returns:
        The reason, to follow "because", or None.

    Example:
        >>> unavailable(torch.device("cuda"), 512, torch.float32)
        'its kernels hold at most 256 features, and D is 512'
    """
    if dtype != torch.float32:
        return f"it computes in float32, and the dtype here is {dtype}"
    if dim > MAX_DIM:
        return f"its kernels hold at most {MAX_DIM} features, and D is {dim}"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed: pip install triton"
    if _kernels("forward").INTERPRETED:
        return None
    if device.type != "cuda" or torch.version.hip is not None:
        return f"it needs a CUDA device, and the tensors are on {device}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return f"it needs compute capability 8.0, and {device} has less"
    return None


def _kernels(name: str) -> ModuleType:
    return importlib.import_module(f"softvq.functional.backends.triton_{name}")


def pad(dim: int) -> int:
    """Features of a block that holds ``dim``: a power of two, as the tables of blocks have them.

    Example:
        >>> pad(20)
        32
    """
    return max(16, 1 << (dim - 1).bit_length())


def _options(blocks: Blocks, dim: int, *, values: bool) -> dict[str, Any]:
    """What every launch of a kernel has in common."""
    options: dict[str, Any] = {
        "DIM": dim,
        "ROWS": blocks.rows,
        "CODES": blocks.codes,
        "CHUNK": blocks.chunk,
        "SCORES": SCORE_PRECISION,
        "num_warps": blocks.warps,
        "num_stages": blocks.stages,
    }
    if values:
        exact = torch.get_float32_matmul_precision() == "highest"
        options |= {"PADDED": pad(dim), "VALUES": SCORE_PRECISION if exact else "tf32"}
    return options


def _sides(codebook: Tensor, usable: Tensor | None) -> Tensor:
    squared = codebook.square().sum(-1)
    negative = -squared if usable is None else torch.where(usable, -squared, LEAST_SCORE)
    return torch.stack([negative, squared])


def _split(num_rows: int, num_codes: int, blocks: Blocks, device: torch.device) -> tuple[int, int]:
    """Into how many spans the rows are cut for a kernel that owns codes, and rows in a span.

    Few codes are few programs: spans make more, until the device is busy.
    """
    processors = INTERPRETED_PROCESSORS
    if device.type == "cuda":
        processors = torch.cuda.get_device_properties(device).multi_processor_count
    row_blocks = -(-num_rows // blocks.rows)
    code_blocks = -(-num_codes // blocks.codes)
    splits = max(1, min(row_blocks, processors * PROGRAMS_A_PROCESSOR // code_blocks))
    span = -(-row_blocks // splits)
    return -(-row_blocks // span), span * blocks.rows


def _by_launch(levels: int, blocks: Blocks) -> list[slice]:
    """Temperatures of each launch."""
    return [
        slice(begin, min(begin + blocks.levels, levels))
        for begin in range(0, levels, blocks.levels)
    ]


def _nearest(z: Tensor, codebook: Tensor, usable: Tensor | None) -> Tensor:
    num_rows, dim = z.shape
    out = z.new_empty(num_rows, dtype=torch.int64)
    if num_rows == 0:
        return out
    z, codebook = z.contiguous(), codebook.contiguous()
    sides = _sides(codebook, usable)
    blocks = FORWARD_BLOCKS[pad(dim)]
    with torch.cuda.device_of(z):
        _kernels("forward").assign_rows[(-(-num_rows // blocks.rows),)](
            *(z, codebook, sides, sides, z, z, z, out, num_rows, len(codebook)),
            LEVELS=0,
            **_options(blocks, dim, values=True),
        )
    return out


def _forward(problem: Problem) -> Saved:
    z, codebook, temperature = (part.contiguous() for part in problem[:3])
    keep, usable = problem.keep, problem.usable
    num_rows, levels = len(z), len(temperature)
    sides = _sides(codebook, usable)
    mean = z.new_empty(levels, *z.shape)
    by_row = z.new_empty(levels, 4, num_rows)
    top = z.new_empty(num_rows)
    indices = z.new_empty(num_rows, dtype=torch.int64)
    use = z.new_zeros(levels, len(codebook))
    kept = torch.ones_like(top) if keep is None else keep.contiguous()
    if num_rows:
        with torch.cuda.device_of(z):
            for part in _by_launch(levels, FORWARD_BLOCKS[pad(z.shape[-1])]):
                operands = (z, codebook, sides, temperature[part])
                _launch_rows(operands, mean[part], by_row[part], top, indices)
                use[part] = _launch_use(operands, indices, top, kept, by_row[part])
    use /= problem.num_counted
    spread, free_energy, entropy, log_total = (each.clone() for each in by_row.unbind(1))
    notes = z.new_empty(0, dtype=torch.int32)
    return Saved(mean, spread, free_energy, entropy, indices, use, top, log_total, notes)


def _launch_rows(
    operands: tuple[Tensor, ...], mean: Tensor, by_row: Tensor, top: Tensor, indices: Tensor
) -> None:
    z, codebook, *_, temperature = operands
    num_rows, dim = z.shape
    blocks = FORWARD_BLOCKS[pad(dim)]
    _kernels("forward").assign_rows[(-(-num_rows // blocks.rows),)](
        *(*operands, mean, by_row, top, indices, num_rows, len(codebook)),
        LEVELS=len(temperature),
        **_options(blocks, dim, values=True),
    )


def _launch_use(
    operands: tuple[Tensor, ...], indices: Tensor, top: Tensor, kept: Tensor, by_row: Tensor
) -> Tensor:
    z, codebook, *_, temperature = operands
    (num_rows, dim), num_codes, levels = z.shape, len(codebook), len(temperature)
    blocks = FORWARD_BLOCKS[pad(dim)]
    splits, span = _split(num_rows, num_codes, blocks, z.device)
    out = z.new_empty(splits, levels, num_codes)
    _kernels("forward").sum_weights[(-(-num_codes // blocks.codes), splits)](
        *(*operands, indices, top, kept, by_row, out, num_rows, num_codes, span),
        LEVELS=levels,
        **_options(blocks, dim, values=False),
    )
    return out.sum(0)


def _backward(
    problem: Problem, kept: Kept, gradients: Gradients, wants_temperature: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients to z, codebook and temperature.

    The formulas are those of `chunked`. With b_nk the gradient to q_nk less that to the weight of
    the row's best code, sum_k q_k (b_k - b) p_k is taken as sum_k q_k b_k p_k - b mean, where
    b = sum_k q_k b_k, so that one walk over the codes is enough.
    """
    del wants_temperature  # it costs nothing here
    z, codebook, temperature = (part.contiguous() for part in problem[:3])
    _, entropy, indices, top, log_total, _ = kept
    d_mean, d_spread, d_free, d_entropy, d_use = gradients
    d_z, d_codebook = torch.zeros_like(z), torch.zeros_like(codebook)
    d_temperature = torch.zeros_like(temperature)
    if len(z) == 0:
        return d_z, d_codebook, d_temperature
    mean = kept.mean.contiguous()
    nothing = torch.zeros_like(entropy)
    pull = torch.zeros_like(mean) if d_mean is None else d_mean.contiguous()
    if d_spread is not None:  # V = sum q |p|^2 - |mean|^2: its second part pulls the mean
        pull = torch.addcmul(pull, d_spread[..., None], mean, value=-2)
    counts = torch.ones_like(top) if problem.keep is None else problem.keep
    rows = [top.expand_as(entropy), counts.expand_as(entropy), log_total]
    rows += [nothing if each is None else each for each in (d_free, d_spread, d_entropy)]
    ledger = torch.stack([*rows, nothing, nothing, nothing], 1)
    use = z.new_zeros(len(temperature), len(codebook)) if d_use is None else d_use
    use = (use / problem.num_counted).contiguous()
    pulls = pull.flatten(1).ne(0).any(1).to(torch.int32)
    sides = _sides(codebook, problem.usable)
    with torch.cuda.device_of(z):
        # Rows first: their kernel fills the part of the ledger that the codes' kernel reads.
        for part in _by_launch(len(temperature), ROW_BLOCKS[pad(z.shape[-1])]):
            grads = (use[part], pull[part], pulls[part], ledger[part], indices)
            d_z += _launch_pull_rows((z, codebook, sides, temperature[part]), grads, mean[part])
        for part in _by_launch(len(temperature), CODE_BLOCKS[pad(z.shape[-1])]):
            grads = (use[part], pull[part], pulls[part], ledger[part], indices)
            d_codebook += _launch_pull_codes((z, codebook, sides, temperature[part]), grads)
    delta, cross = ledger[:, 7], ledger[:, 8]
    d_temperature -= (cross + delta * entropy).sum(-1) / temperature
    if d_free is not None:
        d_temperature -= (d_free * entropy).sum(-1)
    return d_z, d_codebook, d_temperature


def _launch_pull_rows(
    operands: tuple[Tensor, ...], grads: tuple[Tensor, ...], mean: Tensor
) -> Tensor:
    z, codebook, *_, temperature = operands
    num_rows, dim = z.shape
    blocks = ROW_BLOCKS[pad(dim)]
    out = torch.empty_like(z)
    _kernels("backward").pull_rows[(-(-num_rows // blocks.rows),)](
        *(*operands, *grads, mean, out, num_rows, len(codebook)),
        LEVELS=len(temperature),
        **_options(blocks, dim, values=True),
    )
    return out


def _launch_pull_codes(operands: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> Tensor:
    z, codebook, *_, temperature = operands
    (num_rows, dim), num_codes = z.shape, len(codebook)
    blocks = CODE_BLOCKS[pad(dim)]
    splits, span = _split(num_rows, num_codes, blocks, z.device)
    out = z.new_empty(splits, num_codes, dim)
    column = z.new_empty(splits, num_codes)
    _kernels("backward").pull_codes[(-(-num_codes // blocks.codes), splits)](
        *(*operands, *grads, out, column, num_rows, num_codes, span),
        LEVELS=len(temperature),
        **_options(blocks, dim, values=True),
    )
    return out.sum(0) - 2 * column.sum(0)[:, None] * codebook


soft_assign, nearest_code = make_operators(
    "triton_", nearest=_nearest, forward=_forward, backward=_backward
)
