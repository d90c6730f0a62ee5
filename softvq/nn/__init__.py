"""Modules that own codebooks and call the pure functions.

What to take for which use; the parts combine, the outermost one has the layout, and
`softvq.attach` finds every codebook inside.

| For | Take |
|---|---|
| one codebook, trained softly | ``SoftVQ(1024, 64)`` |
| the quantizers of the papers | ``HardVQ(1024, 64, estimator=..., codebook=...)`` |
| an audio codec, more bits a token | ``ResidualVQ([Scaled(SoftVQ(1024, 64)) ...], dropout=0.5)`` |
| fewer bits from a trained residual stack | ``vq.codes(indices[..., :2])`` |
| one codebook for all stages | ``ResidualVQ([SoftVQ(1024, 64)] * 4)`` |
| groups of features, each its own codes | ``GroupedVQ([SoftVQ(512, 32), SoftVQ(512, 32)])`` |
| the same as one token of 2^18 | ``OneIndex(GroupedVQ([SoftVQ(512, 32), SoftVQ(512, 32)]))`` |
| heads that share a codebook | ``MultiHeadVQ(SoftVQ(1024, 16), num_heads=4)`` |
| an image tokenizer: few features, unit codes | ``Projected(Cosine(SoftVQ(8192, 8)), dim=256)`` |
| a codec of low-dimensional codes | ``ResidualVQ([Projected(Cosine(SoftVQ(1024, 8)), 64) ...])`` |
| very many codes, none of which may starve | ``ImplicitVQ(2**18, 8)`` |
| a grid without a codebook | ``Projected(SoftFSQ([8, 8, 8]), dim=64)`` |
| clips of different lengths | ``vq(z, lengths=...)`` or ``vq(z, mask=...)`` |
| random codes by their weights | ``with sample_codes(model, generator):`` |
| bits of an arrangement | ``measure_bits(vq, positions=64)``, or ``softvq info`` of a file |
"""

from softvq.nn.accounting import Bits, measure_bits
from softvq.nn.alarms import CodebookWarning
from softvq.nn.arrangement import Arrangement
from softvq.nn.attach import Updates, attach
from softvq.nn.base import Quantizer
from softvq.nn.encoders import with_readout
from softvq.nn.fsq import SoftFSQ
from softvq.nn.grouped import GroupedVQ, MultiHeadVQ, OneIndex
from softvq.nn.hard import HardVQ, Learning
from softvq.nn.health import HealthMonitor, HealthReading
from softvq.nn.implicit import ImplicitVQ
from softvq.nn.loss import Loss
from softvq.nn.mode import quantize_mode
from softvq.nn.readout import DDCLAttention, DDCLReadout
from softvq.nn.residual import ResidualVQ
from softvq.nn.revival import Revival
from softvq.nn.sampling import sample_codes
from softvq.nn.soft import SoftVQ
from softvq.nn.stack import DDCLLevel, DDCLStack
from softvq.nn.temperature import Temperature
from softvq.nn.wrapped import Cosine, Projected, Scaled

__all__ = [
    "Arrangement",
    "Bits",
    "CodebookWarning",
    "Cosine",
    "DDCLAttention",
    "DDCLLevel",
    "DDCLReadout",
    "DDCLStack",
    "GroupedVQ",
    "HardVQ",
    "HealthMonitor",
    "HealthReading",
    "ImplicitVQ",
    "Learning",
    "Loss",
    "MultiHeadVQ",
    "OneIndex",
    "Projected",
    "Quantizer",
    "ResidualVQ",
    "Revival",
    "Scaled",
    "SoftFSQ",
    "SoftVQ",
    "Temperature",
    "Updates",
    "attach",
    "measure_bits",
    "quantize_mode",
    "sample_codes",
    "with_readout",
]
