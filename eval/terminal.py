"""The table of a comparison on a terminal, in a pipe or in a file."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eval.conditions import list_conditions
from eval.results import Results
from eval.table import (
    CLAIM_RULE,
    NO_VALUE,
    Summary,
    compare_paired,
    describe_difference,
    summarise,
)

FILE_WIDTH = 200


def print_table(results: Results, *, console: Console | None = None) -> None:
    """Print the table, hard codes first, the paired differences and how each method was measured.

    Args:
        results: A whole comparison.
        console: Where to print; by default standard output, wide where that is no terminal.

    Example:
        >>> from eval.columns import COLUMNS
        >>> measures = {column.measure: 1.0 for column in COLUMNS}
        >>> run = {"seed": 0, "evals": [], "final": measures, "warnings": []}
        >>> method = {"seeds": [run], "label": "SoftVQ", "how": "T solved, seed 0"}
        >>> print_table({"methods": {"softvq": method}, "data": "textures"})  # doctest: +ELLIPSIS
        textures. Test set, at the end: mean ± deviation over seeds.
        ...
        How each was set and measured
          SoftVQ: T solved, seed 0
    """
    console = console or open_console()
    summary = summarise(results)
    _print_line(console, f"{results['data']}. Test set, at the end: mean ± deviation over seeds.")
    for soft, title in ((False, "Hard codes"), (True, "Soft weights: beside, never instead")):
        table = _build_table(console, summary, soft=soft)
        if not table.row_count:
            continue
        _print_line(console, f"\n{title}")
        console.print(table)
    _print_line(console, "* best mean of its column. Soft weights are not ranked: a collapsed")
    _print_line(console, "codebook has 100 % soft use.")
    differences = compare_paired(results)
    if differences:
        _print_line(console, "\nHard PSNR, paired by seed")
    for difference in differences:
        _print_line(console, f"  {describe_difference(difference)}")
    if differences:
        _print_line(console, f"  {CLAIM_RULE}")
    if conditions := list_conditions(results):
        _print_line(console, "\nWhat the figures were taken under")
    for row in conditions:
        _print_line(console, f"  {row.describe()}")
    _print_line(console, "\nHow each was set and measured")
    for method in results["methods"].values():
        _print_line(console, f"  {method['label']}: {method['how']}")


def print_rows(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print cells as a table below a title: the first column at the left, the rest at the right.

    Example:
        >>> print_rows("Rates", ["rate", "PSNR dB"], [["0.004", "23.10"]])  # doctest: +ELLIPSIS
        <BLANKLINE>
        Rates
        ...
    """
    console = open_console()
    _print_line(console, f"\n{title}")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for place, name in enumerate(header):
        table.add_column(name, justify="right" if place else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_make_plain(console, cell)) for cell in row))
    console.print(table)


def open_console() -> Console:
    """Standard output, wide where it is no terminal."""
    console = Console()
    # A file or a pipe has no width: squeeze nothing there.
    return console if console.is_terminal else Console(width=FILE_WIDTH)


def _build_table(console: Console, summary: Summary, *, soft: bool) -> Table:
    pad = 1 if console.width >= 100 else 0
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, pad))
    words = (len(word) for row in summary.rows for word in row.label.split())
    table.add_column("Method", overflow="fold", min_width=max(words, default=0))
    places = [place for place, column in enumerate(summary.columns) if column.soft == soft]
    for place in places:
        table.add_column(summary.columns[place].title, justify="right", overflow="fold")
    for row in summary.rows:
        if soft and all(row.cells[place].mean is None for place in places):
            continue
        cells = []
        for place in places:
            cell = row.cells[place]
            ranked = summary.columns[place].better != "neither"
            mark = " *" if cell.best else "  " if ranked else ""
            text = _make_plain(console, cell.text + mark)
            cells.append(Text(text, style="bold" if cell.best else "", end=""))
        table.add_row(Text(_make_plain(console, row.label)), *cells)
    return table


def _print_line(console: Console, text: str) -> None:
    # Text, not str: a label may hold square brackets, which rich would take for markup.
    console.print(Text(_make_plain(console, text)), soft_wrap=not console.is_terminal)


def _make_plain(console: Console, text: str) -> str:
    """Return what the console's encoding can print."""
    if console.options.ascii_only:
        text = text.replace("±", "+-").replace(NO_VALUE, "-")
    return text.encode(console.encoding, "replace").decode(console.encoding)
