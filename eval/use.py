"""Use of the codebook from the first image on, hard and soft: `python -m eval use`.

The claim of DDCL's paper, beside a control that soft use cannot tell from success: a codebook whose
codes are all equal.
"""

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eval.courses import draw_use
from eval.results import Results, SeedResult
from eval.runs import finish_run, save_study
from eval.seeds import find_deviation, find_mean
from eval.style import LIGHT, tint
from eval.table import format_value
from eval.terminal import print_rows
from softvq import SoftVQ, Temperature
from softvq.checks import check_count
from softvq.data import ImageSet
from softvq.files import replacing
from softvq.models import VQVAE
from train.build import build_model
from train.config import DataConfig, MethodConfig, NetConfig, OptimConfig, RunConfig
from train.images import ImagePair
from train.loop import Run
from train.methods import get_method

CONTROL = "collapsed"
METHODS = ("ste", "ddcl-literal", "softvq", CONTROL)
SIZES = (64, 512)
BATCH, NUM_TRAIN = 64, 20_000
EVAL_AT = (0.0, 1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
SHOWN = (0, 4, 7)
USE_FILE = "use.json"


class CollapsedVQ(SoftVQ):
    """The control: all codes start on the rows' mean, where T above critical keeps them."""

    @torch.no_grad()
    def _place(self, rows: Tensor) -> None:
        super()._place(rows)
        self.codebook.copy_(rows.mean(0).to(self.codebook.dtype))


def use(
    *,
    out: Path = Path("runs/use"),
    epochs: int = 3,
    seeds: int = 1,
    num_test: int = 2000,
    full: bool = False,
    source: str = "cifar10",
    fresh: bool = False,
) -> None:
    """Follow hard and soft use of plain VQ, DDCL as written, SoftVQ and a collapsed codebook.

    K = 64 and 512, hidden 32, on the first 20,000 training images.

    Args:
        out: Folder for use.json, figures and runs.
        epochs: Passes over the images.
        seeds: Runs of each method and size.
        num_test: Test images that are measured.
        full: As the paper has it: 45 epochs, three seeds, all test images.
        source: cifar10, or textures for a trial on few drawn pictures.
        fresh: Train again what the folder holds already.
    """
    if full:
        epochs, seeds, num_test = 45, 3, 10_000
    check_count("seeds", seeds)
    content: dict[str, Any] = {}
    for num_codes in SIZES:
        base = configure(num_codes, epochs=epochs, num_test=num_test, source=source)
        results: Any = {"methods": {}}
        images = ImagePair(base["ste"])
        for seed in range(seeds):
            for name in METHODS:
                folder = out / "runs" / f"{num_codes}-{name}-seed{seed}"
                run = _train(base[name], name, seed=seed, images=images, folder=folder, fresh=fresh)
                _add(results, name, seed, run)
                content[str(num_codes)] = results["methods"]
                save_study(out / USE_FILE, {"sizes": content}, run=run)
        _draw(out / f"use-{num_codes}.png", results)
        _print(num_codes, results)
    print(f"Written: {out / USE_FILE}, {', '.join(f'use-{size}.png' for size in SIZES)}")


def configure(num_codes: int, *, epochs: int, num_test: int, source: str) -> dict[str, RunConfig]:
    """The run of each method; the control's is that of DDCL, with a quantizer of its own."""
    num_train = NUM_TRAIN if source == "cifar10" else 4 * BATCH
    data = DataConfig(
        source=source,  # pyright: ignore[reportArgumentType]
        num_train=num_train,
        num_test=num_test,
    )
    return {
        name: RunConfig(
            preset="use",
            data=data,
            net=NetConfig(hidden=32, num_codes=num_codes),
            method=MethodConfig(name="ddcl-literal" if name == CONTROL else name),
            optim=OptimConfig(steps=epochs * (num_train // BATCH), batch_size=BATCH),
            eval_at=EVAL_AT,
        )
        for name in METHODS
    }


def build_collapsed(config: RunConfig, images: ImageSet) -> VQVAE:
    """The run's model with `CollapsedVQ` in the place of its quantizer."""
    model = build_model(config, images)
    model.quantizer = CollapsedVQ(
        config.net.num_codes,
        config.net.dim,
        temperature=Temperature(
            gradient=2.0,
            prototypes=None,
            unit="critical",
            anneal_steps=config.optim.steps,
            warmup_share=0.0,
        ),
        revival=None,
        forward_value="soft",
        layout="channels_first",
        seed=config.seed,
    )
    return model


def _train(
    config: RunConfig, name: str, *, seed: int, images: ImagePair, folder: Path, fresh: bool
) -> Run:
    build = build_collapsed if name == CONTROL else build_model
    config = dataclasses.replace(config, seed=seed)
    return finish_run(config, images=images, folder=folder, fresh=fresh, build=build)


def _add(results: Results, name: str, seed: int, run: Run) -> None:
    label = "All codes equal (control)" if name == CONTROL else get_method(name).label
    entry = results["methods"].setdefault(name, {"seeds": [], "label": label, "how": ""})
    evals = [dict(each) for each in run.result.evals]
    result: SeedResult = {
        "seed": seed,
        "evals": evals,
        "final": evals[-1],
        "warnings": run.result.warnings,
    }
    entry["seeds"].append(result)


def _draw(path: Path, results: Results) -> None:
    figure = draw_use(results)
    tint(figure, LIGHT)
    with replacing(path) as beside:
        figure.savefig(beside, format="png", dpi=150)


def list_rows(results: Results) -> tuple[list[str], list[list[str]]]:
    """Header and cells: hard and soft use at some of the evaluations, and the end's figures."""
    first = next(iter(results["methods"].values()))["seeds"][0]
    shown = [place for place in SHOWN if place < len(first["evals"])]
    seen = [first["evals"][place]["images"] for place in shown]
    header = ["Method", *(f"hard use % at {int(images or 0):,}" for images in seen)]
    header += [f"soft use % at {int(images or 0):,}" for images in seen]
    header += ["hard perplexity", "distinct codes", "hard PSNR dB"]
    rows = []
    for method in results["methods"].values():
        cells = [method["label"]]
        for measure in ("use_hard", "use_soft"):
            cells += [_format(method, measure, place, scale=100, decimals=1) for place in shown]
        for measure, decimals in (("perplexity_hard", 1), ("distinct_codes", 0), ("psnr_hard", 2)):
            cells.append(_format(method, measure, -1, decimals=decimals))
        rows.append(cells)
    return header, rows


def _format(method: Any, measure: str, place: int, *, scale: float = 1, decimals: int) -> str:  # noqa: ANN401 - a typed dict
    values = [run["evals"][place].get(measure) for run in method["seeds"]]
    known = [scale * value for value in values if value is not None]
    if not known:
        return format_value(None, float("nan"), decimals=decimals)
    return format_value(find_mean(known), find_deviation(known), decimals=decimals)


def _print(num_codes: int, results: Results) -> None:
    header, rows = list_rows(results)
    print_rows(f"K = {num_codes}: share of codes in use on test images", header, rows)
    print("A code is in soft use when its mean weight is above 0.1 / K: equal codes all are.")
