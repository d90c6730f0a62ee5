"""Frechet distance between two sets of pictures, by the features of a net.

Heusel et al., "GANs Trained by a Two Time-Scale Update Rule Converge to a Local Nash Equilibrium",
https://arxiv.org/abs/1706.08500. It is called FID with the Inception network of that paper and with
no other; with VGG16 it is called FD-VGG16, and the two do not compare. Of reconstructions against
their inputs it is an rFID, or an rFD-VGG16.
"""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from softvq.checks import check_count, choose
from softvq.measures.inputs import describe_resize, split_batch
from softvq.measures.state import (
    Conditions,
    Measure,
    PictureMeasure,
    check_floats,
    check_range,
    clamp_or_nan,
)

SIDES = ("reference", "made")


def frechet_distance(
    mean: Float[Tensor, " d"],
    covariance: Float[Tensor, "d d"],
    *,
    other_mean: Float[Tensor, " d"],
    other_covariance: Float[Tensor, "d d"],
) -> float:
    """Frechet distance of two normal distributions, in float64.

    |m1 - m2|^2 + tr(C1 + C2 - 2 (C1^(1/2) C2 C1^(1/2))^(1/2)): the form with a symmetric product,
    whose eigenvalues are real, so that nothing imaginary has to be thrown away.

    Args:
        mean: Of the one.
        covariance: Of the one.
        other_mean: Of the other.
        other_covariance: Of the other.

    Returns:
        At least 0, up to rounding.

    Example:
        >>> one = torch.eye(2)
        >>> frechet_distance(
        ...     torch.zeros(2), one, other_mean=torch.tensor([3.0, 4.0]), other_covariance=one
        ... )
        25.0
    """
    one, other = covariance.double(), other_covariance.double()
    values, vectors = torch.linalg.eigh(one)
    root = vectors * values.clamp_min(0).sqrt() @ vectors.mT
    product = root @ other @ root
    shared = torch.linalg.eigvalsh((product + product.mT) / 2).clamp_min(0).sqrt().sum()
    apart = (mean.double() - other_mean.double()).square().sum()
    return (apart + one.trace() + other.trace() - 2 * shared).item()


class Features(ABC):
    """A net whose features a Frechet distance is taken of.

    Attributes:
        name: What the distance is called: "FD-VGG16" or "FID".
        net: The net and its layer.
        dim: Features of a picture.
        resize: Side that the net sees, or None.
    """

    name: str
    net: str
    dim: int
    resize: int | None

    @abstractmethod
    def extract(
        self, images: Float[Tensor, "b c h w"], *, low: float, high: float
    ) -> Float[Tensor, "b d"]:
        """Features of pictures in [low, high]; those of a picture that is not finite are NaN."""


@final
class FeatureSums(Measure):
    """Mean and covariance of features, as running sums in float64.

    Args:
        dim: Features of a picture.

    Example:
        >>> sums = FeatureSums(1)
        >>> sums.update(torch.tensor([[1.0], [2.0], [6.0]]))
        >>> [each.tolist() for each in sums.compute()]
        [[3.0], [[7.0]]]
    """

    def __init__(self, dim: int) -> None:
        self.dim = check_count("dim", dim)
        super().__init__()

    def _zeros(self) -> dict[str, Tensor]:
        return {
            "rows": torch.zeros((), dtype=torch.int64),
            "first": torch.zeros(self.dim, dtype=torch.float64),
            "second": torch.zeros(self.dim, self.dim, dtype=torch.float64),
            "not_finite": torch.zeros((), dtype=torch.int64),
        }

    @property
    def rows(self) -> int:
        """Pictures so far."""
        return int(self._state["rows"])

    @property
    def not_finite(self) -> int:
        """Pictures so far whose features are not finite: they make every figure NaN."""
        return int(self._state["not_finite"])

    def update(self, features: Float[Tensor, "b d"]) -> None:
        """Add the features of a batch.

        Args:
            features: One row a picture.

        Raises:
            ValueError: For another number of features.
        """
        if features.shape[-1] != self.dim:
            raise ValueError(
                f"features must have {self.dim} columns; got shape {tuple(features.shape)}."
            )
        exact = features.double()
        self._add("rows", torch.tensor(len(features), device=features.device))
        self._add("first", exact.sum(0))
        self._add("second", exact.mT @ exact)
        self._add("not_finite", (~torch.isfinite(exact).all(1)).sum())

    def compute(self) -> tuple[Tensor, Tensor]:
        """Mean and covariance (divided by N - 1), on the CPU in float64.

        Raises:
            ValueError: For fewer rows than would give a covariance of full rank.
        """
        rows = self.rows
        if rows <= self.dim:
            raise ValueError(
                f"features must be of more pictures than they have dimensions, {self.dim}, for a "
                f"covariance of full rank; got {rows}. Measure at least {self.dim + 1} pictures."
            )
        mean = self._state["first"] / rows
        covariance = (self._state["second"] - rows * torch.outer(mean, mean)) / (rows - 1)
        return mean.cpu(), covariance.cpu()


class FrechetReport(NamedTuple):
    """A Frechet distance, named after its net, and how many pictures it is of on each side."""

    name: str
    distance: float
    references: int
    made: int
    not_finite: int
    conditions: Conditions


@final
class FrechetDistance(PictureMeasure):
    """Frechet distance between reference pictures and made ones, exact over batches and processes.

    Its value depends on how many pictures there are: compare at equal N alone. A made picture that
    is not finite is counted and makes the distance NaN.

    Args:
        features: The net.
        reference: Sums of the reference pictures where they are known already; not changed.
        low: Low end of the pictures' range.
        high: High end.

    Raises:
        ValueError: For a range without width, or a reference of another dimension.

    Example:
        >>> class Means(Features):
        ...     name, net, dim, resize = "FD of means", "mean of each channel", 1, None
        ...
        ...     def extract(self, images, *, low, high):
        ...         return images.mean((2, 3))
        >>> measure = FrechetDistance(Means())
        >>> grey = torch.tensor([0.0, 0.5]).reshape(2, 1, 1, 1).expand(2, 1, 8, 8)
        >>> measure.update(grey, side="reference")
        >>> measure.update(grey - 0.5, side="made")
        >>> measure.compute().distance
        0.25
    """

    def __init__(
        self,
        features: Features,
        *,
        reference: FeatureSums | None = None,
        low: float = -1.0,
        high: float = 1.0,
    ) -> None:
        self.features = features
        if reference is not None and reference.dim != features.dim:
            raise ValueError(
                f"reference must be of {features.dim} features; got {reference.dim} of them."
            )
        self._known = reference
        super().__init__(low=low, high=high)

    def _zeros(self) -> dict[str, Tensor]:
        return {}

    def reset(self) -> None:
        """Forget all pictures, and go back to the given reference."""
        super().reset()
        self._sums = {side: FeatureSums(self.features.dim) for side in SIDES}

    @property
    def reference(self) -> FeatureSums:
        """Sums of all reference pictures, to be given to another measure."""
        total = FeatureSums(self.features.dim)
        total.merge(self._sums["reference"])
        if self._known is not None:  # kept apart: every process knows all of it
            total.merge(self._known)
        return total

    @torch.no_grad()
    def update(self, images: Float[Tensor, "b c h w"], *, side: str) -> None:
        """Add a batch to one side.

        Args:
            images: In [low, high]; made ones are clamped to it.
            side: "reference" or "made".

        Raises:
            ValueError: For another side, bytes, or reference pictures out of their range.
        """
        choose("side", side, SIDES)
        check_floats("images", images)  # of made ones the clamping would hide it
        if side == "reference":
            check_range("images", images, low=self.low, high=self.high)
        pictures = clamp_or_nan(images, low=self.low, high=self.high)
        for part in split_batch(pictures, side=self.features.resize):
            found = self.features.extract(part, low=self.low, high=self.high)
            whole = torch.isfinite(part).flatten(1).all(1)[:, None]
            self._sums[side].update(torch.where(whole, found, math.nan))
        self._note(images)

    def merge(self, other: Measure) -> None:
        """Take in what another measure has seen; see `Measure.merge`.

        Raises:
            ValueError: If it is of another kind, range, net or size.
        """
        own = (self.features.name, self.features.resize)
        if isinstance(other, FrechetDistance):
            theirs = (other.features.name, other.features.resize)
            if own != theirs:
                raise ValueError(f"other must be of {own}, name and resize; got {theirs}.")
        super().merge(other)
        assert isinstance(other, FrechetDistance), "the base has refused all others"
        for side in SIDES:
            self._sums[side].merge(other._sums[side])

    def over_processes(self) -> "FrechetDistance":
        """A measure of what all processes have seen; collective."""
        whole = FrechetDistance(self.features, reference=self._known, low=self.low, high=self.high)
        whole._dtypes, whole._sizes = set(self._dtypes), set(self._sizes)
        whole._sums = {side: self._sums[side].over_processes() for side in SIDES}
        return whole

    def compute(self, *, against: FeatureSums | None = None) -> FrechetReport:
        """The distance of all pictures so far.

        Args:
            against: Sums of other reference pictures, in place of this measure's own.

        Raises:
            ValueError: If a side has no more pictures than the net has features.
        """
        reference, made = self.reference if against is None else against, self._sums["made"]
        (mean, covariance), (other_mean, other_covariance) = reference.compute(), made.compute()
        bad = reference.not_finite + made.not_finite
        distance = (
            math.nan
            if bad
            else frechet_distance(
                mean, covariance, other_mean=other_mean, other_covariance=other_covariance
            )
        )
        conditions = self._conditions(
            images=made.rows, net=self.features.net, resize=describe_resize(self.features.resize)
        )
        return FrechetReport(
            self.features.name, distance, reference.rows, made.rows, bad, conditions
        )
