"""Use of a codebook from the first image on, hard and soft, as `python -m eval use` follows it."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from eval.paper.sizes import Sizes
from eval.paper.store import Store, make_table
from eval.runs import finish_run
from eval.style import COLOURS
from eval.use import BATCH, CONTROL, METHODS, build_collapsed, configure
from train.build import build_model
from train.config import RunConfig
from train.images import ImagePair
from train.methods import get_method

CODES = 64
MEASURES = ("use_hard", "use_soft", "perplexity_hard", "psnr_hard")


def run(sizes: Sizes, folder: Path) -> None:
    """All methods; writes ``codebook.json``, ``.md`` and ``.png``."""
    store = Store(folder, "codebook", sizes=sizes.take("codebook_steps", "codebook_test"))
    rows = []
    for seed in range(sizes.seeds):
        images: list[ImagePair] = []
        for name in METHODS:
            config = make_config(name, sizes, seed=seed)

            def make(
                config: RunConfig = config, name: str = name, images: list[ImagePair] = images
            ) -> dict:
                images[:] = images or [
                    ImagePair(config)
                ]  # read once, and not if all rows are there
                return train(config, name, images=images[0], folder=folder / "runs")

            rows.append(store.row({"method": find_label(name), "seed": seed}, make))
    shown = [dict(each, **row) for row in rows for each in row["curve"]]
    store.write_table(
        [
            make_table(
                [row for row in shown if row["images"] == images_seen],
                title=f"CIFAR-10, K = {CODES}, after {images_seen:,} training images: share of the "
                f"codes in use on {sizes.codebook_test:,} unseen ones",
                by=["method"],
                measures={
                    "use_hard": ".2f",
                    "use_soft": ".2f",
                    "perplexity_hard": ".1f",
                    "psnr_hard": ".2f",
                },
            )
            for images_seen in _first_and_last(shown)
        ]
    )
    store.write_figure(draw(shown))


def make_config(name: str, sizes: Sizes, *, seed: int) -> RunConfig:
    """The run of `eval.use`, as long as the sizes say.

    Example:
        >>> make_config("softvq", Sizes(), seed=2).seed
        2
    """
    made = configure(CODES, epochs=1, num_test=sizes.codebook_test, source="cifar10")[name]
    steps = sizes.codebook_steps
    return replace(
        made,
        seed=seed,
        data=replace(made.data, num_train=steps * BATCH),
        optim=replace(made.optim, steps=steps),
        eval_at=(0.0, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0),
    )


def find_label(name: str) -> str:
    """What tables call a method.

    Example:
        >>> find_label("collapsed")
        'all codes equal (control)'
    """
    return "all codes equal (control)" if name == CONTROL else get_method(name).label


def train(config: RunConfig, name: str, *, images: ImagePair, folder: Path) -> dict[str, Any]:
    """Train one, and keep its evaluations."""
    place = folder / f"codebook-{name}-seed{config.seed}"
    build = build_collapsed if name == CONTROL else build_model
    run = finish_run(config, images=images, folder=place, build=build)
    keys = ("images", *MEASURES)
    return {"curve": [{key: each.get(key) for key in keys} for each in map(dict, run.result.evals)]}


def _first_and_last(rows: list[dict]) -> list[int]:
    """The evaluation after the first sixteenth of the run, and the one at its end."""
    seen = sorted({row["images"] for row in rows})
    return [seen[min(1, len(seen) - 1)], seen[-1]]


def draw(rows: list[dict]) -> Figure:
    """Hard and soft use over training images, means over seeds."""
    figure = Figure((9, 3.8), layout="constrained")
    plots = figure.subplots(1, 2, sharey=True)
    for axes, name in zip(plots, ("use_hard", "use_soft"), strict=True):
        for place, method in enumerate(dict.fromkeys(row["method"] for row in rows)):
            seen = sorted({row["images"] for row in rows})
            means = []
            for images in seen:
                held = [r[name] for r in rows if (r["method"], r["images"]) == (method, images)]
                known = [value for value in held if value is not None]  # hard VQ has no soft use
                means.append(sum(known) / len(known) if known else math.nan)
            axes.plot(seen, means, marker="o", label=method, color=COLOURS[place])
        axes.set_xlabel("training images")
        axes.set_title(name.replace("use_", "") + " use of the codebook", fontsize=10)
    figure.legend(*plots[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure
