"""Figures, pictures and maps in the form in which a page holds them: SVG, and PNG as data."""

import base64
import io
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from PIL import Image
from torch import Tensor

from eval.atlas import Atlas
from eval.figures import draw_figures, draw_pictures
from eval.results import Results
from eval.style import DARK, LIGHT, tint
from eval.tiles import Tile, Tiles
from eval.vector import Panel, draw_vector
from eval.words import CAPTIONS, describe_plot


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


def list_unstored(results: Results, pictures: Mapping[str, Tensor]) -> list[str]:
    """Return the labels of the methods of which no pictures were stored.

    Example:
        >>> list_unstored({"methods": {"ste": {"label": "STE"}}}, {})
        ['STE']
    """
    methods = results["methods"].items()
    return [method["label"] for name, method in methods if f"{name}/hard" not in pictures]


def make_charts(results: Results, pictures: Mapping[str, Tensor]) -> list[Chart]:
    """Return every figure with curves or points, in the order to be read.

    Example:
        >>> import torch
        >>> pictures = {"inputs": torch.zeros(1, 1, 4, 4).byte()}
        >>> [chart.name for chart in make_charts({"methods": {}}, pictures)]
        ['psnr', 'use', 'perplexity', 'histogram']
    """
    charts = []
    missing = list_unstored(results, pictures)
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


def make_strips(results: Results, pictures: Mapping[str, Tensor]) -> Strips:
    """Return the figure of pictures, for either ground.

    Example:
        >>> import torch
        >>> pictures = {"inputs": torch.zeros(1, 1, 4, 4).byte()}
        >>> make_strips({"methods": {}}, pictures).light[:22]
        'data:image/png;base64,'
    """
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


def describe_tiles(tiles: Tiles) -> dict[str, Any]:
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
