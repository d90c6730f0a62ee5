"""What all measures share: states that merge, and what a figure about pictures was taken under.

A measure keeps sufficient statistics only, so its size does not grow with the data, and parts of a
data set give what the whole gives, in batches as in processes.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Float, Shaped
from torch import Tensor

from softvq.checks import check_number
from softvq.nn.processes import num_processes

TOLERANCE = 1e-3

AnyMeasure = TypeVar("AnyMeasure", bound="Measure")


class Conditions(NamedTuple):
    """What a figure about pictures was taken under: without these it compares with nothing."""

    low: float
    """Low end of the pictures' range."""
    high: float
    dtype: str
    """Of the reconstructions as they came; they are clamped to the range and not rounded."""
    size: str
    """Height x width as they came; "several" where they differed."""
    crop: str
    resize: str
    """What the net saw, where it was not ``size``."""
    images: int
    net: str
    """The net, or the window, that compares them; "none" for pixels alone."""


class Measure(ABC):
    """Statistics of a data set that add up over batches and over processes.

    A subclass names its statistics in `_zeros`, adds to them in ``update`` and turns them into a
    result in ``compute``.
    """

    _least: ClassVar[frozenset[str]] = frozenset()
    """Statistics of which the least is kept; all others add up."""

    def __init__(self) -> None:
        self.reset()

    @abstractmethod
    def _zeros(self) -> dict[str, Tensor]:
        """The statistics of no data."""

    def reset(self) -> None:
        """Forget all data."""
        self._state = self._zeros()

    def merge(self, other: "Measure") -> None:
        """Take in what another measure of the same kind has seen, beside what this one has.

        Args:
            other: Left as it is.

        Raises:
            ValueError: If it is of another kind, or of other sizes.
        """
        mine = {name: value.shape for name, value in self._state.items()}
        theirs = {name: value.shape for name, value in other._state.items()}
        if type(self) is not type(other) or mine != theirs:
            raise ValueError(
                f"other must be a {type(self).__name__} of the same sizes; got "
                f"{type(other).__name__} with {_describe(theirs)} for {_describe(mine)}."
            )
        for name, value in other._state.items():
            self._add(name, value)

    def over_processes(self: AnyMeasure) -> AnyMeasure:
        """A measure of what all processes have seen; collective, and this one is left as it is.

        Returns:
            The same figures on every process.
        """
        whole = copy.deepcopy(self)
        if num_processes() > 1:
            for name, value in whole._state.items():
                operation = dist.ReduceOp.MIN if name in self._least else dist.ReduceOp.SUM
                dist.all_reduce(value, operation)
        return whole

    def _add(self, name: str, value: Tensor) -> None:
        """Take a batch's statistic in, on the device that the data are on."""
        held = self._state[name]
        if held.device != value.device:
            held = held.to(value.device)
        value = value.to(held.dtype)
        self._state[name] = torch.minimum(held, value) if name in self._least else held + value


def _describe(shapes: Mapping[str, torch.Size]) -> str:
    return ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())


class PictureMeasure(Measure):
    """A measure of pictures in a declared range.

    Args:
        low: Low end of the range.
        high: High end.

    Raises:
        ValueError: If ``high`` is not above ``low``.
    """

    def __init__(self, *, low: float = -1.0, high: float = 1.0) -> None:
        self.low = check_number("low", low)
        self.high = check_number("high", high, above=self.low)
        super().__init__()

    def reset(self) -> None:
        """Forget all pictures."""
        super().reset()
        self._dtypes: set[str] = set()
        self._sizes: set[str] = set()

    def merge(self, other: Measure) -> None:
        """Take in what another measure has seen; see `Measure.merge`.

        Raises:
            ValueError: If it is of another kind, or of another range.
        """
        if isinstance(other, PictureMeasure) and (self.low, self.high) != (other.low, other.high):
            raise ValueError(
                f"other must have the range [{self.low:g}, {self.high:g}]; got "
                f"[{other.low:g}, {other.high:g}]."
            )
        super().merge(other)
        if isinstance(other, PictureMeasure):
            self._dtypes |= other._dtypes
            self._sizes |= other._sizes

    def _note(self, pictures: Tensor) -> None:
        self._dtypes.add(str(pictures.dtype).removeprefix("torch."))
        self._sizes.add("{} x {}".format(*pictures.shape[-2:]))

    def _conditions(self, *, images: int, net: str, resize: str = "none") -> Conditions:
        def name(seen: set[str]) -> str:
            return "none" if not seen else seen.copy().pop() if len(seen) == 1 else "several"

        return Conditions(
            low=self.low,
            high=self.high,
            dtype=name(self._dtypes),
            size=name(self._sizes),
            crop="none",
            resize=resize,
            images=images,
            net=net,
        )


def check_floats(argument: str, images: Shaped[Tensor, "..."]) -> None:
    """Raise unless pictures are floating point: bytes have no declared range.

    Args:
        argument: Name of the argument, for the message.
        images: The pictures.

    Raises:
        ValueError: With the dtype and, where there are any, the lowest and the highest value.

    Example:
        >>> check_floats("images", torch.tensor([3, 200], dtype=torch.uint8))
        Traceback (most recent call last):
        ValueError: images must be a floating-point tensor; got torch.uint8 with values from 3 to \
200. Bytes become pictures in [-1, 1] by softvq.data.to_model_range.
    """
    if images.is_floating_point():
        return
    came = str(images.dtype)
    if images.numel() and not images.is_complex():
        least, most = (end.item() for end in images.aminmax())
        came += f" with values from {least} to {most}"
    raise ValueError(
        f"{argument} must be a floating-point tensor; got {came}. Bytes become pictures in "
        "[-1, 1] by softvq.data.to_model_range."
    )


def check_range(argument: str, images: Float[Tensor, "..."], *, low: float, high: float) -> None:
    """Raise unless pictures are floating point and in a range; this synchronizes with the device.

    Args:
        argument: Name of the argument, for the message.
        images: The pictures; none at all pass.
        low: Low end of the range, which they may pass by 1e-3.
        high: High end.

    Raises:
        ValueError: With the lowest and the highest value that came; NaN is in no range.

    Example:
        >>> check_range("images", torch.tensor([0.0, 255.0]), low=-1.0, high=1.0)
        Traceback (most recent call last):
        ValueError: images must lie in [-1, 1]; got values from 0 to 255. Scale them, or give the \
measure their range.
    """
    check_floats(argument, images)
    if not images.numel():
        return
    least, most = (end.item() for end in images.aminmax())
    if not (least >= low - TOLERANCE and most <= high + TOLERANCE):  # NaN is neither
        raise ValueError(
            f"{argument} must lie in [{low:g}, {high:g}]; got values from {least:.3g} to "
            f"{most:.3g}. Scale them, or give the measure their range."
        )


def check_pair(
    images: Float[Tensor, "..."],
    reconstructions: Float[Tensor, "..."],
    *,
    low: float,
    high: float,
) -> None:
    """Raise unless pictures are in range and their reconstructions of the same shape.

    Args:
        images: (B, C, H, W).
        reconstructions: The same shape; any values, as they are clamped.
        low: Low end of the range.
        high: High end.

    Raises:
        ValueError: For shapes that differ, or images that are NaN or out of their range.

    Example:
        >>> check_pair(torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2), low=0.0, high=1.0)
    """
    check_floats("images", images)
    check_floats("reconstructions", reconstructions)
    if images.shape != reconstructions.shape:
        raise ValueError(
            f"reconstructions must have the images' shape {tuple(images.shape)}; got "
            f"{tuple(reconstructions.shape)}."
        )
    check_range("images", images, low=low, high=high)


def clamp_or_nan(
    reconstructions: Float[Tensor, "..."], *, low: float, high: float
) -> Float[Tensor, "..."]:
    """Clamp to a range, but let what is not finite be NaN: an infinity would pass as an end.

    Example:
        >>> clamp_or_nan(torch.tensor([2.0, math.inf]), low=0.0, high=1.0)
        tensor([1., nan])
    """
    whole = torch.where(torch.isfinite(reconstructions), reconstructions, math.nan)
    return whole.clamp(low, high)
