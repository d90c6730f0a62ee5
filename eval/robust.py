"""Defaults without tuning, over a wide range of problems: `python -m eval robust`.

A Latin hypercube over the number of codes, their size, the batch and the latents' scale. Where
SoftVQ fails is said: no number, codes out of use, or behind our EMA quantizer.
"""

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eval.runs import finish_run, save_study
from eval.terminal import print_rows
from softvq.checks import check_count
from softvq.data import ImageSet, to_model_range
from softvq.measures import CodebookUse
from softvq.models import VQVAE
from softvq.nn.layout import to_rows
from train.build import build_model
from train.config import DataConfig, MethodConfig, NetConfig, OptimConfig, RunConfig
from train.images import ImagePair
from train.loop import Run

RANGES = ((64, 16384), (4, 256), (16, 1024), (0.01, 100.0))
METHODS = ("softvq", "ema")
LEAST_USE, MOST_BEHIND = 0.9, 0.2
TOKENS_A_CODE = 10
BATCH = 250
ROBUST_FILE = "robust.json"
HEADER = ("K", "D", "batch", "scale", "SoftVQ dB", "use %", "EMA dB", "use %", "SoftVQ")


@dataclass(frozen=True, kw_only=True)
class Point:
    """A problem.

    Attributes:
        num_codes: K.
        dim: D.
        batch_size: Images a step, of 16 tokens each.
        scale: Deviation of a latent feature at the start, as the quantizer sees it.
    """

    num_codes: int
    dim: int
    batch_size: int
    scale: float


def make_points(num: int = 24, *, seed: int = 0) -> list[Point]:
    """A Latin hypercube, even in the logarithm of each range: each n-th of it holds one point.

    Example:
        >>> points = make_points(4)
        >>> sorted(math.floor(math.log(p.num_codes / 64, 4)) for p in points)
        [0, 1, 2, 3]
    """
    generator = torch.Generator().manual_seed(seed)
    columns = []
    for low, high in RANGES:
        cells = torch.randperm(num, generator=generator).double()
        place = (cells + torch.rand(num, generator=generator, dtype=torch.float64)) / num
        columns.append((low * (high / low) ** place).tolist())
    return [
        Point(num_codes=int(codes), dim=int(dim), batch_size=int(batch), scale=scale)
        for codes, dim, batch, scale in zip(*columns, strict=True)
    ]


def robust(
    *,
    out: Path = Path("runs/robust"),
    points: int = 24,
    only: str = "",
    steps: int = 150,
    source: str = "cifar10",
    fresh: bool = False,
) -> None:
    """Train SoftVQ, as it comes, and our EMA quantizer on problems of every size.

    Args:
        out: Folder for robust.json and runs.
        points: How many problems.
        only: Comma-separated numbers of those to do, from 0; all if empty.
        steps: Of each run.
        source: cifar10 or textures.
        fresh: Train again what the folder holds already.
    """
    problems = make_points(check_count("points", points))
    chosen = [int(word) for word in only.split(",") if word.strip()] or list(range(points))
    if not set(chosen) <= set(range(points)):
        raise ValueError(f"only must name points from 0 to {points - 1}; got {only!r}.")
    found: dict[int, dict[str, Any]] = {}
    images: ImagePair | None = None
    for number in chosen:
        point, runs = problems[number], {}
        for name in METHODS:
            config = configure(point, name, steps=steps, source=source)
            images = images or ImagePair(config)
            folder = out / "runs" / f"{number:02d}-{name}"
            build = partial(build_scaled, scale=point.scale)
            options: dict[str, Any] = {"images": images, "fresh": fresh, "build": build}
            runs[name] = finish_run(config, folder=folder, **options)
        results = {name: measure_run(run) for name, run in runs.items()}
        verdict = judge(results["softvq"], results["ema"])
        found[number] = {**dataclasses.asdict(point), **results, "verdict": verdict}
        save_study(out / ROBUST_FILE, {"points": found}, run=runs["softvq"])
    _print(found)
    print(f"Written: {out / ROBUST_FILE}")


def configure(point: Point, method: str, *, steps: int, source: str) -> RunConfig:
    """A small net on 4 x 4 codes an image, measured on 1,000 test images at the end."""
    data = DataConfig(source=source, num_test=1000)  # pyright: ignore[reportArgumentType]
    if source == "textures":
        data = dataclasses.replace(data, num_train=2048, num_test=200)
    return RunConfig(
        preset="robust",
        data=data,
        net=NetConfig(
            **{"hidden": 32, "residual_hidden": 16, "blocks": 1, "downsampling": 8},
            dim=point.dim,
            num_codes=point.num_codes,
        ),
        method=MethodConfig(name=method),
        optim=OptimConfig(steps=steps, batch_size=point.batch_size),
        eval_at=(1.0,),
    )


class Scale(nn.Module):
    """A fixed factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """``factor`` times x."""
        return self.factor * x


@torch.no_grad()
def build_scaled(config: RunConfig, images: ImageSet, *, scale: float) -> VQVAE:
    """The run's model, its latents brought to a deviation of ``scale`` a feature, and back after.

    The factor is fixed, so that the net is the very same for every scale; what differs is what the
    quantizer sees.
    """
    model = build_model(config, images)
    first = to_model_range(images.batch(torch.arange(min(64, len(images)))))
    rows = to_rows(model.latents(first), layout="channels_first")
    factor = scale / rows.var(0, correction=0).mean().sqrt().item()
    model.encoder = nn.Sequential(model.encoder, Scale(factor))
    model.decoder = nn.Sequential(Scale(1 / factor), model.decoder)
    return model


@torch.no_grad()
def find_use(model: VQVAE, images: ImageSet) -> float:
    """Share of codes that some token takes, over ten tokens a code or all that there are."""
    quantizer: Any = model.eval().quantizer
    use = CodebookUse(quantizer.num_codes)
    rows = 0
    for begin in range(0, len(images), BATCH):
        batch = images.batch(torch.arange(begin, min(begin + BATCH, len(images))))
        indices = model.encode(to_model_range(batch))
        use.update(indices)
        rows += indices.numel()
        if rows >= TOKENS_A_CODE * quantizer.num_codes:
            break
    return use.compute().use_hard


def measure_run(run: Run) -> dict[str, Any]:
    """What a run ended at: hard PSNR on test images, use on training images, warnings."""
    final = run.result.evals[-1]
    return {
        "psnr_hard": final["psnr_hard"],
        "use": find_use(run.result.model, run.images.train),
        "seconds": final["seconds"],
        "warnings": run.result.warnings,
    }


def judge(ours: dict[str, Any], ema: dict[str, Any]) -> str:
    """What is wrong with SoftVQ at a point, in words; "ok" where nothing is.

    Example:
        >>> judge({"psnr_hard": 20.0, "use": 0.8}, {"psnr_hard": 20.1, "use": 1.0})
        'use under 90 %'
    """
    if not math.isfinite(ours["psnr_hard"]):
        return "no number"
    faults = []
    if ours["use"] < LEAST_USE:
        faults.append(f"use under {100 * LEAST_USE:.0f} %")
    if ours["psnr_hard"] < ema["psnr_hard"] - MOST_BEHIND:
        faults.append(f"{ema['psnr_hard'] - ours['psnr_hard']:.2f} dB behind")
    return ", ".join(faults) or "ok"


def _print(found: dict[int, dict[str, Any]]) -> None:
    rows = []
    for point in found.values():
        cells = [str(point[key]) for key in ("num_codes", "dim", "batch_size")]
        cells.append(f"{point['scale']:.3g}")
        for name in METHODS:
            cells += [f"{point[name]['psnr_hard']:.2f}", f"{100 * point[name]['use']:.1f}"]
        rows.append([*cells, point["verdict"]])
    print_rows("Defaults, untuned: hard PSNR on test images, use on training images", HEADER, rows)
    failed = sum(point["verdict"] != "ok" for point in found.values())
    print(f"{failed} of {len(found)} points fail.")
