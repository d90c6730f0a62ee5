"""softvq: differentiable vector quantization, measured by its hard codes."""

from softvq.export import (
    Codebook,
    TokenDataset,
    export_codebook,
    export_tokens,
    load_codebook,
    load_tokens,
)
from softvq.hosts import restore, swap
from softvq.nn import (
    CodebookWarning,
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
    "Codebook",
    "CodebookWarning",
    "HardVQ",
    "Loss",
    "Quantizer",
    "QuantizerOutput",
    "Revival",
    "SoftVQ",
    "Temperature",
    "TokenDataset",
    "Updates",
    "attach",
    "export_codebook",
    "export_tokens",
    "load_codebook",
    "load_tokens",
    "quantize_mode",
    "restore",
    "swap",
]
