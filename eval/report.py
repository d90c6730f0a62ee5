"""The page of a comparison: one self-contained HTML file that asks nothing of the network."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from torch import Tensor

from eval.atlas import draw_atlas
from eval.conditions import HEADINGS, list_conditions
from eval.embedded import describe_atlas, describe_tiles, list_unstored, make_charts, make_strips
from eval.figures import save_figures
from eval.pictures import load_pictures
from eval.results import Results, load_results
from eval.table import BASE, CLAIM_RULE, compare_paired, describe_difference, summarise
from eval.tiles import GAIN, make_tiles
from eval.words import describe_outcome, list_warnings
from softvq.files import replacing
from train.patches import MOST_IMAGES

REPORT_FILE = "report.html"
TEMPLATE_FILE = "report.html.j2"


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
        charts=make_charts(results, pictures),
        strips=make_strips(results, pictures),
        tiles=describe_tiles(make_tiles(results, pictures)),
        gain=GAIN,
        unstored=list_unstored(results, pictures),
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
