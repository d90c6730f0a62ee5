"""What several seeds of a method say together: mean, deviation, and the values themselves."""

import math
from collections.abc import Sequence

from eval.results import MethodResult


def find_mean(values: Sequence[float]) -> float:
    """Return the mean; NaN and infinities are kept, not averaged away.

    Example:
        >>> find_mean([1.0, 2.0, 4.5])
        2.5
    """
    return sum(values) / len(values)


def find_deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation (divisor n - 1), NaN for one value.

    Example:
        >>> find_deviation([1.0, 3.0])
        1.4142135623730951
    """
    if len(values) < 2:
        return math.nan
    mean = find_mean(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def collect_final(method: MethodResult, measure: str) -> list[float] | None:
    """Return the measure at the end of every run, or None unless all runs have it.

    Example:
        >>> run = {"seed": 0, "evals": [], "final": {"entropy": 0.5}, "warnings": []}
        >>> collect_final({"seeds": [run], "label": "", "how": ""}, "entropy")
        [0.5]
    """
    found = [run["final"].get(measure) for run in method["seeds"]]
    values = [value for value in found if value is not None]
    return values if len(values) == len(found) else None
