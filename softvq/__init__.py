"""softvq: differentiable vector quantization, measured by its hard codes."""

from softvq.nn import (
    HardVQ,
    Loss,
    Quantizer,
    Revival,
    SoftVQ,
    Temperature,
    Updates,
    attach,
    quantize_mode,
)
from softvq.types import QuantizerOutput

__version__ = "0.1.0"

__all__ = [
    "HardVQ",
    "Loss",
    "Quantizer",
    "QuantizerOutput",
    "Revival",
    "SoftVQ",
    "Temperature",
    "Updates",
    "attach",
    "quantize_mode",
]
