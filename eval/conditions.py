"""What the figures were taken under, and why some could not be taken, as the page shows it."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from eval.columns import COLUMNS
from eval.results import Results

HEADINGS = (
    "Measures",
    "Compared by",
    "Range",
    "Type",
    "Size",
    "Crop",
    "Resized to",
    "Pictures",
    "Tokens",
)
NOT_SAID = "\N{EN DASH}"


# By the cells of a line: its measures, and the labels of the methods that they are of.
_Groups = dict[tuple[str, ...], dict[str, list[str]]]
_Run = tuple[str, Mapping[str, Mapping[str, Any]], Mapping[str, str]]


class Row(NamedTuple):
    """One line: measures of the same conditions and, below `HEADINGS`, what these are.

    ``missing`` says why the measures are not available; ``cells`` is then empty.
    """

    measures: str
    cells: tuple[str, ...]
    missing: str | None

    def describe(self) -> str:
        """Return the line for a terminal, without what is not said.

        Example:
            >>> cells = ("pixels", "-1 to 1", "float32", "8 x 8", "none", "none", "9", NOT_SAID)
            >>> Row("SSIM (hard)", cells, None).describe()
            'SSIM (hard): by pixels, range -1 to 1, type float32, size 8 x 8, crop none, resized \
to none, pictures 9'
        """
        if self.missing is not None:
            return f"{self.measures}: not available: {self.missing}"
        names = ("by", *(heading.lower() for heading in HEADINGS[2:]))
        pairs = zip(names, self.cells, strict=True)
        words = [f"{name} {cell}" for name, cell in pairs if cell != NOT_SAID]
        return f"{self.measures}: {', '.join(words)}"


def list_conditions(results: Results) -> list[Row]:
    """Return what all figures were taken under: measures that share it share a line.

    Args:
        results: A whole comparison.

    Returns:
        Lines in the order of the table's columns; what is not available comes last.

    Example:
        >>> run = {"conditions": {"use_hard": {"images": 9, "tokens": 576}}}
        >>> run["missing"] = {"rfid_hard": "no network"}
        >>> for row in list_conditions({"methods": {"a": {"seeds": [run], "label": "A"}}}):
        ...     print(row.measures, row.cells[-2:], row.missing)
        Use % (hard) ('9', '576') None
        rFID (hard) () no network
    """
    return group_conditions(
        (method["label"], run.get("conditions", {}), run.get("missing", {}))
        for method in results["methods"].values()
        for run in method["seeds"]
    )


def group_conditions(runs: Iterable[_Run]) -> list[Row]:
    """The same for runs given by themselves.

    Args:
        runs: Of each its label and, by measure, its conditions and the reasons of what is missing.

    Example:
        >>> [row.describe() for row in group_conditions([("A", {}, {"fid_hard": "no network"})])]
        ['FID (hard): not available: no network']
    """
    taken: _Groups = {}
    missing: _Groups = {}
    for label, conditions, reasons in runs:
        for measure, each in conditions.items():
            _note(taken, describe_conditions(each), measure, label)
        for measure, reason in reasons.items():
            _note(missing, (reason,), measure, label)
    rows = [Row(text, cells, None) for cells, text in _name_groups(taken)]
    return rows + [Row(text, (), reason) for (reason,), text in _name_groups(missing)]


def describe_conditions(conditions: Mapping[str, Any]) -> tuple[str, ...]:
    """Return one line of the page, a text below each of `HEADINGS` but the first.

    Args:
        conditions: As a run stores them, by name.

    Example:
        >>> describe_conditions({"low": -1.0, "high": 1.0, "net": "none", "images": 1000})[:2]
        ('pixels', '-1 to 1')
    """
    net = conditions.get("net")
    compared = "pixels" if net == "none" else "tokens" if net is None else str(net)
    if "against" in conditions:
        compared += f", against {conditions['against']}"
    ends = NOT_SAID
    if "low" in conditions:
        ends = f"{conditions['low']:g} to {conditions['high']:g}"
    words = [str(conditions.get(name, NOT_SAID)) for name in ("dtype", "size", "crop", "resize")]
    counts = [
        f"{conditions[name]:,}" if name in conditions else NOT_SAID for name in ("images", "tokens")
    ]
    return (compared, ends, *words, *counts)


def _note(groups: _Groups, cells: tuple[str, ...], measure: str, label: str) -> None:
    labels = groups.setdefault(cells, {}).setdefault(measure, [])
    if label not in labels:
        labels.append(label)


def _name_groups(groups: _Groups) -> list[tuple[tuple[str, ...], str]]:
    """Return each line's cells and the words for its measures, in the order of the columns."""
    places = {column.measure: place for place, column in enumerate(COLUMNS)}
    named = []
    for cells, measures in groups.items():
        known = sorted(measures.keys() & places.keys(), key=lambda measure: places[measure])
        titles: dict[str, list[str]] = {}
        for measure in known:
            column = COLUMNS[places[measure]]
            kind = "soft" if column.soft else "hard"
            if sum(measure in others for others in groups.values()) > 1:
                kind += f" of {' and '.join(measures[measure])}"
            titles.setdefault(column.title, []).append(kind)
        words = "; ".join(f"{title} ({', '.join(kinds)})" for title, kinds in titles.items())
        if known:
            named.append((places[known[0]], cells, words))
    return [(cells, words) for _, cells, words in sorted(named)]
