"""`quantize_mode`: decode soft means or hard codes for a while, whatever the modules are set to."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from softvq.checks import choose
from softvq.nn.base import Quantizer
from softvq.nn.fsq import SoftFSQ
from softvq.nn.soft import warn_of_warmup


@contextmanager
def quantize_mode(model: nn.Module, mode: str) -> Iterator[None]:
    """Let every soft quantizer of ``model`` decode "soft" means or "hard" codes inside the block.

    Args:
        model: Holds quantizers anywhere inside.
        mode: "soft" or "hard".

    Raises:
        ValueError: For another mode, a model without quantizers, or "soft" where none has a soft
            assignment.

    Example:
        >>> import torch
        >>> from softvq.nn.soft import SoftVQ
        >>> vq = SoftVQ(4, 2).eval()
        >>> with quantize_mode(vq, "soft"):
        ...     out = vq(torch.zeros(3, 2))
        >>> torch.equal(out.quantized, vq.codes(out.indices))
        False
    """
    choose("mode", mode, ("soft", "hard"))
    found = [module for module in model.modules() if isinstance(module, Quantizer | SoftFSQ)]
    if not found:
        raise ValueError(f"model ({type(model).__name__}) holds no quantizer of softvq.")
    if mode == "soft" and not any(each.has_soft for each in found):
        kinds = ", ".join(sorted({type(each).__name__ for each in found}))
        raise ValueError(f"mode is 'soft', but {kinds} has no soft assignment: use 'hard'.")
    warn_of_warmup(model, "eval")
    before = [each.mode for each in found]
    try:
        for each in found:
            each.mode = mode
        yield
    finally:
        for each, held in zip(found, before, strict=True):
            each.mode = held
