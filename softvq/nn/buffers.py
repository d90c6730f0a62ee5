"""Buffers that count and average keep their precision, whatever the model is cast to."""

from collections.abc import Callable

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
