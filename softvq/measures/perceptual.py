"""LPIPS: how different two pictures look, by the features of a net that was trained on photographs.

Zhang et al., "The Unreasonable Effectiveness of Deep Features as a Perceptual Metric",
https://arxiv.org/abs/1801.03924. The net and the heads are the `lpips` package's; the weights are
given by the caller (`softvq.data.weights`), so that they are verified and no pickle is run.
"""

import importlib.resources
import math
import warnings
from collections.abc import Mapping
from typing import NamedTuple, final

import lpips
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from softvq.checks import check_count, choose
from softvq.measures.inputs import describe_resize, split_batch, to_net_range
from softvq.measures.state import (
    Conditions,
    Measure,
    PictureMeasure,
    check_pair,
    clamp_or_nan,
)

NETS = ("alex", "vgg")
SMALLEST = {"alex": 31, "vgg": 16}
"""Sides below which a pooling of the net has nothing left."""


def build_lpips(weights: Mapping[str, Float[Tensor, "..."]], *, net: str) -> lpips.LPIPS:
    """The `lpips` package's module with given convolutions and the package's own heads.

    Building it draws no random number and downloads nothing.

    Args:
        weights: Of torchvision's ``features``, as `softvq.data.weights.load_weights` gives them.
        net: "alex" or "vgg".

    Returns:
        Frozen and in eval mode; takes pictures in [-1, 1].

    Raises:
        ValueError: For another net, or weights that lack a convolution of it.

    Example:
        >>> build_lpips({}, net="alex")
        Traceback (most recent call last):
        ValueError: weights must have features.0.weight for the net 'alex'; they hold 0 tensors.
    """
    choose("net", net, NETS)
    with torch.device("meta"), warnings.catch_warnings():
        # The package names torchvision's old argument; on the meta device nothing is drawn.
        warnings.filterwarnings("ignore", category=UserWarning, module="torchvision")
        module = lpips.LPIPS(net=net, pretrained=False, pnet_rand=True, verbose=False)
    heads = importlib.resources.files("lpips") / "weights" / "v0.1" / f"{net}.pth"
    with heads.open("rb") as file:
        state = torch.load(file, map_location="cpu", weights_only=True)
    for name in module.net.state_dict():
        _, place, kind = name.split(".")
        theirs = f"features.{place}.{kind}"
        if theirs not in weights:
            raise ValueError(
                f"weights must have {theirs} for the net {net!r}; they hold {len(weights)} tensors."
            )
        state[f"net.{name}"] = weights[theirs]
    module.load_state_dict(state, strict=False, assign=True)  # the heads have a second name each
    left = [name for name, each in module.named_parameters() if each.is_meta]
    assert not left, f"every parameter has a value; {left} have none"
    return module.requires_grad_(False).eval()


class LpipsReport(NamedTuple):
    """Mean LPIPS over images, 0 for equal pictures, and how many images it is of."""

    mean_over_images: float
    images: int
    not_finite: int
    conditions: Conditions


@final
class Lpips(PictureMeasure):
    """LPIPS over images, exact over batches and processes.

    Both nets are read up to their fifth stage (AlexNet's relu5, before its last pooling, which has
    nothing to pool at 32 x 32). Reconstructions are clamped to the range and not rounded; one that
    is not finite is counted and makes the mean NaN.

    Args:
        module: Of `build_lpips`, or another that gives (B, 1, 1, 1) of two batches in [-1, 1]; it
            follows the pictures to their device.
        net: Its net, "alex" or "vgg".
        resize: Side that the net sees; None leaves the pictures as they are, and the report says
            which.
        low: Low end of the images' range.
        high: High end.

    Raises:
        ValueError: For another net, or a range without width.

    Example:
        >>> shapes = [(64, 3, 11), (192, 64, 5), (384, 192, 3), (256, 384, 3), (256, 256, 3)]
        >>> places = (0, 3, 6, 8, 10)
        >>> drawn = {}
        >>> for place, (o, i, k) in zip(places, shapes, strict=True):
        ...     drawn[f"features.{place}.weight"] = torch.ones(o, i, k, k)
        ...     drawn[f"features.{place}.bias"] = torch.zeros(o)
        >>> measure = Lpips(build_lpips(drawn, net="alex"), net="alex")
        >>> measure.update(torch.zeros(2, 3, 32, 32), torch.zeros(2, 3, 32, 32))
        >>> measure.compute().mean_over_images, measure.compute().conditions.net
        (0.0, 'alex, relu1 to relu5, heads v0.1')
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        net: str,
        resize: int | None = None,
        low: float = -1.0,
        high: float = 1.0,
    ) -> None:
        self.module = module
        self.net = choose("net", net, NETS)
        least = SMALLEST[self.net]
        self.resize = None if resize is None else check_count("resize", resize, least=least)
        super().__init__(low=low, high=high)

    def _zeros(self) -> dict[str, Tensor]:
        return {
            "sum": torch.zeros((), dtype=torch.float64),
            "images": torch.zeros((), dtype=torch.int64),
            "not_finite": torch.zeros((), dtype=torch.int64),
        }

    def merge(self, other: Measure) -> None:
        """Take in what another measure has seen; see `Measure.merge`.

        Raises:
            ValueError: If it is of another kind, range, net or size.
        """
        if isinstance(other, Lpips) and (self.net, self.resize) != (other.net, other.resize):
            raise ValueError(
                f"other must be of {self.net} at resize {self.resize}; got {other.net} at "
                f"{other.resize}."
            )
        super().merge(other)

    @torch.no_grad()
    def update(
        self, images: Float[Tensor, "b c h w"], reconstructions: Float[Tensor, "b c h w"]
    ) -> None:
        """Add a batch.

        Args:
            images: In [low, high], 1 or 3 channels.
            reconstructions: Of the same shape.

        Raises:
            ValueError: For shapes that differ, pictures too small for the net, or images out of
                their range.
        """
        check_pair(images, reconstructions, low=self.low, high=self.high)
        if not images.numel():
            return
        self._check_size(images)
        self.module.to(images.device)
        made = clamp_or_nan(reconstructions, low=self.low, high=self.high)
        pairs = zip(
            split_batch(images, side=self.resize), split_batch(made, side=self.resize), strict=True
        )
        for one, other in pairs:
            found = self.module(self._prepare(one), self._prepare(other))
            # A pooling may drop a pixel that is no number: the picture is looked at itself.
            whole = torch.isfinite(other).flatten(1).all(1)
            values = torch.where(whole, rearrange(found, "b 1 1 1 -> b").double(), math.nan)
            self._add("sum", values.sum())
            self._add("not_finite", (~torch.isfinite(values)).sum())
        self._add("images", torch.tensor(len(images), device=images.device))
        self._note(reconstructions)

    def _prepare(self, images: Tensor) -> Tensor:
        return to_net_range(images, low=self.low, high=self.high, resize=self.resize)

    def _check_size(self, images: Tensor) -> None:
        least = SMALLEST[self.net]
        if self.resize is None and min(images.shape[-2:]) < least:
            raise ValueError(
                f"images must have sides of at least {least} pixels for {self.net}; got shape "
                f"{tuple(images.shape)}. Give resize=64."
            )

    def compute(self) -> LpipsReport:
        """Mean LPIPS of all images so far; NaN for none."""
        images = int(self._state["images"])
        mean = self._state["sum"].item() / images if images else math.nan
        conditions = self._conditions(
            images=images,
            net=f"{self.net}, relu1 to relu5, heads v0.1",
            resize=describe_resize(self.resize),
        )
        return LpipsReport(mean, images, int(self._state["not_finite"]), conditions)
