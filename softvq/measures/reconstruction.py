"""Peak signal-to-noise ratio, both means, for images in [-1, 1] or [0, 1]."""

import math
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from softvq.measures.state import Conditions, PictureMeasure, check_pair, clamp_or_nan


class PsnrReport(NamedTuple):
    """PSNR over a data set, in dB, and how many images it is of."""

    mean_over_images: float
    of_mean: float
    images: int
    not_finite: int
    conditions: Conditions


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


@final
class Psnr(PictureMeasure):
    """PSNR over images, exact over batches of any size and over processes.

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

    def _zeros(self) -> dict[str, Tensor]:
        return {
            "psnr": torch.zeros((), dtype=torch.float64),
            "error": torch.zeros((), dtype=torch.float64),
            "images": torch.zeros((), dtype=torch.int64),
            "not_finite": torch.zeros((), dtype=torch.int64),
        }

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
        check_pair(images, reconstructions, low=self.low, high=self.high)
        if not images.numel():
            return
        made = clamp_or_nan(reconstructions.double(), low=self.low, high=self.high)
        errors = (images.double() - made).square().mean((1, 2, 3))
        peak = self.high - self.low
        self._add("psnr", (10 * torch.log10(peak**2 / errors)).sum())
        self._add("error", errors.sum())
        self._add("images", torch.tensor(len(images), device=images.device))
        self._add("not_finite", (~torch.isfinite(errors)).sum())
        self._note(reconstructions)

    def compute(self) -> PsnrReport:
        """PSNR of all images so far; NaN for none.

        Returns:
            Both means and the number of images.
        """
        images = int(self._state["images"])
        conditions = self._conditions(images=images, net="none")
        if images == 0:
            return PsnrReport(math.nan, math.nan, 0, 0, conditions)
        mean = self._state["psnr"].item() / images
        error = self._state["error"].item() / images
        of_mean = math.nan if math.isnan(error) else psnr(error, peak=self.high - self.low)
        return PsnrReport(mean, of_mean, images, int(self._state["not_finite"]), conditions)
