"""The figures of a comparison, drawn with matplotlib's objects: no pyplot, no global state.

Everywhere hard codes are solid and soft weights dashed; a method keeps its colour and its marker in
all figures, so that no figure needs colour to be read.

Shape letters: P pictures, C channels, H height, W width, K codes.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Int64, UInt8
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator
from torch import Tensor
from torch.nn.functional import pad

from eval.courses import draw_perplexity, draw_psnr, draw_spread, draw_temperature, draw_use
from eval.rate import draw_rate, has_rate
from eval.results import Results
from eval.style import (
    LIGHT,
    SMALL,
    WIDTH,
    add_legend,
    find_style,
    label_axes,
    mark_level,
    set_title,
    start_figure,
    tint,
)
from eval.table import has_measure
from softvq.files import replacing

MOST_PICTURES = 10


def draw_histogram(results: Results, pictures: Mapping[str, Tensor]) -> Figure:
    """Draw how often each code is taken, most frequent first, both axes logarithmic (Zipf).

    Args:
        results: A whole comparison, for the order and labels of methods.
        pictures: As ``load_pictures`` gives them; ``{method}/counts`` are read.

    Returns:
        One curve a method, ending at its last code in use, and dotted lines at the mean N / K.

    Example:
        >>> draw_histogram({"methods": {}}, {}).axes[0].get_xscale()
        'log'
    """
    figure, axes = start_figure(4.6)
    means: set[float] = set()
    shown = [name for name in results["methods"] if f"{name}/counts" in pictures]
    for place, name in enumerate(shown):
        counts = sort_counts(pictures[f"{name}/counts"])
        used = [count for count in counts if count]
        colour, marker = find_style(results, name)
        ranks = range(1, len(used) + 1)
        # Markers start apart, so that curves on top of each other still show theirs.
        every = (0.02 * place, 0.15)
        label = results["methods"][name]["label"]
        axes.plot(
            ranks, used, color=colour, marker=marker, markevery=every, markersize=6, label=label
        )
        means.add(float(f"{sum(counts) / len(counts):.3g}"))
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):  # 200, and not 2 x 10^2
        axis.set_minor_locator(LogLocator(subs=(2, 5)))
        axis.set_major_formatter(EngFormatter(sep=""))
        axis.set_minor_formatter(EngFormatter(sep=""))
    axes.tick_params(which="minor", labelsize=SMALL)
    for mean in sorted(means):
        mark_level(axes, mean, f"mean, N / K = {mean:g}")
    label_axes(axes, x="Code, most frequent first", y="Tokens of the test set")
    add_legend(figure, results, kinds=False, only=shown)
    return figure


def sort_counts(counts: Int64[Tensor, " k"]) -> list[int]:
    """Return the counts, largest first.

    Example:
        >>> sort_counts(torch.tensor([1, 5, 0]))
        [5, 1, 0]
    """
    return counts.sort(descending=True).values.tolist()


def draw_pictures(results: Results, pictures: Mapping[str, Tensor]) -> Figure:
    """Draw test pictures: a row of inputs, then each method's hard and, where it has one, soft row.

    Args:
        results: A whole comparison, for the order and labels of methods.
        pictures: As ``load_pictures`` gives them.

    Returns:
        One strip a row, with its name above it.

    Example:
        >>> pictures = {"inputs": torch.zeros(2, 1, 4, 4).byte()}
        >>> draw_pictures({"methods": {}}, pictures).axes[0].get_title("left")
        'Input'
    """
    rows = [("Input", pictures["inputs"])]
    for name, method in results["methods"].items():
        for part in ("hard", "soft"):
            if f"{name}/{part}" in pictures:
                rows.append((f"{method['label']}, {part}", pictures[f"{name}/{part}"]))
    strips = [join_strip(tensor[:MOST_PICTURES]) for _, tensor in rows]
    high = WIDTH * strips[0].shape[0] / strips[0].shape[1]
    figure = Figure((WIDTH, (high + 0.28) * len(rows)), layout="constrained")
    plots = figure.subplots(len(rows), 1, squeeze=False).flat
    for axes, (name, _), strip in zip(plots, rows, strips, strict=True):
        axes.imshow(strip, interpolation="nearest")
        axes.set_axis_off()
        set_title(axes, name)
    return figure


def join_strip(pictures: UInt8[Tensor, "p c h w"]) -> np.ndarray:
    """Return the pictures side by side as H x W x 4 bytes, with a clear pixel between two.

    Example:
        >>> join_strip(torch.zeros(3, 1, 4, 4, dtype=torch.uint8)).shape
        (4, 14, 4)
    """
    colour = pictures.expand(-1, 3, -1, -1)
    solid = torch.cat([colour, torch.full_like(colour[:, :1], 255)], dim=1)
    # The padding is transparent, so that the ground shows between pictures in either theme.
    strip = rearrange(pad(solid, (0, 1)), "p c h w -> h (p w) c")
    return strip[:, :-1].numpy()


def draw_figures(results: Results, pictures: Mapping[str, Tensor]) -> dict[str, Figure]:
    """Return every figure that these results have, by name, in the order to be read.

    Example:
        >>> list(draw_figures({"methods": {}}, {"inputs": torch.zeros(2, 1, 4, 4).byte()}))
        ['psnr', 'use', 'perplexity', 'histogram', 'pictures']
    """
    drawers: dict[str, Callable[[Results], Figure]] = {
        "psnr": draw_psnr,
        "use": draw_use,
        "perplexity": draw_perplexity,
    }
    if has_measure(results, "entropy"):
        drawers |= {"temperature": draw_temperature, "spread": draw_spread}
    figures = {name: draw(results) for name, draw in drawers.items()}
    if has_rate(results):
        figures["rate"] = draw_rate(results)
    figures["histogram"] = draw_histogram(results, pictures)
    figures["pictures"] = draw_pictures(results, pictures)
    return figures


def save_figures(
    folder: Path | str, results: Results, pictures: Mapping[str, Tensor]
) -> list[Path]:
    """Write every figure into ``folder`` as PNG, light, each whole or not at all.

    Args:
        folder: The output folder; made if missing.
        results: A whole comparison.
        pictures: As ``load_pictures`` gives them.

    Returns:
        The files, named as ``draw_figures`` names the figures.

    Example:
        >>> import tempfile
        >>> pictures = {"inputs": torch.zeros(2, 1, 4, 4).byte()}
        >>> [path.name for path in save_figures(tempfile.mkdtemp(), {"methods": {}}, pictures)][:2]
        ['psnr.png', 'use.png']
    """
    paths = []
    for name, figure in draw_figures(results, pictures).items():
        tint(figure, LIGHT)
        path = Path(folder) / f"{name}.png"
        with replacing(path) as beside:
            figure.savefig(beside, format="png", dpi=150)
        paths.append(path)
    return paths
