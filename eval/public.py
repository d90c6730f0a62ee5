"""The public recipe, whose figure is known, to see that the net and the loop are what others have.

`python -m eval public`. The recipe is that of the VQ-VAE example of DeepMind's Sonnet: hidden 128,
batches of 32, 10,000 steps at 3e-4, EMA codes; published is the error over the variance of the
pixels on training batches, 0.056.
"""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from eval.runs import Words, finish_run, save_study
from eval.seeds import find_deviation, find_mean
from eval.table import format_value
from eval.terminal import print_rows
from softvq.checks import check_count
from softvq.data import ImageSet, to_model_range
from softvq.data.images import FirstImages
from train.config import MethodConfig, RunConfig
from train.images import ImagePair
from train.loop import Run
from train.presets import make_preset
from train.values import override

MEASURED = 10_000
FILE = "public.json"
VARIANCE = 0.2531
"""Of CIFAR-10's training pixels in [-1, 1]. The recipe divides the squared error by it, which with
Adam is the same as multiplying the quantizer's loss."""

METHODS = {
    "ema": {"decay": 0.99, "commitment": 0.25 * VARIANCE, "threshold": 0.2},
    "softvq": {},
}
"""Options: EMA as the recipe has it, SoftVQ with its defaults."""
HEADER = ("Method", "Error / variance, hard codes", "Hard PSNR dB", "Use %", "Perplexity")


def public(
    overrides: Words = (),
    /,
    *,
    out: Path = Path("runs/public"),
    seeds: int = 1,
    fresh: bool = False,
) -> None:
    """Train our EMA and SoftVQ by the public recipe, and measure hard codes on training pictures.

    Args:
        overrides: Changes such as optim.steps=100; the method's are fixed.
        out: Folder for public.json and runs.
        seeds: Runs of each method.
        fresh: Train again what the folder holds already.
    """
    check_count("seeds", seeds)
    base = override(make_preset("public"), list(overrides))
    images = ImagePair(base)
    images.test = FirstImages(images.train, count=min(MEASURED, len(images.train)))
    variance = find_variance(images.train)
    found: dict[str, list[dict[str, Any]]] = {}
    for name, options in METHODS.items():
        for seed in range(seeds):
            run = finish_run(
                make_config(base, name, options, seed=seed),
                images=images,
                folder=out / "runs" / f"{name}-seed{seed}",
                fresh=fresh,
            )
            found.setdefault(name, []).append(describe(run, variance=variance))
            save_study(out / FILE, {"variance": variance, "methods": found}, run=run)
    title = f"{images.test.name}, {base.optim.steps} steps; 0.056 is published for EMA"
    print_rows(title, HEADER, [list_cells(name, runs) for name, runs in found.items()])
    print(f"Written: {out / FILE}")


def make_config(base: RunConfig, name: str, options: dict[str, float], *, seed: int) -> RunConfig:
    """The run of a method: the recipe's rate for all."""
    method = MethodConfig(name=name, lr=base.method.lr, options=dict(options))
    return dataclasses.replace(base, method=method, seed=seed)


def find_variance(images: ImageSet) -> float:
    """Variance of the pixels in [-1, 1], over all channels, as the recipe takes it."""
    indices = torch.arange(len(images))
    pixels = [to_model_range(images.batch(some)).double() for some in indices.split(1000)]
    mean = sum(each.sum() for each in pixels) / sum(each.numel() for each in pixels)
    return float(
        sum((each - mean).square().sum() for each in pixels) / sum(each.numel() for each in pixels)
    )


def describe(run: Run, *, variance: float) -> dict[str, Any]:
    """Measures at the end, with the error as a share of the pixels' variance."""
    final = run.result.evals[-1]
    error = 4 * 10 ** (-final["psnr_hard_of_mean"] / 10)  # the range is 2, its square 4
    names = ("psnr_hard", "use_hard", "perplexity_hard", "seconds")
    return {"error_of_variance": error / variance, **{name: final[name] for name in names}}


def list_cells(name: str, runs: list[dict[str, Any]]) -> list[str]:
    """One line of the table: means and deviations over seeds."""
    cells = [name]
    for measure, scale, decimals in (
        ("error_of_variance", 1, 4),
        ("psnr_hard", 1, 2),
        ("use_hard", 100, 1),
        ("perplexity_hard", 1, 1),
    ):
        values = [scale * run[measure] for run in runs]
        cells.append(format_value(find_mean(values), find_deviation(values), decimals=decimals))
    return cells
