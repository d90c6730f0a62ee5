"""The page of a comparison: one self-contained HTML file that asks nothing of the network."""

import base64
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image
from torch import Tensor

from eval.atlas import Atlas, draw_atlas
from eval.columns import COLUMNS
from eval.conditions import HEADINGS, list_conditions
from eval.figures import MOST_PICTURES, draw_figures, draw_pictures, save_figures
from eval.pictures import load_pictures
from eval.rate import QUALITY, RATES
from eval.results import Results, load_results
from eval.style import DARK, LIGHT, tint
from eval.table import (
    BASE,
    CLAIM_RULE,
    compare_paired,
    describe_difference,
    make_cell,
    summarise,
)
from eval.tiles import GAIN, Tile, Tiles, make_tiles
from eval.vector import Panel, draw_vector
from softvq.files import replacing
from train.patches import MOST_IMAGES

REPORT_FILE = "report.html"
TEMPLATE_FILE = "report.html.j2"

_BAND = "Lines are means over seeds; a band is one standard deviation, where there are two or more."
CAPTIONS = {
    "psnr": "PSNR on the test set over training. Solid: decoded from hard codes, the figure that "
    f"counts. Dashed: decoded from the soft mean, which carries more than one index. {_BAND}",
    "use": "Share of the codebook in use. Solid: codes that are the nearest of some test token. "
    f"Dashed: by soft weights, which is 100 % for a fully collapsed codebook too. {_BAND}",
    "perplexity": "Perplexity of hard codes: how many codes, equally often used, would be as "
    f"diverse. {_BAND}",
    "temperature": "Methods with soft weights only. Near entropy 0 the soft mean is the hard code; "
    f"at log K every code has the same weight. {_BAND}",
    "spread": "Methods with soft weights only. How much of the distortion is spread of the weights "
    "rather than distance of their mean: 0 where the weights sit on one code.",
    "rate": "What the tokens cost and what they give. Filled: at the entropy of the use of codes, "
    "names as short as it allows; hollow: at log2 K bits a token, for every code alike. Up and to "
    "the left is better. Means over seeds; bars are one standard deviation.",
    "histogram": "How often each code is taken on the test set, most frequent first, one run a "
    "method. A flat line uses all codes alike; a curve that ends early leaves codes dead.",
    "pictures": f"Test pictures, {MOST_PICTURES} at most: the input, then each "
    "method decoded from hard codes and, where it has them, from soft weights.",
}


class Chart(NamedTuple):
    """A figure with curves: its SVG, what the pointer reads from it, and words for it."""

    name: str
    svg: str
    panels: list[Panel]
    alt: str
    caption: str


class Strips(NamedTuple):
    """The figure of pictures, as data for a light and a dark ground, and words for it."""

    light: str
    dark: str
    alt: str
    caption: str


def write_report(folder: Path | str) -> Path:
    """Read a comparison's folder and write its PNG files and ``report.html`` there.

    Args:
        folder: The output folder, with ``results.json`` and ``pictures.safetensors``.

    Returns:
        The page.

    Raises:
        ValueError: If either file is missing, cut short or of another version.

    Example:
        >>> write_report("no-such-folder")
        Traceback (most recent call last):
        ValueError: no-such-folder holds no results.json. Make it with: make compare \
OUT=no-such-folder
    """
    results, pictures = load_results(folder), load_pictures(folder)
    save_figures(folder, results, pictures)
    path = Path(folder) / REPORT_FILE
    with replacing(path) as beside:
        beside.write_text(render_page(results, pictures), encoding="utf-8")
    return path


def render_page(results: Results, pictures: Mapping[str, Tensor]) -> str:
    """Return the page as HTML, every text of ``results`` escaped.

    Args:
        results: A whole comparison.
        pictures: As `eval.pictures.load_pictures` gives them.

    Example:
        >>> import torch
        >>> plain = {"device": "cpu", "commit": "", "command": "", "data": "<b>", "config": {}}
        >>> pictures = {"inputs": torch.zeros(1, 1, 4, 4).byte()}
        >>> page = render_page({"methods": {}, "versions": {}, **plain}, pictures)
        >>> "&lt;b&gt;" in page, "<b>" in page
        (True, False)
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    methods = results["methods"]
    return environment.get_template(TEMPLATE_FILE).render(
        results=results,
        summary=summarise(results),
        most_seeds=max((len(method["seeds"]) for method in methods.values()), default=0),
        headline=describe_outcome(results),
        charts=_make_charts(results, pictures),
        strips=_make_strips(results, pictures),
        tiles=_describe_tiles(make_tiles(results, pictures)),
        gain=GAIN,
        unstored=_list_unstored(results, pictures),
        atlases=[
            describe_atlas(method["label"], atlas)
            for name, method in methods.items()
            if (atlas := draw_atlas(pictures, name)) is not None
        ],
        patch_images=MOST_IMAGES,
        headings=HEADINGS,
        conditions=list_conditions(results),
        config=json.dumps(results["config"], indent=2, ensure_ascii=False),
        warnings=list_warnings(results),
        **_compare(results),
    )


def _compare(results: Results) -> dict[str, Any]:
    """Return what the page says on differences."""
    differences = compare_paired(results)
    paired = {BASE, *(difference.rival for difference in differences)}
    return {
        "differences": [(each, describe_difference(each)) for each in differences],
        "unpaired": [m["label"] for name, m in results["methods"].items() if name not in paired],
        "base": BASE,
        "claim_rule": CLAIM_RULE,
    }


def describe_outcome(results: Results) -> str:
    """Return one sentence on the method at hand against its strongest rival, whichever way it goes.

    Example:
        >>> describe_outcome({"methods": {}})
        'softvq is not among these methods: the page compares the others only.'
    """
    if BASE not in results["methods"]:
        return f"{BASE} is not among these methods: the page compares the others only."
    differences = compare_paired(results)
    if not differences:
        return f"No rival ran with a seed of {BASE}: nothing can be compared here."
    return f"Hard PSNR against the strongest rival: {describe_difference(differences[0])}."


def describe_plot(name: str, results: Results) -> str:
    """Return the alternative text of a figure: what it is, and the values it ends at.

    Example:
        >>> describe_plot("pictures", {"methods": {}})
        'Rows of test pictures: the input and what each method makes of it.'
    """
    if name == "pictures":
        return "Rows of test pictures: the input and what each method makes of it."
    if name == "histogram":
        return (
            "Counts of hard codes against their rank, both axes logarithmic, one curve a method: "
            + _list_values(results, "use_hard")
        )
    if name == "rate":
        values = [_list_values(results, each) for each in (*RATES, QUALITY)]
        return f"Points in the plane of rate and distortion, two a method: {'; '.join(values)}"
    measures = {
        "psnr": ("psnr_hard", "psnr_soft"),
        "use": ("use_hard", "use_soft"),
        "perplexity": ("perplexity_hard",),
        "temperature": ("entropy", "temperature_ratio"),
        "spread": ("spread_share",),
    }[name]
    ends = "; ".join(_list_values(results, measure) for measure in measures)
    return f"Curves over training images, one a method. At the end: {ends}"


def _list_values(results: Results, measure: str) -> str:
    column = next(column for column in COLUMNS if column.measure == measure)
    cells = [(m["label"], make_cell(m, column)) for m in results["methods"].values()]
    values = [f"{label} {cell.text}" for label, cell in cells if cell.mean is not None]
    return f"{'soft' if column.soft else 'hard'} {column.title}: {', '.join(values) or 'none'}"


def list_warnings(results: Results) -> list[tuple[str, str]]:
    """Return what the runs warned of, each text once, after the runs that gave it.

    Example:
        >>> runs = [{"seed": seed, "warnings": ["dead codes"]} for seed in (0, 1)]
        >>> list_warnings({"methods": {"ste": {"seeds": runs, "label": "STE"}}})
        [('STE, seeds 0, 1', 'dead codes')]
    """
    found: dict[str, dict[str, list[int]]] = {}
    for method in results["methods"].values():
        for run in method["seeds"]:
            for text in run["warnings"]:
                found.setdefault(text, {}).setdefault(method["label"], []).append(run["seed"])
    return [
        ("; ".join(_name_runs(label, seeds) for label, seeds in runs.items()), text)
        for text, runs in found.items()
    ]


def _name_runs(label: str, seeds: list[int]) -> str:
    return f"{label}, seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _list_unstored(results: Results, pictures: Mapping[str, Tensor]) -> list[str]:
    methods = results["methods"].items()
    return [method["label"] for name, method in methods if f"{name}/hard" not in pictures]


def _make_charts(results: Results, pictures: Mapping[str, Tensor]) -> list[Chart]:
    charts = []
    missing = _list_unstored(results, pictures)
    for name, figure in draw_figures(results, pictures).items():
        if name == "pictures":
            continue
        caption = CAPTIONS[name]
        if name == "histogram" and missing:
            caption += f" None were stored for: {', '.join(missing)}."
        svg, panels = draw_vector(figure, name)
        charts.append(
            Chart(
                name,
                svg=svg,
                panels=panels,
                alt=describe_plot(name, results),
                caption=caption,
            )
        )
    return charts


def _make_strips(results: Results, pictures: Mapping[str, Tensor]) -> Strips:
    drawn = []
    for theme in (LIGHT, DARK):
        figure = draw_pictures(results, pictures)
        tint(figure, theme)
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=150)
        drawn.append(_embed(file.getvalue()))
    return Strips(
        light=drawn[0],
        dark=drawn[1],
        alt=describe_plot("pictures", results),
        caption=CAPTIONS["pictures"],
    )


def _describe_tiles(tiles: Tiles) -> dict[str, Any]:
    """Return the tiles with pictures as data and figures as text."""
    inputs = _embed_pixels(tiles.inputs)
    return tiles._asdict() | {"methods": [_describe_tile(each, inputs) for each in tiles.methods]}


def _describe_tile(tile: Tile, inputs: str) -> dict[str, Any]:
    soft = tile.psnr_soft
    return {
        "label": tile.label,
        "inputs": inputs,
        "hard": _embed_pixels(tile.hard),
        "soft": None if tile.soft is None else _embed_pixels(tile.soft),
        "residual": _embed_pixels(tile.residual),
        "psnr_hard": [f"{value:.2f}" for value in tile.psnr_hard],
        "psnr_soft": None if soft is None else [f"{value:.2f}" for value in soft],
    }


def describe_atlas(label: str, atlas: Atlas) -> dict[str, Any]:
    """Return a map with its picture as data, and of each cell what the pointer shows.

    Example:
        >>> import torch
        >>> cell = {"columns": 1, "codes": [7], "counts": [3], "tokens": [2], "near": [[]]}
        >>> sprite = torch.zeros(2, 2, 4, dtype=torch.uint8)
        >>> describe_atlas("SoftVQ", Atlas(sprite, **cell, num_codes=9, total=3))["text"]
        'the 1 most frequent of 9 codes.'
    """
    shown = len(atlas.codes)
    used = sum(count > 0 for count in atlas.counts)
    text = f"{used:,} of {atlas.num_codes:,} codes are hard codes of the test set."
    if shown < atlas.num_codes:
        text = f"the {shown:,} most frequent of {atlas.num_codes:,} codes."
    cells = zip(atlas.codes, atlas.counts, atlas.tokens, atlas.near, strict=True)
    rows = math.ceil(shown / atlas.columns)
    return {
        "label": label,
        "sprite": _embed_pixels(atlas.sprite),
        "columns": atlas.columns,
        "rows": rows,
        "empty": rows * atlas.columns - shown,
        "cells": list(cells),
        "total": atlas.total,
        "text": text,
    }


def _embed_pixels(pixels: Tensor) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(file, format="png", optimize=True)
    return _embed(file.getvalue())


def _embed(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
