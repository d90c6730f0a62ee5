"""In which precision things are worked out: float32 at least, whatever autocast says."""

import functools
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """A block in which autocast is off for the tensor's device; nothing where it has none.

    In bf16 one to five per cent of nearest codes are wrong, so assignment never runs in it.

    Example:
        >>> with torch.autocast("cpu", torch.bfloat16), without_autocast(torch.ones(1)):
        ...     (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
        torch.float32
    """
    device = tensor.device.type
    if not torch.amp.is_autocast_available(device):
        return nullcontext()
    return torch.autocast(device, enabled=False)


def working_dtype(*held: Tensor | torch.dtype) -> torch.dtype:
    """The widest dtype of tensors, or of dtypes themselves, float32 at least.

    Example:
        >>> working_dtype(torch.ones(1, dtype=torch.bfloat16))
        torch.float32
        >>> working_dtype(torch.ones(1), torch.float64)
        torch.float64
    """
    dtypes = (each.dtype if isinstance(each, Tensor) else each for each in held)
    return functools.reduce(torch.promote_types, dtypes, torch.float32)


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor in float32, or in a wider dtype of its own.

    Example:
        >>> at_least_float32(torch.zeros(2, dtype=torch.bfloat16)).dtype
        torch.float32
    """
    return tensor.to(working_dtype(tensor))
