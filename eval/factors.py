"""What each part of SoftVQ is worth, one change at a time: `python -m eval factors`."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from eval import variants
from eval.ablation import describe_gain
from eval.runs import Word, Words, finish_run, save_study
from eval.seeds import find_deviation, find_mean
from eval.table import CLAIM_RULE, compare_paired, format_value
from eval.terminal import print_rows
from eval.tune import hold_out
from eval.variants import make_variant
from softvq.checks import check_count, choose
from softvq.data import ImageSet
from softvq.models import VQVAE
from train.build import build_model, make_setting
from train.config import MethodConfig, RunConfig
from train.images import ImagePair
from train.loop import Run
from train.presets import make_preset
from train.quantizers import Setting
from train.values import override

FILE = "factors.json"
DEFAULT = "default"
MEASURES = ("psnr_hard", "use_hard", "perplexity_hard")
HEADER = ("Part", "Change", "Hard PSNR dB", "Use %", "Perplexity", "Against the default, dB")

Option = float | int | str | bool


@dataclass(frozen=True, kw_only=True)
class Factor:
    """One change to SoftVQ's defaults.

    Attributes:
        part: What it is a change of.
        options: Of the method, as a config has them.
        codebook_lr: The codes' rate.
        make: Makes the quantizer of a run, where no option does.
    """

    part: str
    options: Mapping[str, Option] = field(default_factory=dict)
    codebook_lr: str | None = None
    make: Callable[[Setting], nn.Module] | None = None


def _list_factors() -> dict[str, Factor]:
    def change(part: str, **options: Option) -> Factor:
        return Factor(part=part, options=options)

    def form(part: str, kind: type[variants.SoftVQ]) -> Factor:
        return Factor(part=part, make=partial(make_variant, kind))

    decoded, weights, rows = "what is decoded", "loss", "features"
    gradient, warmth, codes = "gradient", "temperature", "codes"
    return {
        DEFAULT: Factor(part=""),
        "soft mean": change(decoded, forward_value="soft"),
        "hard code, gradient of the soft mean at 2.5 nats": change(decoded, forward_value="hard"),
        "soft mean for half of the tokens": form(decoded, variants.MixedValues),
        "codes drawn by their weights": form(decoded, variants.Sampled),
        "blur to 0.5": change(decoded, noise_end=0.5),
        "blur from 2": change(decoded, noise_start=2.0),
        "blur of 0.05 throughout": change(decoded, noise_start=0.05),
        "blur and T reach their ends with the run": change(decoded, anneal_share=1.0),
        "straight-through to the rows": form(gradient, variants.StraightThrough),
        "half straight-through": form(gradient, variants.HalfStraight),
        "codes by the free energy alone": form(gradient, variants.CodesOnEnergy),
        "no warm-up": change("warm-up", warmup_share=0.0),
        "warm-up of 10 %": change("warm-up", warmup_share=0.1),
        "warm-up of 60 %": change("warm-up", warmup_share=0.6),
        "a second temperature, 2.5 nats, for use": change(warmth, gradient=2.5),
        "1 to 0.1 nat": change(warmth, prototypes_start=1.0),
        "0.1 nat throughout": change(warmth, prototypes_start=0.1),
        "0.3 to 0.01 nat": change(warmth, prototypes_end=0.01),
        "distortion through the weights": change(weights, assignment_grad="full"),
        "spread twice": form(weights, variants.SpreadTwice),
        "weight / 10": change(weights, weight=0.004),
        "weight x 10": change(weights, weight=0.4),
        "no pull of the rows": change(weights, beta=0.0),
        "pull of the rows x 5": change(weights, beta=0.4),
        "no usage entropy": change(weights, use_entropy=0.0),
        "usage entropy x 4": change(weights, use_entropy=0.008),
        "orthogonality 0.01": change(weights, orthogonality=0.01),
        "absolute, 0.25": change(weights, loss_unit="absolute", weight=0.25),
        "no revival": change(codes, revive=False),
        "revival under 0.05 of the mean hits": change(codes, threshold=0.05),
        "revival under 0.5": change(codes, threshold=0.5),
        "revival until half of the run": change(codes, until=0.5),
        "start on random rows": form(codes, variants.RandomStart),
        "codes at the net's rate": Factor(part=codes, codebook_lr="1x"),
        "codes at 30x": Factor(part=codes, codebook_lr="30x"),
        "running averages too": form(codes, variants.AveragedToo),
        "vectors and codes of length one": Factor(part=rows, make=variants.make_cosine),
        "vectors of deviation one": Factor(part=rows, make=variants.make_scaled),
        "codes in 8 dimensions": Factor(part=rows, make=partial(variants.make_projected, dim=8)),
    }


FACTORS = _list_factors()


def factors(
    preset: Word = "quick",
    overrides: Words = (),
    /,
    *,
    parts: str = "",
    out: Path | None = None,
    seeds: int = 2,
    fresh: bool = False,
) -> None:
    """Change SoftVQ's defaults one at a time, and measure on held-out training images.

    Args:
        preset: quick, reference, public, full or smoke.
        overrides: Changes of the run such as net.num_codes=8192 net.dim=8.
        parts: Comma-separated, such as loss,codes; all if empty.
        out: Folder for factors.json and runs; runs/factors-PRESET by default.
        seeds: Runs of each change, paired.
        fresh: Train again what the folder holds already.
    """
    check_count("seeds", seeds)
    base = hold_out(override(make_preset(preset), list(overrides)))
    if base.method != MethodConfig():
        raise ValueError(
            "method.* is what this experiment changes: give changes of net, optim and data alone, "
            "such as net.num_codes=8192."
        )
    chosen = choose_factors(parts)
    folder = out or Path("runs") / f"factors-{preset}"
    images = ImagePair(base)
    found: dict[str, Any] = {}
    for seed in range(seeds):
        for name, factor in chosen.items():
            place = folder / "runs" / _spell(name, seed)
            run = train_changed(base, factor, seed=seed, images=images, folder=place, fresh=fresh)
            entry = found.setdefault(name, {"label": name, "how": factor.part, "seeds": []})
            final = {measure: run.result.evals[-1][measure] for measure in MEASURES}
            entry["seeds"].append({"seed": seed, "final": final})
            save_study(folder / FILE, {"factors": found}, run=run)
    title = f"SoftVQ, {base.optim.steps} steps, {images.test.name}"
    print_rows(title, HEADER, list_rows(found))
    print(f"95 % interval of the difference, paired by seed. {CLAIM_RULE}")
    print(f"Written: {folder / FILE}")


def choose_factors(parts: str) -> dict[str, Factor]:
    """The default, and the changes of the parts that are named, or of all.

    Raises:
        ValueError: For a part that there is not; lists those that there are.

    Example:
        >>> list(choose_factors("warm-up"))
        ['default', 'no warm-up', 'warm-up of 10 %', 'warm-up of 60 %']
    """
    known = list(dict.fromkeys(factor.part for factor in FACTORS.values() if factor.part))
    named = [choose("parts", part.strip(), known) for part in parts.split(",") if part.strip()]
    wanted = named or known
    return {
        name: factor for name, factor in FACTORS.items() if not factor.part or factor.part in wanted
    }


def train_changed(
    base: RunConfig, factor: Factor, *, seed: int, images: ImagePair, folder: Path, fresh: bool
) -> Run:
    """Train SoftVQ with one change, or take what the folder holds."""
    method = MethodConfig(options=dict(factor.options), codebook_lr=factor.codebook_lr)
    config = dataclasses.replace(base, method=method, seed=seed)

    def build(config: RunConfig, images: ImageSet) -> VQVAE:
        model = build_model(config, images)
        if factor.make is not None:
            model.quantizer = factor.make(make_setting(config, size=images.size))
        return model

    return finish_run(config, images=images, folder=folder, fresh=fresh, build=build)


def list_rows(found: dict[str, Any]) -> list[list[str]]:
    """The table's cells, one change a row, each held against the default.

    Args:
        found: By name of the change, the default among them: label, how and seeds.

    Returns:
        Rows as wide as `HEADER`.
    """
    rows = []
    for name, entry in found.items():
        cells = [entry["how"], entry["label"]]
        for measure, scale, decimals in zip(MEASURES, (1, 100, 1), (2, 1, 1), strict=True):
            values = [scale * each["final"][measure] for each in entry["seeds"]]
            cells.append(format_value(find_mean(values), find_deviation(values), decimals=decimals))
        pair: Any = {"methods": {each: found[each] for each in (DEFAULT, name)}}
        difference = compare_paired(pair, base=name)
        rows.append([*cells, describe_gain(difference[0]) if difference else ""])
    return rows


def _spell(name: str, seed: int) -> str:
    words = "".join(each if each.isalnum() or each == "." else "-" for each in name)
    return f"{words}-seed{seed}"
