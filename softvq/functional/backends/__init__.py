"""Back ends of the assignment, and the table that picks one."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch._C._functorch import (
    get_unwrapped,
    is_functorch_wrapped_tensor,
    is_gradtrackingtensor,
)

from softvq.checks import choose
from softvq.functional.backends import native, triton

BACKENDS = ("reference", "sdpa", "chunked", "native", "triton")
FULL_BACKENDS = ("reference", "chunked", "native", "triton")
DENSE_LIMIT = 2**15


class BackendChoice(NamedTuple):
    """A back end and why it was picked."""

    name: str
    reason: str


def choose_backend(
    backend: str, z: Float[Tensor, "*batch n d"], *, num_codes: int, mean_only: bool = False
) -> BackendChoice:
    """Pick the back end for a problem, or check the one that was asked for.

    Args:
        backend: "auto" or a name.
        z: Rows, in the dtype of the computation.
        num_codes: K.
        mean_only: Whether mean and spread are all that is wanted.

    Returns:
        The name and the reason.

    Raises:
        ValueError: For an unknown name, or one that cannot run or give what is wanted.

    Example:
        >>> choose_backend("auto", torch.zeros(8192, 64), num_codes=8192).name
        'native'
    """
    choose("backend", backend, ("auto", *BACKENDS))
    if backend == "sdpa" and not mean_only:
        raise ValueError(
            "backend='sdpa' gives mean and spread alone: one attention call has no index, entropy "
            f"or free energy. Use soft_mean, or one of: auto, {', '.join(FULL_BACKENDS)}."
        )
    _check_can_run(backend, z)
    if backend != "auto":
        return BackendChoice(backend, "asked for by name")
    # A choice by size would be a guard on sizes in a compiled graph, and bounds in an exported one.
    if torch.compiler.is_compiling() and _is_exporting():
        return BackendChoice("reference", "exporting: plain operators, which any runtime has")
    if not torch.compiler.is_compiling() and _is_under_func_grad(z):
        return BackendChoice("reference", "torch.func.grad: only plain operators go with it")
    if z.device.type == "cuda":
        reason = triton.unavailable(z.device, z.shape[-1], z.dtype)
        if reason is None:
            return BackendChoice("triton", "fused kernels: no N x K buffer, no block of one")
        return BackendChoice("chunked", f"blocks of rows, as triton cannot run: {reason}")
    elements = z.numel() // z.shape[-1] * num_codes if not torch.compiler.is_compiling() else None
    if elements is not None and elements <= DENSE_LIMIT:
        return BackendChoice("reference", f"N x K = {elements} is small: dense formulas cost least")
    return _choose_on_cpu(z)


def _choose_on_cpu(z: Tensor) -> BackendChoice:
    reason = native.unavailable(z.device, z.dtype)
    if reason is None:
        return BackendChoice("native", "a fused kernel: memory linear in N and K, few passes")
    return BackendChoice(
        "chunked", f"blocks of rows: memory linear in N and K; native cannot run because {reason}"
    )


def _is_under_func_grad(z: Tensor) -> bool:
    """Whether torch.func.grad or the like traces this; vmap alone goes with every back end."""
    while is_functorch_wrapped_tensor(z):
        if is_gradtrackingtensor(z):
            return True
        z = get_unwrapped(z)
    return False


def _check_can_run(backend: str, z: Tensor) -> None:
    """Raise where a back end asked for by name cannot run."""
    if backend == "triton":
        reason = triton.unavailable(z.device, z.shape[-1], z.dtype)
    elif backend == "native":
        reason = native.unavailable(z.device, z.dtype)
    else:
        return
    if reason is not None:
        raise ValueError(
            f"backend='{backend}' cannot run because {reason}. Use backend='auto' or 'chunked'."
        )


def _is_exporting() -> bool:
    """Whether torch.export traces this; before torch 2.7 nothing tells, so False."""
    tells = getattr(torch.compiler, "is_exporting", None)
    return tells is not None and tells()
