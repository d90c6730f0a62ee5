"""Measures over a whole data set, as pairs of update and compute.

Those that rest on image nets want the extra ``measures`` and are imported from their own modules:
`softvq.measures.perceptual`, `softvq.measures.vgg` and `softvq.measures.inception`.
"""

from softvq.measures.codebook import CodebookUse, DistinctCodes, UseReport
from softvq.measures.reconstruction import Psnr, PsnrReport, psnr
from softvq.measures.similarity import MsSsim, Ssim, SsimReport
from softvq.measures.state import Conditions
from softvq.measures.tokens import (
    Cooccurrence,
    CooccurrenceReport,
    RatePoint,
    find_neighbours,
    rate_point,
)

__all__ = [
    "CodebookUse",
    "Conditions",
    "Cooccurrence",
    "CooccurrenceReport",
    "DistinctCodes",
    "MsSsim",
    "Psnr",
    "PsnrReport",
    "RatePoint",
    "Ssim",
    "SsimReport",
    "UseReport",
    "find_neighbours",
    "psnr",
    "rate_point",
]
