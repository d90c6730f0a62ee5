"""Structural similarity, at one scale and at five, for pictures of any declared range.

Wang et al., "Image Quality Assessment: From Error Visibility to Structural Similarity" (2004),
https://www.cns.nyu.edu/pub/eero/wang03-reprint.pdf, and "Multiscale Structural Similarity for Image
Quality Assessment" (2003), https://ece.uwaterloo.ca/~z70wang/publications/msssim.pdf.

The window is the papers' Gaussian of 11 x 11, deviation 1.5, where it lies wholly on the picture.
Here it is two matrix products in float64: torchmetrics' convolution takes fifteen times as long in
that precision, and a test set is measured several times a run. The tests hold this to scikit-image
and to torchmetrics, which by itself also counts places where the window hangs over a reflected
border.
"""

import math
from typing import NamedTuple, final

import torch
import torch.nn.functional as F
from einops import einsum, reduce
from jaxtyping import Float
from torch import Tensor

from softvq.measures.state import Conditions, PictureMeasure, check_pair, clamp_or_nan

WINDOW = 11
DEVIATION = 1.5
LUMINANCE, CONTRAST = 0.01**2, 0.03**2
"""The papers' constants for a range of 1."""

SCALE_POWERS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
SMALLEST = WINDOW * 2 ** (len(SCALE_POWERS) - 1)
"""Side at which the fifth scale still holds a window."""


class SsimReport(NamedTuple):
    """Mean over images of a similarity, 1 for equal pictures, and how many images it is of."""

    mean_over_images: float
    images: int
    not_finite: int
    conditions: Conditions


class Terms(NamedTuple):
    """Means of both factors of the similarity over a picture: all of it, and without luminance."""

    similarity: Float[Tensor, " b"]
    structure: Float[Tensor, " b"]


def _window(size: int, *, device: torch.device) -> Tensor:
    """Matrix (size - 10, size) of a Gaussian at each place where it fits."""
    place = torch.arange(size, dtype=torch.float64, device=device)
    center = torch.arange(size - WINDOW + 1, dtype=torch.float64, device=device) + WINDOW // 2
    offset = place - center[:, None]
    weight = torch.exp(-0.5 * (offset / DEVIATION) ** 2) * (offset.abs() <= WINDOW // 2)
    return weight / weight.sum(1, keepdim=True)


def similarity_terms(
    images: Float[Tensor, "b c h w"], reconstructions: Float[Tensor, "b c h w"]
) -> Terms:
    """Structural similarity of pictures in [0, 1], mean over channels and places.

    With means m, variances v and covariance w under the window, (2 m1 m2 + C1) / (m1^2 + m2^2 + C1)
    times the structure (2 w + C2) / (v1 + v2 + C2).

    Args:
        images: In [0, 1].
        reconstructions: In [0, 1], of the same shape.

    Returns:
        Both in float64.

    Raises:
        ValueError: If a side is shorter than the window of 11.

    Example:
        >>> similarity_terms(torch.zeros(1, 1, 16, 16), torch.ones(1, 1, 16, 16)).similarity
        tensor([9.9990e-05], dtype=torch.float64)
    """
    height, width = images.shape[-2:]
    if min(height, width) < WINDOW:
        raise ValueError(
            f"images must have sides of at least {WINDOW} pixels, the window of SSIM; got "
            f"{height} x {width}."
        )
    x, y = images.double(), reconstructions.double()
    down, across = _window(height, device=x.device), _window(width, device=x.device)

    def blur(values: Tensor) -> Tensor:
        return einsum(down, values, across, "i h, b c h w, j w -> b c i j")

    mean_x, mean_y = blur(x), blur(y)
    square = mean_x.square() + mean_y.square()
    product = mean_x * mean_y
    variances = blur(x.square() + y.square()) - square
    covariance = blur(x * y) - product
    structure = (2 * covariance + CONTRAST) / (variances + CONTRAST)
    whole = (2 * product + LUMINANCE) / (square + LUMINANCE) * structure
    return Terms(reduce(whole, "b c i j -> b", "mean"), reduce(structure, "b c i j -> b", "mean"))


class _Similarity(PictureMeasure):
    """The mean over images of some similarity of two pictures in [0, 1]."""

    def _zeros(self) -> dict[str, Tensor]:
        return {
            "sum": torch.zeros((), dtype=torch.float64),
            "images": torch.zeros((), dtype=torch.int64),
            "not_finite": torch.zeros((), dtype=torch.int64),
        }

    def _scaled(self, images: Tensor, reconstructions: Tensor) -> tuple[Tensor, Tensor]:
        """Both in [0, 1] and float64: the constants hold for pictures whose black is 0."""
        check_pair(images, reconstructions, low=self.low, high=self.high)
        made = clamp_or_nan(reconstructions.double(), low=self.low, high=self.high)
        width = self.high - self.low
        return (images.double() - self.low) / width, (made - self.low) / width

    def _take(self, values: Tensor, reconstructions: Tensor) -> None:
        self._add("sum", values.sum())
        self._add("images", torch.tensor(len(values), device=values.device))
        self._add("not_finite", (~torch.isfinite(values)).sum())
        self._note(reconstructions)

    def _report(self, net: str) -> SsimReport:
        images = int(self._state["images"])
        mean = self._state["sum"].item() / images if images else math.nan
        conditions = self._conditions(images=images, net=net)
        return SsimReport(mean, images, int(self._state["not_finite"]), conditions)


@final
class Ssim(_Similarity):
    """SSIM over images, exact over batches and processes.

    The mean over channels and over the places where the window fits, then over images.
    Reconstructions are clamped to the range and not rounded; one that is not finite is counted and
    makes the mean NaN.

    Args:
        low: Low end of the images' range.
        high: High end.

    Raises:
        ValueError: If ``high`` is not above ``low``.

    Example:
        >>> measure = Ssim(low=0.0, high=1.0)
        >>> ramp = torch.linspace(0, 1, 256).reshape(1, 1, 16, 16)
        >>> measure.update(ramp, 1 - ramp)
        >>> print(f"{measure.compute().mean_over_images:.3f}")
        -0.826
    """

    def update(
        self, images: Float[Tensor, "b c h w"], reconstructions: Float[Tensor, "b c h w"]
    ) -> None:
        """Add a batch.

        Args:
            images: In [low, high], with sides of at least 11.
            reconstructions: Of the same shape.

        Raises:
            ValueError: For shapes that differ, pictures too small, or images out of their range.
        """
        pair = self._scaled(images, reconstructions)
        if images.numel():
            self._take(similarity_terms(*pair).similarity, reconstructions)

    def compute(self) -> SsimReport:
        """Mean SSIM of all images so far; NaN for none."""
        return self._report(f"Gaussian window {WINDOW}, deviation {DEVIATION}")


@final
class MsSsim(_Similarity):
    """Multi-scale SSIM over images: the structure at four halvings, the similarity at the fifth.

    A structure below 0 counts as 0: its power would be no number.

    Args:
        low: Low end of the images' range.
        high: High end.

    Raises:
        ValueError: If ``high`` is not above ``low``.

    Example:
        >>> measure = MsSsim(low=0.0, high=1.0)
        >>> measure.update(torch.zeros(1, 1, 176, 176), torch.zeros(1, 1, 176, 176))
        >>> measure.compute().mean_over_images
        1.0
        >>> measure.update(torch.zeros(1, 3, 32, 32), torch.zeros(1, 3, 32, 32))
        Traceback (most recent call last):
        ValueError: images must have sides of at least 176 pixels for MS-SSIM, whose fifth scale \
halves them four times; got 32 x 32. Measure SSIM instead.
    """

    def update(
        self, images: Float[Tensor, "b c h w"], reconstructions: Float[Tensor, "b c h w"]
    ) -> None:
        """Add a batch.

        Args:
            images: In [low, high], with sides of at least 176.
            reconstructions: Of the same shape.

        Raises:
            ValueError: For shapes that differ, pictures too small, or images out of their range.
        """
        x, y = self._scaled(images, reconstructions)
        if not images.numel():
            return
        height, width = images.shape[-2:]
        if min(height, width) < SMALLEST:
            raise ValueError(
                f"images must have sides of at least {SMALLEST} pixels for MS-SSIM, whose fifth "
                f"scale halves them four times; got {height} x {width}. Measure SSIM instead."
            )
        value = torch.ones(len(x), dtype=torch.float64, device=x.device)
        for scale, power in enumerate(SCALE_POWERS):
            if scale:
                x, y = F.avg_pool2d(x, 2), F.avg_pool2d(y, 2)
            terms = similarity_terms(x, y)
            last = scale == len(SCALE_POWERS) - 1
            value = value * (terms.similarity if last else terms.structure).clamp_min(0) ** power
        self._take(value, reconstructions)

    def compute(self) -> SsimReport:
        """Mean MS-SSIM of all images so far; NaN for none."""
        return self._report(
            f"Gaussian window {WINDOW}, deviation {DEVIATION}, {len(SCALE_POWERS)} scales"
        )
