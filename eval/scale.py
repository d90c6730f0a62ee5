"""Which quantizers bear latents of any scale: `python -m eval scale`.

A commitment loss is a squared error of latents beside one of pixels, so what it weighs hangs on how
large latents happen to be: the same net with its latents multiplied, and divided again behind the
quantizer, trains or collapses.
"""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import torch

from eval.robust import Point, build_scaled, configure, measure_run
from eval.runs import finish_run, save_study
from eval.seeds import find_mean
from eval.terminal import print_rows
from softvq.checks import check_count, check_number
from softvq.data import ImageSet, to_model_range
from softvq.models import VQVAE
from softvq.nn.layout import to_rows
from train.images import ImagePair

FILE = "scale.json"
METHODS = "softvq,ema,lucid-ema,lucid-diveq"
SCALES = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
SHOWN = 512


def scale(
    *,
    methods: str = METHODS,
    scales: tuple[float, ...] = SCALES,
    num_codes: int = 512,
    dim: int = 64,
    steps: int = 150,
    seeds: int = 1,
    source: str = "cifar10",
    out: Path = Path("runs/scale"),
    fresh: bool = False,
) -> None:
    """Train methods, untuned, on latents of several scales, and measure their hard codes.

    Args:
        methods: Comma-separated names as in --methods of compare.
        scales: Deviations of a latent feature at the start, as the quantizer sees it.
        num_codes: K.
        dim: D.
        steps: Of each run, of 64 images.
        seeds: Runs of each method at each scale.
        source: cifar10 or textures.
        out: Folder for scale.json and runs.
        fresh: Train again what the folder holds already.
    """
    check_count("seeds", seeds)
    for each in scales:
        check_number("scales", each, above=0)
    names = [name.strip() for name in methods.split(",") if name.strip()]
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    images: ImagePair | None = None
    for number in scales:
        point = Point(num_codes=num_codes, dim=dim, batch_size=64, scale=number)
        key = f"{number:g}"
        found[key] = {}
        for name in names:
            found[key][name] = []
            for seed in range(seeds):
                config = configure(point, name, steps=steps, source=source)
                config = dataclasses.replace(config, seed=seed)
                images = images or ImagePair(config)
                run = finish_run(
                    config,
                    images=images,
                    folder=out / "runs" / f"{key}-{name}-seed{seed}",
                    fresh=fresh,
                    build=partial(build_scaled, scale=number),
                )
                deviation = find_latent_deviation(run.result.model, images.test)
                found[key][name].append({**measure_run(run), "deviation": deviation})
                save_study(out / FILE, {"scales": found}, run=run)
    _print(found, names)
    print(f"Written: {out / FILE}")


@torch.no_grad()
def find_latent_deviation(model: VQVAE, images: ImageSet) -> float:
    """Root mean variance of a latent feature over images, as the quantizer sees it."""
    batch = to_model_range(images.batch(torch.arange(min(SHOWN, len(images)))))
    rows = to_rows(model.eval().latents(batch), layout="channels_first")
    return rows.var(0, correction=0).mean().sqrt().item()


def _print(found: dict[str, dict[str, list[dict[str, Any]]]], names: list[str]) -> None:
    rows = []
    for key, methods in found.items():
        cells = [key]
        for name in names:
            psnr, use, deviation = (
                find_mean([each[what] for each in methods[name]])
                for what in ("psnr_hard", "use", "deviation")
            )
            cells.append(f"{psnr:.2f} dB, {100 * use:.0f} %, {deviation:.2g}")
        rows.append(cells)
    title = "Hard PSNR on test images, codes in use, deviation of a latent feature at the end"
    print_rows(title, ("at the start", *names), rows)
