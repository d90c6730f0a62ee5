"""The columns of the table: which measures it shows, how they are printed, which way is better."""

from typing import Literal, NamedTuple


class Column(NamedTuple):
    """One measure of the table: how it is named, scaled and printed, and which way is better.

    An optional one, and a soft one, is left out where no method has it; a count of faults also
    where all are 0.
    """

    measure: str
    title: str
    meaning: str
    decimals: int
    scale: float = 1.0
    better: Literal["more", "less", "neither"] = "neither"
    soft: bool = False
    optional: bool = False
    faults: bool = False


def _make_pair(measure: str, title: str, meaning: str, decimals: int) -> tuple[Column, Column]:
    """Return the hard and the soft column of a measure that a run may have been without."""
    better = "more" if measure.endswith("ssim") else "less"
    hard = Column(f"{measure}_hard", title, meaning, decimals, better=better, optional=True)
    soft = Column(f"{measure}_soft", title, meaning, decimals, soft=True, optional=True)
    return hard, soft


_PERCEPTUAL = (
    _make_pair("ssim", "SSIM", "Structural similarity, mean over test images", 4),
    _make_pair("ms_ssim", "MS-SSIM", "SSIM over several scales, mean over test images", 4),
    _make_pair("lpips_alex", "LPIPS alex", "Perceptual distance by AlexNet's features", 4),
    _make_pair("lpips_vgg", "LPIPS VGG", "Perceptual distance by VGG-16's features", 4),
    _make_pair(
        "rfid", "rFID", "Frechet distance of Inception's features, inputs to reconstructions", 2
    ),
    _make_pair(
        "fid",
        "FID",
        "Frechet distance of Inception's features, training pictures to reconstructions",
        2,
    ),
    _make_pair(
        "fd_vgg16",
        "FD-VGG16",
        "Frechet distance of VGG-16's features, inputs to reconstructions: no FID",
        2,
    ),
)
_NOT_FINITE = "Reconstructions that are not finite: they make the other figures NaN"
# Soft figures are never ranked: a collapsed codebook wins them. Neither is the number of distinct
# codes: a codebook that nothing has trained has them all. T itself is no column: it means nothing
# without the scale of the data.
COLUMNS = (
    Column("psnr_hard", "PSNR dB", "Mean over test images of the PSNR", 2, better="more"),
    Column(
        "psnr_hard_of_mean", "PSNR of mean error dB", "PSNR of the mean error", 2, better="more"
    ),
    Column("use_hard", "Use %", "Share of codes that some token takes", 1, 100.0, "more"),
    Column("perplexity_hard", "Perplexity", "exp of the entropy of code use", 1, better="more"),
    *(hard for hard, _ in _PERCEPTUAL),
    Column("bits_per_token", "Bits a token", "log2 K: what an index takes", 2, optional=True),
    Column("entropy_bits_hard", "Entropy bits", "Entropy of code use, bits", 2, optional=True),
    Column("bits_per_pixel", "Bits a pixel", "Rate at log2 K a token", 4, optional=True),
    Column(
        "entropy_bits_per_pixel", "Entropy bits a pixel", "Rate at the entropy", 4, optional=True
    ),
    Column("not_finite_hard", "Not finite", _NOT_FINITE, 0, better="less", faults=True),
    Column("distinct_codes", "Distinct codes", "Codes that do not coincide", 0),
    Column("seconds", "Seconds", "Wall clock of the steps, with whatever else the device did", 0),
    Column("psnr_soft", "PSNR dB", "Mean over test images of the PSNR", 2, soft=True),
    Column("psnr_soft_of_mean", "PSNR of mean error dB", "PSNR of the mean error", 2, soft=True),
    *(soft for _, soft in _PERCEPTUAL),
    Column("not_finite_soft", "Not finite", _NOT_FINITE, 0, soft=True, faults=True),
    Column("use_soft", "Use %", "Share of codes that get weight", 1, 100.0, soft=True),
    Column("perplexity_soft", "Perplexity", "exp of the entropy of the mean weights", 1, soft=True),
    Column("entropy", "Entropy nats", "Mean entropy of a token's weights", 2, soft=True),
    Column("spread_share", "V / L_q", "Share of the distortion that is spread", 3, soft=True),
    Column("temperature_ratio", "T / T_c", "Temperature over critical", 3, soft=True),
)
