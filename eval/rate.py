"""The rate-distortion plane: what the tokens of each method cost, and what they give."""

from matplotlib.figure import Figure

from eval.results import MethodResult, Results
from eval.seeds import collect_final, find_deviation, find_mean
from eval.style import GREY, add_legend, find_style, label_axes, start_figure

RATES = ("entropy_bits_per_pixel", "bits_per_pixel")
"""Names as short as the frequencies of the codes allow, and names of equal length."""
QUALITY = "psnr_hard_of_mean"


def has_rate(results: Results) -> bool:
    """Return whether any method has a point in the plane.

    Example:
        >>> has_rate({"methods": {"a": {"seeds": [{"final": {"psnr_hard_of_mean": 20.0}}]}}})
        False
    """
    return any(_find_point(method) is not None for method in results["methods"].values())


def draw_rate(results: Results) -> Figure:
    """Draw two points a method: hard PSNR at the entropy of its codes (filled) and at log2 K.

    Distortion is the mean error over all pictures, as rate-distortion theory has it, in dB.

    Args:
        results: A whole comparison.

    Returns:
        One line a method between its two points; means over seeds, bars of one deviation.

    Example:
        >>> draw_rate({"methods": {}}).axes[0].get_xlabel()
        'Bits a pixel'
    """
    figure, axes = start_figure(4.4)
    shown = []
    for name, method in results["methods"].items():
        point = _find_point(method)
        if point is None:
            continue
        shown.append(name)
        rates, quality = point
        colour, marker = find_style(results, name)
        heights = [find_mean(quality)] * len(RATES)
        places = [find_mean(rate) for rate in rates]
        axes.plot(places, heights, color=colour, label=method["label"], linewidth=1)
        for place, height, fill in zip(places, heights, (colour, "none"), strict=True):
            axes.plot(place, height, marker, color=colour, markerfacecolor=fill, markersize=8)
        if len(quality) > 1:
            axes.errorbar(
                places[0],
                heights[0],
                yerr=find_deviation(quality),
                xerr=find_deviation(rates[0]),
                color=GREY,
                zorder=0,
                capsize=3,
            )
    label_axes(axes, x="Bits a pixel", y="PSNR of the mean error, hard (dB)")
    add_legend(figure, results, kinds=False, only=shown)
    return figure


def _find_point(method: MethodResult) -> tuple[list[list[float]], list[float]] | None:
    """Return both rates and the quality, a value a seed, or None where a run lacks one."""
    found = [collect_final(method, measure) for measure in (*RATES, QUALITY)]
    values = [each for each in found if each]
    return None if len(values) < len(found) else (values[:-1], values[-1])
