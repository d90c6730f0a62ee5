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
    DDCLAttention,
    DDCLLevel,
    DDCLReadout,
    DDCLStack,
    HardVQ,
    HealthMonitor,
    Loss,
    Quantizer,
    Revival,
    SoftVQ,
    Temperature,
    Updates,
    attach,
    quantize_mode,
    with_readout,
)
from softvq.types import DDCLOutput, QuantizerOutput, ReadoutOutput, StackOutput

__version__ = "0.1.0"

__all__ = [
    "Codebook",
    "CodebookWarning",
    "DDCLAttention",
    "DDCLLevel",
    "DDCLOutput",
    "DDCLReadout",
    "DDCLStack",
    "HardVQ",
    "HealthMonitor",
    "Loss",
    "Quantizer",
    "QuantizerOutput",
    "ReadoutOutput",
    "Revival",
    "SoftVQ",
    "StackOutput",
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
    "with_readout",
]
