"""SoftVQ in other people's models: found by what they do, swapped in place, and restored."""

from softvq.hosts.adapter import Adapter
from softvq.hosts.geometry import CodebookAt
from softvq.hosts.report import SwappedQuantizer, SwapReport, swap_report
from softvq.hosts.search import Finding
from softvq.hosts.swapping import restore, swap

__all__ = [
    "Adapter",
    "CodebookAt",
    "Finding",
    "SwapReport",
    "SwappedQuantizer",
    "restore",
    "swap",
    "swap_report",
]
