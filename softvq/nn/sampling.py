"""`sample_codes`: soft quantizers draw their codes at random for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from softvq.nn.soft import SoftVQ


@contextmanager
def sample_codes(model: nn.Module, generator: torch.Generator) -> Iterator[None]:
    """Let every soft codebook of ``model`` draw codes by their weights inside the block.

    A code is drawn with probability softmax(-|z - p|^2 / T), T that of the gradient path, in
    training and in eval mode; a residual stack goes on from the code that was drawn.

    Args:
        model: Holds quantizers anywhere inside.
        generator: Source of randomness, on the device of the model; the same seed draws the same.

    Raises:
        ValueError: For a model without a soft codebook, or a generator on another device.

    Example:
        >>> vq = SoftVQ(4, 2).eval()
        >>> with sample_codes(vq, torch.Generator().manual_seed(0)):
        ...     out = vq(torch.zeros(3, 2))
        >>> torch.equal(vq.codes(out.indices), out.quantized)
        True
    """
    if not isinstance(generator, torch.Generator):
        raise ValueError(f"generator must be a torch.Generator; got {type(generator).__name__}.")
    found = [module for module in model.modules() if isinstance(module, SoftVQ)]
    if not found:
        raise ValueError(f"model ({type(model).__name__}) holds no SoftVQ to draw codes from.")
    device = found[0].codebook.device
    if device.type != generator.device.type:
        raise ValueError(
            f"generator is on {generator.device}, the codes of model on {device}: make it with "
            f"torch.Generator({str(device)!r})."
        )
    before = [each.sampler for each in found]
    try:
        for each in found:
            each.sampler = generator
        yield
    finally:
        for each, held in zip(found, before, strict=True):
            each.sampler = held
