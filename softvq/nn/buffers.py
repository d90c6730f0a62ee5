"""Buffers that count and average keep their precision, whatever the model is cast to."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def apply_keeping_dtypes(module: nn.Module, apply: Callable[[], object]) -> None:
    """Run ``apply``, which casts or moves ``module``, and give its own buffers their dtypes back.

    Values come from before the cast, so that no digit is lost on the way.

    Args:
        module: Owner of the buffers.
        apply: Calls ``nn.Module._apply`` of the base class.

    Example:
        >>> import torch
        >>> module = nn.BatchNorm1d(2)
        >>> apply_keeping_dtypes(module, lambda: nn.Module.half(module))
        >>> module.running_mean.dtype
        torch.float32
    """
    before: dict[str, Tensor] = {k: v for k, v in module._buffers.items() if v is not None}
    apply()
    for name, held in before.items():
        after = module._buffers[name]
        if after is not None and after.dtype != held.dtype:
            module._buffers[name] = held.to(after.device)


def widen_buffers(module: nn.Module) -> None:
    """Give float32 back to buffers of half precision, of the module and of its parts.

    ``load_state_dict(assign=True)`` and the loaders of other packages put a file's tensors in the
    place of a module's own, in the dtype that they come in.

    Args:
        module: Owner of the buffers; parameters stay as they are.

    Example:
        >>> module = nn.BatchNorm1d(2).half()
        >>> widen_buffers(module)
        >>> module.running_mean.dtype
        torch.float32
    """
    for part in module.modules():
        for name, held in part._buffers.items():
            if held is not None and held.dtype in (torch.float16, torch.bfloat16):
                part._buffers[name] = held.float()
