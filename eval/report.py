"""The page of a comparison: one self-contained HTML file that asks nothing of the network."""

import base64
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from torch import Tensor

from eval.figures import DARK, MOST_PICTURES, draw_figures, save_figures, tint
from eval.results import Results, load_pictures, load_results
from eval.table import (
    BASE,
    CLAIM_RULE,
    COLUMNS,
    compare_paired,
    describe_difference,
    make_cell,
    summarise,
)
from softvq.files import replacing

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
    "histogram": "How often each code is taken on the test set, most frequent first, one run a "
    "method. A flat line uses all codes alike; a curve that ends early leaves codes dead.",
    "pictures": f"Test pictures, {MOST_PICTURES} at most: the input, then each "
    "method decoded from hard codes and, where it has them, from soft weights.",
}


class Plot(NamedTuple):
    """One figure of the page, as data for a light and a dark ground."""

    name: str
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
    light = {path.stem: path.read_bytes() for path in save_figures(folder, results, pictures)}
    page = render_page(results, plots=_make_plots(results, pictures, light))
    path = Path(folder) / REPORT_FILE
    with replacing(path) as beside:
        beside.write_text(page, encoding="utf-8")
    return path


def render_page(results: Results, *, plots: list[Plot]) -> str:
    """Return the page as HTML, every text of ``results`` escaped.

    Args:
        results: A whole comparison.
        plots: The figures in the order to be read.

    Example:
        >>> plain = {"device": "cpu", "commit": "", "command": "", "data": "<b>", "config": {}}
        >>> page = render_page({"methods": {}, "versions": {}, **plain}, plots=[])
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
    differences = compare_paired(results)
    paired = {BASE, *(difference.rival for difference in differences)}
    methods = results["methods"]
    return environment.get_template(TEMPLATE_FILE).render(
        results=results,
        summary=summarise(results),
        headline=describe_outcome(results),
        differences=[(d, describe_difference(d)) for d in differences],
        unpaired=[m["label"] for name, m in methods.items() if name not in paired],
        base=BASE,
        claim_rule=CLAIM_RULE,
        plots=plots,
        config=json.dumps(results["config"], indent=2, ensure_ascii=False),
        warnings=[
            (method["label"], run["seed"], text)
            for method in methods.values()
            for run in method["seeds"]
            for text in run["warnings"]
        ],
        most_seeds=max((len(method["seeds"]) for method in methods.values()), default=0),
    )


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
    measures = {
        "psnr": ("psnr_hard", "psnr_soft"),
        "use": ("use_hard", "use_soft"),
        "perplexity": ("perplexity_hard",),
        "temperature": ("entropy", "temperature_ratio"),
    }[name]
    ends = "; ".join(_list_values(results, measure) for measure in measures)
    return f"Curves over training images, one a method. At the end: {ends}"


def _list_values(results: Results, measure: str) -> str:
    column = next(column for column in COLUMNS if column.measure == measure)
    cells = [(m["label"], make_cell(m, column)) for m in results["methods"].values()]
    values = [f"{label} {cell.text}" for label, cell in cells if cell.mean is not None]
    return f"{'soft' if column.soft else 'hard'} {column.title}: {', '.join(values) or 'none'}"


def _make_plots(
    results: Results, pictures: Mapping[str, Tensor], light: Mapping[str, bytes]
) -> list[Plot]:
    plots = []
    methods = results["methods"].items()
    missing = [method["label"] for name, method in methods if f"{name}/hard" not in pictures]
    for name, figure in draw_figures(results, pictures).items():
        tint(figure, DARK)
        dark = io.BytesIO()
        figure.savefig(dark, format="png", dpi=150)
        caption = CAPTIONS[name]
        if name in ("histogram", "pictures") and missing:
            caption += f" None were stored for: {', '.join(missing)}."
        plots.append(
            Plot(
                name,
                light=_embed(light[name]),
                dark=_embed(dark.getvalue()),
                alt=describe_plot(name, results),
                caption=caption,
            )
        )
    return plots


def _embed(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
