"""Measures over a whole data set, as pairs of update and compute."""

from softvq.measures.codebook import CodebookUse, UseReport
from softvq.measures.reconstruction import Psnr, PsnrReport, psnr

__all__ = ["CodebookUse", "Psnr", "PsnrReport", "UseReport", "psnr"]
