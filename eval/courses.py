"""Courses: the figures that follow a measure over training, a mean and a band for each method."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from eval.results import Results
from eval.style import (
    WIDTH,
    add_legend,
    find_style,
    label_axes,
    mark_level,
    set_title,
    start_figure,
)
from eval.table import Curve, has_measure, trace_curve

NEAR = 1.0


def draw_psnr(results: Results) -> Figure:
    """Draw PSNR over training images: the whole course, and its second half on a scale of its own.

    Args:
        results: A whole comparison.

    Returns:
        Two axes, one above the other: the start is so low that the end would be one line.

    Example:
        >>> draw_psnr({"methods": {}}).get_size_inches().tolist()
        [6.4, 7.4]
    """
    figure = Figure((WIDTH, 7.4), layout="constrained")
    above, below = figure.subplots(2, 1)
    for axes in (above, below):
        _plot_course(axes, results, "psnr_hard", "psnr_soft")
        label_axes(axes, x="Training images seen", y="PSNR on the test set (dB)")
    set_title(above, "The whole run")
    set_title(below, f"The second half, within {NEAR:g} dB of the best hard PSNR")
    _magnify_end(below, results)
    add_legend(figure, results, kinds=has_measure(results, "psnr_soft"))
    return figure


def draw_use(results: Results) -> Figure:
    """Draw the share of codes in use over training images, hard solid and soft dashed.

    Example:
        >>> draw_use({"methods": {}}).axes[0].get_ylabel()
        'Codes in use on the test set (%)'
    """
    figure, axes = start_figure(4.4)
    _plot_course(axes, results, "use_hard", "use_soft", scale=100)
    axes.set_ylim(0, 103)
    label_axes(axes, x="Training images seen", y="Codes in use on the test set (%)")
    add_legend(figure, results, kinds=has_measure(results, "use_soft"))
    return figure


def draw_perplexity(results: Results) -> Figure:
    """Draw the perplexity of the hard codes over training images.

    Example:
        >>> draw_perplexity({"methods": {}}).axes[0].get_ylabel()
        'Perplexity of hard codes'
    """
    figure, axes = start_figure(4.4)
    _plot_course(axes, results, "perplexity_hard")
    axes.set_ylim(0, 1.03 * axes.get_ylim()[1])
    label_axes(axes, x="Training images seen", y="Perplexity of hard codes")
    add_legend(figure, results, kinds=False)
    return figure


def draw_temperature(results: Results) -> Figure:
    """Draw temperature over critical temperature, where there is one, and the entropy of weights.

    Example:
        >>> [axes.get_ylabel() for axes in draw_temperature({"methods": {}}).axes]
        ['Entropy of weights (nats)']
    """
    parts = [("entropy", "Entropy of weights (nats)")]
    if has_measure(results, "temperature_ratio"):
        parts.insert(0, ("temperature_ratio", "T / T_c"))
    figure = Figure((WIDTH, 0.8 + 2.9 * len(parts)), layout="constrained")
    plots = figure.subplots(len(parts), 1, squeeze=False).flat
    for axes, (measure, name) in zip(plots, parts, strict=True):
        _plot_course(axes, results, measure)
        label_axes(axes, x="Training images seen", y=name)
        if measure == "temperature_ratio":
            axes.set_yscale("log")
            mark_level(axes, 1, "above: all codes merge", right=True)
        else:
            axes.set_ylim(0, 1.03 * axes.get_ylim()[1])
    add_legend(figure, results, kinds=False, only=_list_soft(results))
    return figure


def draw_spread(results: Results) -> Figure:
    """Draw the share of the distortion that is spread, V / L_q, over training images.

    Example:
        >>> draw_spread({"methods": {}}).axes[0].get_ylabel()
        'V / L_q'
    """
    figure, axes = start_figure(4.0)
    _plot_course(axes, results, "spread_share")
    axes.set_ylim(0, 1.03)
    label_axes(axes, x="Training images seen", y="V / L_q")
    add_legend(figure, results, kinds=False, only=_list_soft(results))
    return figure


def _plot_course(
    axes: Axes, results: Results, hard: str, soft: str | None = None, *, scale: float = 1
) -> None:
    """Plot one or two measures of every method: mean over seeds, and a band of one deviation."""
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    for name, method in results["methods"].items():
        colour, marker = find_style(results, name)
        for measure, dash in ((hard, "-"), (soft, "--")):
            curve = trace_curve(method, measure) if measure else Curve([], [], [])
            mean = scale * np.array(curve.mean)
            mean[~np.isfinite(mean)] = np.nan  # a run that diverged is a gap, not an axis to 1e308
            half = scale * np.array(curve.deviation)
            axes.plot(
                curve.images,
                mean,
                color=colour,
                marker=marker,
                linestyle=dash,
                markersize=6,
                label=f"{method['label']}, {'soft' if measure == soft else 'hard'}"
                if soft
                else method["label"],
            )
            if np.isfinite(half).any():
                axes.fill_between(
                    curve.images, mean - half, mean + half, color=colour, alpha=0.18, linewidth=0
                )


def _list_soft(results: Results) -> list[str]:
    return [name for name, m in results["methods"].items() if trace_curve(m, "entropy").images]


def _magnify_end(axes: Axes, results: Results) -> None:
    """Show the second half of the run near the best hard mean: no bad method hides a close race."""
    curves = [
        [trace_curve(method, measure) for method in results["methods"].values()]
        for measure in ("psnr_hard", "psnr_soft")
    ]
    last = max((curve.images[-1] for curve in curves[0] if curve.images), default=0)
    hard, soft = (
        [
            mean
            for curve in group
            for images, mean in zip(curve.images, curve.mean, strict=True)
            if images >= last / 2 and math.isfinite(mean)
        ]
        for group in curves
    )
    if last == 0 or not hard:
        return
    low = max(min(hard + soft), max(hard) - NEAR)
    high = min(max(hard + soft), max(hard) + NEAR)
    margin = 0.08 * (high - low) or 0.1
    axes.set_xlim(last / 2 - 0.02 * last, last * 1.02)
    axes.set_ylim(low - margin, high + margin)
