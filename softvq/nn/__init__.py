"""Modules that own codebooks and call the pure functions."""

from softvq.nn.alarms import CodebookWarning
from softvq.nn.attach import Updates, attach
from softvq.nn.base import Quantizer
from softvq.nn.encoders import with_readout
from softvq.nn.hard import HardVQ
from softvq.nn.health import HealthMonitor, HealthReading
from softvq.nn.mode import quantize_mode
from softvq.nn.readout import DDCLAttention, DDCLReadout
from softvq.nn.revival import Revival
from softvq.nn.soft import Loss, SoftVQ
from softvq.nn.stack import DDCLLevel, DDCLStack
from softvq.nn.temperature import Temperature

__all__ = [
    "CodebookWarning",
    "DDCLAttention",
    "DDCLLevel",
    "DDCLReadout",
    "DDCLStack",
    "HardVQ",
    "HealthMonitor",
    "HealthReading",
    "Loss",
    "Quantizer",
    "Revival",
    "SoftVQ",
    "Temperature",
    "Updates",
    "attach",
    "quantize_mode",
    "with_readout",
]
