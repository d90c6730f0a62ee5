"""What the experiments leave: a JSON file that can be gone on from, a table, a figure."""

import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from eval.style import COLOURS
from softvq.files import replacing
from train.provenance import find_commit, find_versions, name_device

Row = dict[str, Any]


class Store:
    """The rows of one experiment, written after each, and found again by what they are a row of.

    Args:
        folder: Of all experiments.
        name: Of this one.
        sizes: Those that all its rows hang on; rows of other sizes are not taken.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> store = Store(folder, "try", sizes={"epochs": 6})
        >>> row = store.row({"method": "a"}, lambda: {"accuracy": 0.5})  # doctest: +ELLIPSIS
          method a, accuracy 0.5, commit ...
        >>> again = Store(folder, "try", sizes={"epochs": 6})
        >>> again.row({"method": "a"}, lambda: 1 / 0)["accuracy"]
        0.5
    """

    def __init__(self, folder: Path, name: str, *, sizes: dict[str, Any]) -> None:
        self.folder, self.name = folder, name
        self.path = folder / f"{name}.json"
        self.sizes = json.loads(json.dumps(sizes))
        held = json.loads(self.path.read_text("utf-8")) if self.path.exists() else {}
        self.rows: list[Row] = held["rows"] if held.get("sizes") == self.sizes else []

    def row(self, key: dict[str, Any], make: Callable[[], dict[str, Any]]) -> Row:
        """The row of this key: the stored one, or a new one, which is written at once."""
        for row in self.rows:
            if all(row.get(name) == value for name, value in key.items()):
                return row
        row = {**key, **make(), "commit": find_commit()}
        plain = {name: value for name, value in row.items() if not isinstance(value, list | dict)}
        print("  " + ", ".join(_show(name, value) for name, value in plain.items()), flush=True)
        self.rows.append(row)
        content = {
            "sizes": self.sizes,
            "rows": self.rows,
            "versions": find_versions(),
            "device": name_device(torch.device("cpu")),
        }
        with replacing(self.path) as beside:
            beside.write_text(json.dumps(content, indent=1), encoding="utf-8")
        return row

    def write_table(self, tables: Sequence[str]) -> None:
        """Write the markdown tables of the experiment, one after the other."""
        with replacing(self.folder / f"{self.name}.md") as beside:
            beside.write_text("\n\n".join(tables) + "\n", encoding="utf-8")

    def write_figure(self, figure: Figure) -> None:
        """Write the experiment's figure."""
        with replacing(self.folder / f"{self.name}.png") as beside:
            figure.savefig(beside, format="png", dpi=120)


def make_table(
    rows: Sequence[Row], *, title: str, by: Sequence[str], measures: dict[str, str]
) -> str:
    """A markdown table: one line a kind of row, mean ± deviation over its seeds.

    Args:
        rows: Rows.
        title: Above the table.
        by: Names that make a kind.
        measures: Names of numbers, and how to write each: a format such as ".3f".

    Example:
        >>> rows = [{"method": "a", "x": 1.0}, {"method": "a", "x": 2.0}]
        >>> print(make_table(rows, title="T", by=["method"], measures={"x": ".1f"}))
        **T**
        <BLANKLINE>
        | method | x |
        |---|---|
        | a | 1.5 ± 0.7 |
    """
    heads = [*by, *(name.replace("_", " ") for name in measures)]
    lines = [f"**{title}**", "", _line(heads), "|" + "---|" * len(heads)]
    for kind in dict.fromkeys(tuple(row[name] for name in by) for row in rows):
        mine = [row for row in rows if tuple(row[name] for name in by) == kind]
        cells = [str(name) for name in kind]
        cells += [_spread([row.get(name) for row in mine], form) for name, form in measures.items()]
        lines.append(_line(cells))
    return "\n".join(lines)


def draw_bars(rows: Sequence[Row], *, group: str, by: str, measure: str, label: str = "") -> Figure:
    """Bars of a measure, groups side by side, a line for the deviation over seeds."""
    figure = Figure((9, 4.2), layout="constrained")
    axes = figure.subplots()
    groups = list(dict.fromkeys(row[group] for row in rows))
    kinds = list(dict.fromkeys(row[by] for row in rows))
    width = 0.8 / len(kinds)
    for place, kind in enumerate(kinds):
        values = [
            [row[measure] for row in rows if (row[group], row[by]) == (each, kind)]
            for each in groups
        ]
        axes.bar(
            [index + (place - len(kinds) / 2 + 0.5) * width for index in range(len(groups))],
            [statistics.fmean(held) if held else 0.0 for held in values],
            width,
            yerr=[statistics.stdev(held) if len(held) > 1 else 0.0 for held in values],
            label=str(kind),
            color=COLOURS[place % len(COLOURS)],
            hatch=("", "//", "..")[place // len(COLOURS)],
        )
    axes.set_xticks(range(len(groups)), [str(each) for each in groups])
    axes.set_ylabel(label or measure)
    figure.legend(loc="outside right upper", fontsize=9)
    return figure


def _spread(values: list[Any], form: str) -> str:
    numbers = [value for value in values if isinstance(value, int | float) and math.isfinite(value)]
    if not numbers:
        return ", ".join(dict.fromkeys(str(value) for value in values if value is not None))
    mean = format(statistics.fmean(numbers), form)
    return f"{mean} ± {format(statistics.stdev(numbers), form)}" if len(numbers) > 1 else mean


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def _show(name: str, value: Any) -> str:  # noqa: ANN401 - whatever a row holds
    return f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
