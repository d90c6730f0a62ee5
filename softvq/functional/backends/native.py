"""Soft assignment by a fused kernel for CPUs, in float32, compiled at first use.

N rows, D features, K codes, S temperatures. The kernel is plain C (`native.c`), built by
`native_build`; each of torch's threads calls it once a pass for its own share of the rows, without
the interpreter's lock. Memory is linear in N and in K. Sums over rows are gathered by thread and
added up in order, so results are the same bits each time for one number of threads.

What differs from `reference`: weights below e^-c of a row's largest are zero, with c = 21 + log K.
All that a row leaves out adds up to less than e^-21 = 8e-10 of its largest weight, and to less than
2^-25 nat of its entropy: below the last digit of float32. Where few weights are left, as at the
temperatures of training, the kernel does everything but the scores with those alone. It notes them,
up to 32 a row on average, for the backward pass, which then needs no scores.
"""

import ctypes
import functools
import math
import os
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from softvq.functional.backends import native_build
from softvq.functional.backends.operators import (
    Gradients,
    Kept,
    Problem,
    Saved,
    make_operators,
)

FIRST_CUT = 21.0  # c less log K
SPARSE_SHARE = 0.25  # of the weights left, below which they are picked out
ROWS_A_THREAD = 64  # fewer are not worth a thread
WORK_A_THREAD = 2**20  # N K D, likewise
NOTES_A_ROW = 67  # as the kernel has it: what its forward pass notes of picked codes
GATHERED_BYTES = 2**28  # of the threads' sums for the codes: fewer threads where they hold more


class Arguments(ctypes.Structure):
    """The kernel's `Problem`: sizes, and where everything is."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "codes", "dim", "levels", "threads")),
        *((name, ctypes.c_int64) for name in ("wide_codes", "wide_dim", "row", "pull_row")),
        *((name, ctypes.c_float) for name in ("cut", "sparse_share")),
        *((name, ctypes.c_void_p) for name in ("panels", "bias", "squared", "values")),
        *((name, ctypes.c_void_p) for name in ("codebook", "d_use", "usable")),
        *((name, ctypes.c_void_p) for name in ("z", "temperature", "share")),
        *((name, ctypes.c_void_p) for name in ("mean", "spread", "free_energy", "entropy")),
        *((name, ctypes.c_void_p) for name in ("top", "log_total", "indices", "use", "notes")),
        *((name, ctypes.c_void_p) for name in ("d_mean", "d_spread", "d_free", "d_entropy")),
        *((name, ctypes.c_void_p) for name in ("flows", "d_z", "d_codes")),
        *((name, ctypes.c_void_p) for name in ("column", "d_temperature", "d_codebook")),
    )


def unavailable(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why this back end cannot run a problem, or None where it can.

    Args:
        device: Where the tensors are.
        dtype: Of the computation.

    Returns:
        The reason, to follow "because", or None.

    Example:
        >>> unavailable(torch.device("cpu"), torch.float64)
        'it computes in float32, and the dtype here is torch.float64'
    """
    if device.type != "cpu":
        return f"it is for CPUs, and the tensors are on {device}"
    if dtype != torch.float32:
        return f"it computes in float32, and the dtype here is {dtype}"
    return native_build.why_not()


def _nearest(z: Tensor, codebook: Tensor, usable: Tensor | None) -> Tensor:
    call = _Call(Problem(z, codebook, z.new_ones(0), None, usable))
    indices = call.new(z.shape[0], name="indices", dtype=torch.int64)
    call.run("softvq_nearest", z.shape[0])
    return indices


def _forward(problem: Problem) -> Saved:
    z, codebook, temperature = problem[:3]
    levels, (num_rows, dim) = temperature.shape[0], z.shape
    call = _Call(problem)
    use = call.new(
        call.threads, levels, codebook.shape[0], name="use", dtype=torch.float64, zero=True
    )
    by_row = {name: call.new(levels, num_rows, name=name) for name in Saved._fields[1:4]}
    saved = {
        "mean": call.new(levels, num_rows, dim, name="mean"),
        **by_row,
        "indices": call.new(num_rows, name="indices", dtype=torch.int64),
        "top": call.new(num_rows, name="top"),
        "log_total": call.new(levels, num_rows, name="log_total"),
        "notes": call.new(
            levels * num_rows * NOTES_A_ROW, name="notes", dtype=torch.int32, zero=True
        ),
    }
    call.run("softvq_forward", num_rows)
    return Saved(use=(use.sum(0) / problem.num_counted).float(), **saved)


def _backward(
    problem: Problem, kept: Kept, gradients: Gradients, wants_temperature: bool
) -> tuple[Tensor, Tensor, Tensor]:
    del wants_temperature  # it costs nothing here
    z, codebook, temperature = problem[:3]
    use = None if gradients.use is None else gradients.use / problem.num_counted
    gradients = gradients._replace(use=use)
    call = _Call(problem, d_use=use)
    for name in ("mean", "top", "log_total", "notes"):
        call.give(name, getattr(kept, name))
    names = ("mean", "spread", "free_energy", "entropy")
    for name in names:
        call.give(f"d_{name.split('_')[0]}", getattr(gradients, name))
    order = (gradients.mean, gradients.spread, gradients.free_energy, gradients.entropy, use)
    flows = torch.stack([_is_any(each, temperature) for each in order], -1)
    call.give("flows", flows)
    d_z = call.new(*z.shape, name="d_z")
    wide = (call.arguments.wide_codes, call.arguments.wide_dim)
    call.new(call.threads, *wide, name="d_codes", zero=True)
    call.new(call.threads, wide[0], name="column", dtype=torch.float64, zero=True)
    warm = call.new(
        call.threads, len(temperature), name="d_temperature", dtype=torch.float64, zero=True
    )
    d_codebook = call.new(*codebook.shape, name="d_codebook")
    call.run("softvq_backward", z.shape[0])
    call.run("softvq_finish", codebook.shape[0])
    d_temperature = warm.sum(0).float()
    if gradients.free_energy is not None:
        d_temperature -= (gradients.free_energy * kept.entropy).sum(-1)
    return d_z, d_codebook, d_temperature


def _is_any(gradient: Tensor | None, temperature: Tensor) -> Tensor:
    """Which levels have a gradient that is not zero throughout, NaN included."""
    if gradient is None or gradient.numel() == 0:
        return torch.zeros(len(temperature), dtype=torch.bool, device="cpu")
    low, high = torch.stack([torch.stack(torch.aminmax(each)) for each in gradient], 1)
    return (low != 0) | (high != 0)


class _Call:
    """The arguments of one pass, and the tensors that they point to."""

    def __init__(self, problem: Problem, d_use: Tensor | None = None) -> None:
        z, codebook, temperature, keep, usable = problem
        library = native_build.load().library
        assert library is not None, "choose_backend has looked"
        self._library = library
        self._held: list[Tensor] = []
        panel, lanes = library.softvq_panel(), library.softvq_lanes()
        (num_rows, dim), num_codes, levels = z.shape, codebook.shape[0], temperature.shape[0]
        wide_codes, wide_dim = _round_up(num_codes, panel), _round_up(dim, lanes)
        self.arguments = Arguments(
            *(num_rows, num_codes, dim, levels, 1, wide_codes, wide_dim),
            row=wide_codes + lanes,
            pull_row=wide_dim + _round_up(1 + levels, lanes),
            cut=FIRST_CUT + math.log(num_codes),
            sparse_share=SPARSE_SHARE,
        )
        self.threads = self.arguments.threads = self._count_threads()
        self.give("z", z)
        self.give("codebook", codebook)
        self.give("temperature", temperature)
        self.give("share", z.new_ones(num_rows) if keep is None else keep)
        self.give("usable", usable)
        self.give("d_use", d_use)
        self.new(wide_codes, dim + 1 + levels, name="panels")
        self.new(wide_codes, wide_dim, name="values")
        self.new(wide_codes, name="bias")
        self.new(wide_codes, name="squared")
        self.run("softvq_pack", wide_codes)

    def _count_threads(self) -> int:
        sizes = self.arguments
        work = sizes.rows * sizes.codes * sizes.dim
        room = GATHERED_BYTES // (4 * sizes.wide_codes * sizes.wide_dim)
        most = (sizes.rows // ROWS_A_THREAD, work // WORK_A_THREAD, max(2, room))
        return max(1, min(torch.get_num_threads(), *most))

    def give(self, name: str, tensor: Tensor | None) -> None:
        """Point an argument to a tensor, contiguous; to nothing where there is none."""
        if tensor is None:
            return
        tensor = tensor.contiguous()
        self._held.append(tensor)
        setattr(self.arguments, name, tensor.data_ptr())

    def new(
        self, *shape: int, name: str, dtype: torch.dtype = torch.float32, zero: bool = False
    ) -> Tensor:
        """Memory that an argument points to."""
        make = torch.zeros if zero else torch.empty
        tensor = make(shape, dtype=dtype, device="cpu")
        self.give(name, tensor)
        return tensor

    def run(self, name: str, count: int) -> None:
        """Call a function of the library, each thread with its share of ``count`` rows or codes."""
        function = getattr(self._library, name)
        ends = [count * i // self.threads for i in range(self.threads + 1)]
        fine = [0] * self.threads

        def work(i: int) -> None:
            fine[i] = function(ctypes.byref(self.arguments), ends[i], ends[i + 1], i)

        # The first share is worked here while the others' threads wake up.
        others = range(1, self.threads)
        waiting = [_pool(os.getpid(), len(others)).submit(work, i) for i in others]
        work(0)
        for each in waiting:
            each.result()
        if not all(fine):
            raise MemoryError("The native back end could not get memory for its tiles of rows.")


@functools.lru_cache(maxsize=1)
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Threads that wait for work; a forked process has none of its parent's, and gets its own."""
    del process  # only to tell one from another
    return ThreadPoolExecutor(threads, thread_name_prefix="softvq")


def _round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


soft_assign, nearest_code = make_operators(
    "native_", nearest=_nearest, forward=_forward, backward=_backward, notes_a_row=NOTES_A_ROW
)
