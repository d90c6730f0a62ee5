"""Peak signal-to-noise ratio, both means, for images in [-1, 1] or [0, 1]."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from softvq.checks import check_floating, check_number

TOLERANCE = 1e-3


class PsnrReport(NamedTuple):
    """PSNR over a data set, in dB, and how many images it is of."""

    mean_over_images: float
    of_mean: float
    images: int
    not_finite: int


def psnr(error: float, *, peak: float) -> float:
    """10 log10(peak^2 / error); infinite for no error.

    Args:
        error: Mean squared error.
        peak: Width of the images' range: 2 for [-1, 1], 1 for [0, 1].

    Returns:
        dB.

    Example:
        >>> round(psnr(0.01, peak=1.0), 6), round(psnr(0.04, peak=2.0), 6)
        (20.0, 20.0)
    """
    return math.inf if error == 0 else 10 * math.log10(peak**2 / error)


class Psnr:
    """PSNR over images, exact over batches of any size.

    ``mean_over_images`` is the mean of each image's PSNR, ``of_mean`` the PSNR of the mean error
    over all images (lower, as the logarithm is concave). Reconstructions are clamped to the range,
    as a picture would be, and not rounded. An image whose reconstruction is not finite is counted
    in ``not_finite`` and makes both figures NaN: it is not averaged away.

    Args:
        low: Low end of the images' range.
        high: High end.

    Raises:
        ValueError: If ``high`` is not above ``low``.

    Example:
        >>> measure = Psnr(low=0.0, high=1.0)
        >>> measure.update(torch.full((2, 1, 4, 4), 0.5), torch.full((2, 1, 4, 4), 0.6))
        >>> round(measure.compute().of_mean, 3)
        20.0
    """

    def __init__(self, *, low: float = -1.0, high: float = 1.0) -> None:
        self.low = check_number("low", low)
        self.high = check_number("high", high, above=self.low)
        self.reset()

    def reset(self) -> None:
        """Forget all images."""
        self._sum_psnr = 0.0
        self._sum_error = 0.0
        self._images = 0
        self._not_finite = 0

    def update(
        self, images: Float[Tensor, "b c h w"], reconstructions: Float[Tensor, "b c h w"]
    ) -> None:
        """Add a batch.

        Args:
            images: In [low, high].
            reconstructions: Of the same shape.

        Raises:
            ValueError: For shapes that differ, or images that are NaN or out of their range.
        """
        check_floating("images", images)
        check_floating("reconstructions", reconstructions)
        if images.shape != reconstructions.shape:
            raise ValueError(
                f"reconstructions must have the images' shape {tuple(images.shape)}; got "
                f"{tuple(reconstructions.shape)}."
            )
        if not images.numel():
            return
        low, high = (end.item() for end in images.aminmax())
        if not (low >= self.low - TOLERANCE and high <= self.high + TOLERANCE):  # NaN is neither
            raise ValueError(
                f"images must lie in [{self.low:g}, {self.high:g}]; got values from {low:.3g} to "
                f"{high:.3g}. Scale them, or give the measure their range."
            )
        whole = torch.where(torch.isfinite(reconstructions), reconstructions, torch.nan)
        clamped = whole.double().clamp(self.low, self.high)  # an infinity would pass as an end
        errors = (images.double() - clamped).square().mean((1, 2, 3))
        peak = self.high - self.low
        self._sum_psnr += (10 * torch.log10(peak**2 / errors)).sum().item()
        self._sum_error += errors.sum().item()
        self._images += len(images)
        self._not_finite += int((~torch.isfinite(errors)).sum())

    def compute(self) -> PsnrReport:
        """PSNR of all images so far; NaN for none.

        Returns:
            Both means and the number of images.
        """
        if self._images == 0:
            return PsnrReport(math.nan, math.nan, 0, 0)
        mean = self._sum_psnr / self._images
        error = self._sum_error / self._images
        of_mean = math.nan if math.isnan(error) else psnr(error, peak=self.high - self.low)
        return PsnrReport(mean, of_mean, self._images, self._not_finite)
