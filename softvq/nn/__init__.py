"""Modules that own codebooks and call the pure functions."""

from softvq.nn.alarms import CodebookWarning
from softvq.nn.attach import Updates, attach
from softvq.nn.base import Quantizer
from softvq.nn.hard import HardVQ
from softvq.nn.mode import quantize_mode
from softvq.nn.revival import Revival
from softvq.nn.soft import Loss, SoftVQ
from softvq.nn.temperature import Temperature

__all__ = [
    "CodebookWarning",
    "HardVQ",
    "Loss",
    "Quantizer",
    "Revival",
    "SoftVQ",
    "Temperature",
    "Updates",
    "attach",
    "quantize_mode",
]
