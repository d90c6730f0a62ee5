"""The numbers of a comparison as people see them: table, best marks, paired differences, courses.

The page and the terminal (`eval.terminal`) show the same cells, so they are made here once.
"""

import math
from typing import NamedTuple

from eval.columns import COLUMNS, Column
from eval.results import MethodResult, Results
from eval.seeds import collect_final, find_deviation, find_mean

NO_VALUE = "\N{EN DASH}"
BASE = "softvq"
CLAIM_RULE = "A difference is claimed only where the interval excludes zero."


class Cell(NamedTuple):
    """One value of the table: its mean over seeds (None where there is none) and what is shown."""

    mean: float | None
    text: str
    best: bool


class Row(NamedTuple):
    """One method: its key, its label and one cell per column."""

    name: str
    label: str
    cells: list[Cell]


class Summary(NamedTuple):
    """The whole table."""

    columns: list[Column]
    rows: list[Row]


class Difference(NamedTuple):
    """Base minus rival in one measure, paired by seed; the bounds are NaN with one seed."""

    rival: str
    label: str
    seeds: int
    mean: float
    low: float
    high: float

    @property
    def claimed(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


class Curve(NamedTuple):
    """A measure over training images: mean and deviation over the seeds of one method."""

    images: list[float]
    mean: list[float]
    deviation: list[float]


# 0.975 quantiles of Student's t for 1 to 30 degrees of freedom.
_T_QUANTILES = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)


def find_t_quantile(freedom: int) -> float:
    """Return the 0.975 quantile of Student's t, by table to 30 and by its expansion beyond.

    Example:
        >>> find_t_quantile(2), round(find_t_quantile(60), 3)
        (4.3027, 2.0)
    """
    if freedom <= len(_T_QUANTILES):
        return _T_QUANTILES[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def format_value(mean: float | None, deviation: float, *, decimals: int) -> str:
    """Return a mean and its deviation as the table shows them.

    Example:
        >>> format_value(25.014, 0.031, decimals=2), format_value(25.014, math.nan, decimals=1)
        ('25.01 ± 0.03', '25.0')
    """
    if mean is None:
        return NO_VALUE
    text = f"{mean:.{decimals}f}"
    return f"{text} ± {deviation:.{decimals}f}" if math.isfinite(deviation) else text


def summarise(results: Results) -> Summary:
    """Return the table: mean and deviation over seeds, the best of each ranked column marked.

    Args:
        results: A whole comparison.

    Returns:
        All columns, but for soft and optional ones that no method has, and one row a method.

    Example:
        >>> measures = {column.measure: 1.0 for column in COLUMNS}
        >>> run = {"seed": 0, "evals": [], "final": measures, "warnings": []}
        >>> table = summarise({"methods": {"a": {"seeds": [run], "label": "A", "how": ""}}})
        >>> table.rows[0].label, table.rows[0].cells[2]
        ('A', Cell(mean=100.0, text='100.0', best=False))
    """
    methods = results["methods"]
    columns: list[Column] = []
    by_column: list[list[Cell]] = []
    for column in COLUMNS:
        cells = _fill_column(list(methods.values()), column)
        if not _is_shown(column, [cell.mean for cell in cells]):
            continue
        columns.append(column)
        by_column.append(cells)
    rows = [
        Row(name, method["label"], [cells[place] for cells in by_column])
        for place, (name, method) in enumerate(methods.items())
    ]
    return Summary(columns, rows)


def _is_shown(column: Column, means: list[float | None]) -> bool:
    if column.faults:
        return any(means)
    return not (column.soft or column.optional) or any(mean is not None for mean in means)


def make_cell(method: MethodResult, column: Column) -> Cell:
    """Return what the table shows of one method in one column, not marked.

    Example:
        >>> run = {"seed": 0, "evals": [], "final": {"use_hard": 0.5}, "warnings": []}
        >>> make_cell({"seeds": [run], "label": "", "how": ""}, COLUMNS[2]).text
        '50.0'
    """
    values = [column.scale * value for value in collect_final(method, column.measure) or ()]
    mean = find_mean(values) if values else None
    text = format_value(mean, find_deviation(values), decimals=column.decimals)
    return Cell(mean, text, best=False)


def _fill_column(methods: list[MethodResult], column: Column) -> list[Cell]:
    cells = [make_cell(method, column) for method in methods]
    best = _find_best([cell.mean for cell in cells], column)
    return [cell._replace(best=place in best) for place, cell in enumerate(cells)]


def _find_best(means: list[float | None], column: Column) -> set[int]:
    """Return the places of the best means as printed; none where there is nothing to win."""
    sign = {"more": 1, "less": -1, "neither": 0}[column.better]
    shown = {
        place: sign * round(mean, column.decimals)
        for place, mean in enumerate(means)
        if mean is not None and math.isfinite(mean)
    }
    if sign == 0 or len(set(shown.values())) < 2:
        return set()
    top = max(shown.values())
    return {place for place, value in shown.items() if value == top}


def trace_curve(method: MethodResult, measure: str) -> Curve:
    """Return the course of a measure, at the evaluations that every seed of the method has.

    Args:
        method: The runs of one method.
        measure: The name of the measure.

    Returns:
        The curve; empty where a run never has the measure. A deviation is NaN for one seed.

    Example:
        >>> runs = [{"evals": [{"images": 0, "use_hard": use}]} for use in (0.5, 0.7)]
        >>> curve = trace_curve({"seeds": runs}, "use_hard")
        >>> curve.images, round(curve.mean[0], 3), round(curve.deviation[0], 3)
        ([0], 0.6, 0.141)
    """
    courses = []
    for run in method["seeds"]:
        values = {record["images"]: record.get(measure) for record in run["evals"]}
        courses.append({i: v for i, v in values.items() if i is not None and v is not None})
    images = sorted(set(courses[0]).intersection(*courses[1:]))
    columns = [[course[place] for course in courses] for place in images]
    return Curve(
        images, [find_mean(values) for values in columns], [find_deviation(v) for v in columns]
    )


def has_measure(results: Results, measure: str) -> bool:
    """Return whether any method has the measure at all.

    Example:
        >>> runs = [{"evals": [{"images": 0, "entropy": None}]}]
        >>> has_measure({"methods": {"ste": {"seeds": runs}}}, "entropy")
        False
    """
    return any(trace_curve(method, measure).images for method in results["methods"].values())


def compare_paired(
    results: Results, *, base: str = BASE, measure: str = "psnr_hard"
) -> list[Difference]:
    """Return base minus rival at the end of training, paired by seed, for every rival.

    Args:
        results: A whole comparison.
        base: The method that the others are held against.
        measure: The measure that is subtracted.

    Returns:
        One difference per method that shares a seed with ``base``, the strongest rival first; with
        two or more seeds with its 95 % Student-t interval. Empty if ``base`` is not there.

    Example:
        >>> def method(*values):
        ...     runs = [{"seed": s, "final": {"psnr_hard": v}} for s, v in enumerate(values)]
        ...     return {"seeds": runs, "label": "", "how": ""}
        >>> results = {"methods": {"softvq": method(2.0, 3.0), "ste": method(1.5, 2.0)}}
        >>> print(describe_difference(compare_paired(results)[0]._replace(label="STE")))
        softvq minus STE: +0.750 dB, 95 % interval [-2.427, +3.927], 2 seeds: no difference claimed
    """
    methods = results["methods"]
    if base not in methods:
        return []
    ours = _map_seeds(methods[base], measure)
    differences = []
    for name, method in methods.items():
        theirs = _map_seeds(method, measure)
        values = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
        if name == base or not values:
            continue
        mean = find_mean(values)
        half = math.nan
        if len(values) > 1:
            half = find_t_quantile(len(values) - 1) * find_deviation(values) / len(values) ** 0.5
        differences.append(
            Difference(name, method["label"], len(values), mean, mean - half, mean + half)
        )
    # A NaN difference, of a run that diverged, goes last; the order stays defined.
    return sorted(differences, key=lambda d: (math.isnan(d.mean), d.mean))


def _map_seeds(method: MethodResult, measure: str) -> dict[int, float]:
    found = {run["seed"]: run["final"].get(measure) for run in method["seeds"]}
    return {seed: value for seed, value in found.items() if value is not None}


def describe_difference(difference: Difference, *, base: str = BASE) -> str:
    """Return one line: the difference, its interval, and what it allows to say.

    Example:
        >>> describe_difference(Difference("ste", "STE", 3, 0.8, 0.5, 1.1))
        'softvq minus STE: +0.800 dB, 95 % interval [+0.500, +1.100], 3 seeds: softvq is better'
        >>> describe_difference(Difference("ste", "STE", 1, 0.8, math.nan, math.nan))
        'softvq minus STE: +0.800 dB, 1 seed, no interval: no difference claimed'
    """
    if difference.seeds > 1:
        spread = (
            f"95 % interval [{difference.low:+.3f}, {difference.high:+.3f}], "
            f"{difference.seeds} seeds"
        )
    else:
        spread = "1 seed, no interval"
    verdict = "no difference claimed"
    if difference.claimed:
        verdict = f"{base if difference.mean > 0 else difference.label} is better"
    return f"{base} minus {difference.label}: {difference.mean:+.3f} dB, {spread}: {verdict}"
