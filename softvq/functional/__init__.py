"""The mathematics of softvq as pure functions: no parameters, no state."""

from softvq.functional.assign import (
    count_codes,
    nearest_code,
    soft_assign,
    soft_assign_and_use,
    soft_mean,
    sum_by_code,
    summarize,
)
from softvq.functional.decompose import decompose
from softvq.functional.schedules import solve_temperature

__all__ = [
    "count_codes",
    "decompose",
    "nearest_code",
    "soft_assign",
    "soft_assign_and_use",
    "soft_mean",
    "solve_temperature",
    "sum_by_code",
    "summarize",
]
