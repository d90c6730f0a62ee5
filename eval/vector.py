"""Figures as SVG inside of the page: one drawing for both themes, and its values to point at.

matplotlib draws, so that page and PNG files cannot differ. The colours of ground, ink and grid
become variables of the page's style sheet. The values come from the drawn lines themselves.

An own script of some lines shows them: plotly's would add 4.5 MB to each page, want its figures
drawn a second time for the PNG files, and answer no key.
"""

import io
import math
from collections.abc import Sequence
from typing import NamedTuple
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from eval.style import LIGHT, tint

MOST_STOPS = 48
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
ElementTree.register_namespace("", _SVG)
ElementTree.register_namespace("xlink", _XLINK)
_VARIABLES = {
    LIGHT.ground: "var(--ground)",
    LIGHT.ink: "var(--ink)",
    LIGHT.grid: "var(--line)",
}
# matplotlib's names for a line that has none, and for what belongs to an error bar.
_DEFAULT_LABELS = ("_child", "_nolegend_")


class Reading(NamedTuple):
    """One curve at one stop: what is shown, and its height as a share of the figure's, from top."""

    label: str
    text: str
    colour: str
    dashed: bool
    y: float


class Stop(NamedTuple):
    """A place on the x axis, as a share of the figure's width, and what all curves are there."""

    x: float
    title: str
    readings: list[Reading]


class Panel(NamedTuple):
    """One pair of axes: its box as shares of the figure from left and top, name, and stops."""

    left: float
    top: float
    right: float
    bottom: float
    title: str
    stops: list[Stop]


class Drawn(NamedTuple):
    """A figure as an SVG element, and a panel for each axes that has curves with a label."""

    svg: str
    panels: list[Panel]


def draw_vector(figure: Figure, name: str) -> Drawn:
    """Return a figure as SVG for the page, text as text, and what its curves are where.

    Args:
        figure: Is tinted light.
        name: Before every id, so that figures of one page do not meet.

    Example:
        >>> figure = Figure((2, 1))
        >>> axes = figure.subplots()
        >>> axes.set_title("<b>").set_gid("t")
        >>> _ = axes.plot([0, 1], [2.0, 3.5], label="A", color="red", linestyle="--")
        >>> text, [panel] = draw_vector(figure, "psnr")
        >>> text[:4], 'id="psnr-t"' in text, "&lt;b&gt;" in text
        ('<svg', True, True)
        >>> panel.stops[1].readings[0][:4]
        ('A', '3.500', '#ff0000', True)
    """
    text = _draw_svg(figure, name)  # first: the layout is known once it is drawn
    panels = []
    for axes in figure.axes:
        stops = _trace_stops(axes, [line for line in axes.get_lines() if not _is_plain(line)])
        if stops:
            box = axes.get_position()
            panels.append(Panel(box.x0, 1 - box.y1, box.x1, 1 - box.y0, axes.get_ylabel(), stops))
    return Drawn(text, panels)


def _draw_svg(figure: Figure, name: str) -> str:
    tint(figure, LIGHT)
    file = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(file.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            # A style sheet here would be one of the whole page; the metadata name a network.
            if child.tag in (f"{{{_SVG}}}style", f"{{{_SVG}}}metadata"):
                parent.remove(child)
    for element in root.iter():
        for key, value in element.attrib.items():
            element.set(key, _fit_page(key, value, name=name))
    for key in ("width", "height"):
        del root.attrib[key]
    root.set("style", "stroke-linejoin: round; stroke-linecap: butt")
    root.set("aria-hidden", "true")
    return ElementTree.tostring(root, encoding="unicode")


def _trace_stops(axes: Axes, lines: Sequence[Line2D]) -> list[Stop]:
    low, high = axes.get_xlim()
    found: set[float] = set()
    for line in lines:
        found |= {float(x) for x in np.asarray(line.get_xdata()) if low <= x <= high}
    stops = []
    for x in _thin_out(sorted(found), logarithmic=axes.get_xscale() == "log"):
        readings = [reading for line in lines if (reading := _read(axes, line, x)) is not None]
        title = f"{axes.get_xlabel()}: {f'{x:,.0f}' if x.is_integer() else show_number(x)}"
        if readings:
            stops.append(Stop(_place(axes, x, 0)[0], title, readings))
    return stops


def _read(axes: Axes, line: Line2D, x: float) -> Reading | None:
    data = zip(np.asarray(line.get_xdata()), np.asarray(line.get_ydata()), strict=True)
    values = [float(y) for place, y in data if place == x]
    if not values or not math.isfinite(values[0]):
        return None
    dashed = line.get_linestyle() == "--"
    height = min(max(_place(axes, x, values[0])[1], 0.0), 1.0)
    return Reading(
        str(line.get_label()), show_number(values[0]), to_hex(line.get_color()), dashed, height
    )


def show_number(value: float) -> str:
    """Return a number to four figures, no fewer: columns of them stay aligned.

    Example:
        >>> show_number(19.3), show_number(12345.0), show_number(0.25)
        ('19.30', '12,345', '0.2500')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.4g}".rstrip(".")


def _thin_out(places: list[float], *, logarithmic: bool) -> list[float]:
    """Return at most `MOST_STOPS` of the places, spread as the axis spreads them."""
    if len(places) <= MOST_STOPS:
        return places
    ends = (places[0], places[-1])
    wanted = np.geomspace(*ends, MOST_STOPS) if logarithmic else np.linspace(*ends, MOST_STOPS)
    nearest = np.abs(np.subtract.outer(wanted, places)).argmin(1)
    return [places[place] for place in sorted(set(nearest.tolist()))]


def _place(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Return a point of the data as shares of the figure from left and top."""
    figure = axes.figure
    across, up = axes.transData.transform((x, y))
    box = figure.bbox
    return float(across / box.width), float(1 - up / box.height)


def _is_plain(line: Line2D) -> bool:
    return str(line.get_label()).startswith(_DEFAULT_LABELS)


def _fit_page(key: str, value: str, *, name: str) -> str:
    """Return an attribute's value with ids of this figure alone, and colours of the page."""
    if key == "id":
        return f"{name}-{value}"
    if key == f"{{{_XLINK}}}href":
        return value.replace("#", f"#{name}-", 1)
    for colour, variable in _VARIABLES.items():
        value = value.replace(colour, variable)
    return value.replace("url(#", f"url(#{name}-")
