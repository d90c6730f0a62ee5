"""How figures look: colours, markers, letters, legends, and what a theme changes.

A method keeps its colour and its marker in all figures, so that none needs colour to be read.
"""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from eval.results import Results

# Okabe and Ito's colours but for black and yellow, which a dark or a light page swallows; three
# more of middle lightness. Markers tell apart what colour-blind readers may not.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"),
    *("#56B4E9", "#8A6FD1", "#7F7F7F", "#A08A00"),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h")
WIDTH = 6.4
SMALL, NORMAL = 11, 12
GREY = "#7F7F7F"


class Theme(NamedTuple):
    """Colours of what is no data: the ground, the letters and axes, and the grid."""

    ground: str
    ink: str
    grid: str


LIGHT = Theme("#ffffff", "#1b1f24", "#d9dde2")
DARK = Theme("#171b21", "#e4e8ee", "#39414c")


def find_style(results: Results, name: str) -> tuple[str, str]:
    """Return the colour and the marker of a method, by its place among all.

    Example:
        >>> find_style({"methods": {"softvq": {}, "ste": {}}}, "ste")
        ('#D55E00', 's')
    """
    place = list(results["methods"]).index(name)
    return COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]


def tint(figure: Figure, theme: Theme) -> None:
    """Give the figure the theme's ground, letters and grid; the data keep their colours.

    Example:
        >>> figure, axes = start_figure(4.4)
        >>> tint(figure, DARK)
        >>> figure.get_facecolor()[3]
        1.0
    """
    figure.set_facecolor(theme.ground)
    for legend in figure.legends:
        legend.get_frame().set(facecolor=theme.ground, edgecolor=theme.grid)
        for text in legend.get_texts():
            text.set_color(theme.ink)
    for axes in figure.axes:
        axes.set_facecolor(theme.ground)
        axes.tick_params(which="both", colors=theme.ink)
        for spine in axes.spines.values():
            spine.set_color(theme.ink)
        set_title(axes, axes.get_title(loc="left")).set_color(theme.ink)
        offsets = (axes.xaxis.get_offset_text(), axes.yaxis.get_offset_text())
        for text in (axes.xaxis.label, axes.yaxis.label, *offsets, *axes.texts):
            text.set_color(theme.ink)
        if axes.axison:
            axes.grid(visible=True, color=theme.grid, linewidth=0.8)


def label_axes(axes: Axes, *, x: str, y: str) -> None:
    """Name both axes, and leave out the lines that are none.

    Example:
        >>> _, axes = start_figure(4.4)
        >>> label_axes(axes, x="Training images seen", y="PSNR (dB)")
        >>> axes.get_ylabel()
        'PSNR (dB)'
    """
    axes.set_xlabel(x, fontsize=NORMAL)
    axes.set_ylabel(y, fontsize=NORMAL)
    axes.tick_params(labelsize=SMALL)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def mark_level(axes: Axes, level: float, name: str, *, right: bool = False) -> None:
    """Draw a dotted line across, its name at the end where the curves are not.

    Example:
        >>> _, axes = start_figure(4.4)
        >>> mark_level(axes, 1.0, "T_c")
        >>> axes.texts[0].get_text()
        'T_c'
    """
    axes.axhline(level, color=GREY, linestyle=":")
    axes.annotate(
        name,
        (0.99 if right else 0.01, level),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3 if right else -3),
        textcoords="offset points",
        ha="right" if right else "left",
        va="bottom" if right else "top",
        fontsize=SMALL,
    )


def set_title(axes: Axes, text: str) -> Text:
    """Write a title at the left, as plain text whatever it holds.

    Example:
        >>> _, axes = start_figure(4.4)
        >>> set_title(axes, "$5").get_text()
        '$5'
    """
    # A label may hold dollar signs, which matplotlib would take for mathematics.
    return axes.set_title(text, loc="left", fontsize=SMALL, parse_math=False)


def add_legend(
    figure: Figure, results: Results, *, kinds: bool, only: Sequence[str] | None = None
) -> None:
    """Write below the figure which method has which colour and marker.

    Args:
        figure: The figure.
        results: A whole comparison.
        kinds: Whether to tell hard (solid) from soft (dashed).
        only: Names of methods; all by default.

    Example:
        >>> figure, _ = start_figure(4.4)
        >>> add_legend(figure, {"methods": {"a": {"label": "A"}}}, kinds=True)
        >>> [text.get_text() for text in figure.legends[0].get_texts()]
        ['A', 'hard codes', 'soft weights']
    """
    handles: list[Artist] = []
    labels = []
    for name, method in results["methods"].items():
        if only is not None and name not in only:
            continue
        colour, marker = find_style(results, name)
        handles.append(Line2D([], [], color=colour, marker=marker, markersize=6))
        labels.append(method["label"])
    if kinds:
        handles += [Line2D([], [], color=GREY, linestyle=dash) for dash in ("-", "--")]
        labels += ["hard codes", "soft weights"]
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=SMALL)
    for text in legend.get_texts():
        text.set_parse_math(False)


def start_figure(high: float) -> tuple[Figure, Axes]:
    """Return a figure of the common width, ``high`` inches high, and its axes.

    Example:
        >>> start_figure(4.4)[0].get_size_inches().tolist()
        [6.4, 4.4]
    """
    figure = Figure((WIDTH, high), layout="constrained")
    return figure, figure.subplots()
