"""Paths of a target over training, and the temperature that meets a target entropy."""

import math
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from softvq.checks import check_number
from softvq.functional.diagnostics import entropy_at


def geometric_path(start: float, end: float, *, position: float) -> float:
    """The value at ``position`` in [0, 1] on a geometric path; past the end it is exactly ``end``.

    Args:
        start: Value at 0, above 0.
        end: Value at 1, above 0.
        position: Share of the path that is behind.

    Returns:
        The value.

    Example:
        >>> geometric_path(4.0, 1.0, position=0.5)
        2.0
    """
    if position >= 1:
        return end
    return start * (end / start) ** max(position, 0.0)


class SolvedTemperature(NamedTuple):
    """A temperature, the entropy it gives, and whether a bound of the search stopped it."""

    temperature: float
    entropy: float
    at_bound: bool


def solve_temperature(
    distances: Float[Tensor, "n k"],
    *,
    target: float,
    start: float,
    least: float,
    most: float,
    steps: int = 40,
    tolerance: float = 0.01,
) -> SolvedTemperature:
    """Find T at which the mean entropy of the weights is ``target``.

    Newton steps in log T, inside a bracket that every evaluation narrows: entropy grows with T.
    The target is held under 0.5 log K, above which codes merge sooner than they separate.

    Args:
        distances: Squared distances of a sample of rows to all codes.
        target: Entropy in nats, above 0.
        start: First guess of T.
        least: Smallest T allowed, above 0.
        most: Largest T allowed.
        steps: Evaluations at most; fewer where the relative error falls under ``tolerance``.
        tolerance: Relative error of the entropy at which to stop.

    Returns:
        Temperature, its entropy, and whether a bound was hit.

    Raises:
        ValueError: For a target or bounds that are not positive, or bounds that are crossed.

    Example:
        >>> import torch
        >>> pair = torch.tensor([[0.0, 1.0]])
        >>> solved = solve_temperature(pair, target=0.2, start=1.0, least=1e-6, most=10.0)
        >>> abs(solved.entropy - 0.2) < 0.01
        True
    """
    check_number("target", target, above=0)
    check_number("least", least, above=0)
    check_number("most", most, least=least)
    if distances.shape[-1] == 1 or len(distances) == 0:
        return SolvedTemperature(min(max(start, least), most), 0.0, False)
    target = min(target, 0.5 * math.log(distances.shape[-1]))
    low, high = math.log(least), math.log(most)
    place = min(max(math.log(max(start, 1e-300)), low), high)
    bounds = (low, high)
    entropy = 0.0
    for _ in range(steps):
        entropy, slope = entropy_at(distances, math.exp(place))
        if abs(entropy - target) <= tolerance * target:
            return SolvedTemperature(math.exp(place), entropy, False)
        low, high = (place, high) if entropy < target else (low, place)
        if high - low < 1e-6:
            break
        # In log H the path is straighter than in H, where both are far from the target.
        ratio = slope / max(entropy, 1e-12)
        step = (
            (math.log(target) - math.log(max(entropy, 1e-12))) / ratio if ratio > 1e-6 else math.inf
        )
        place = place + step if low < place + step < high else 0.5 * (low + high)
    at_bound = min(abs(place - bounds[0]), abs(place - bounds[1])) < 1e-3
    return SolvedTemperature(math.exp(place), entropy, at_bound)


def nearest_spacing(distances: Float[Tensor, "n k"]) -> float:
    """Mean squared distance of a row to its nearest code: a natural unit of temperature.

    Example:
        >>> import torch
        >>> nearest_spacing(torch.tensor([[1.0, 4.0], [3.0, 9.0]]))
        2.0
    """
    return distances.amin(-1).mean().item() if len(distances) else 0.0
