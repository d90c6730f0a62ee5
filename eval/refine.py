"""What a search for better codes gives to trained models of any method: `python -m eval refine`.

The models of a comparison are taken as they are. Nothing of it is SoftVQ's own: a rival's codes are
searched for by the very same code, so the table shows who is ahead with it and without.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from torch import Tensor

from eval.ablation import describe_gain
from eval.results import MethodResult, load_results
from eval.runs import save_study
from eval.seeds import collect_final, find_deviation, find_mean
from eval.table import compare_paired, format_value
from eval.terminal import print_rows
from softvq.checks import check_count
from softvq.data import ImageSet, to_model_range
from softvq.measures import CodebookUse, Psnr, Ssim
from softvq.measures.frechet import FrechetDistance
from softvq.measures.perceptual import Lpips
from softvq.models import VQVAE, Refined
from train.config import from_json
from train.evaluate import split_rows
from train.images import ImagePair
from train.loop import CHECKPOINT
from train.perceptual import NETS, NotAvailableError, get_features, get_net
from train.trained import load_trained

FILE = "refine.json"
COLUMNS = (
    ("psnr", "PSNR dB", 1, 2),
    ("ssim", "SSIM", 1, 3),
    ("lpips_alex", "LPIPS Alex", 1, 3),
    ("lpips_vgg", "LPIPS VGG", 1, 3),
    ("fd_vgg16", "FD-VGG16", 1, 1),
    ("use", "Use %", 100, 1),
    ("perplexity", "Perplexity", 1, 0),
    ("changed", "Changed %", 100, 1),
    ("milliseconds", "ms a picture", 1, 1),
)
"""Measure, title, factor, decimals."""

Encode = Callable[[Tensor], Tensor]


def refine(
    folder: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    methods: str = "",
    sweeps: int = 1,
    num_test: int = 1000,
) -> None:
    """Search for better codes with the trained models of a comparison, and measure what it gives.

    Args:
        folder: Of a finished comparison; refine.json comes into it.
        methods: Comma-separated names of it; all with one index a vector if empty.
        sweeps: How often each position is tried.
        num_test: The first so many of the comparison's test images; FD-VGG16 wants more than 512.
    """
    check_count("sweeps", sweeps)
    results = load_results(folder)
    check_count("num_test", num_test)
    named = [name.strip() for name in methods.split(",") if name.strip()]
    names = list(dict.fromkeys(named or results["methods"]))
    if missing := [name for name in names if name not in results["methods"]]:
        raise ValueError(
            f"methods has {', '.join(missing)}; {folder} holds {', '.join(results['methods'])}."
        )
    config = from_json(results["config"])
    images = ImagePair(config).test
    shown = f"first {min(num_test, len(images)):,} of {images.name}"
    told = {"sweeps": sweeps, "images": shown}
    found: dict[str, MethodResult] = {}
    for name in names:
        for run in results["methods"][name]["seeds"]:
            path = folder / "runs" / f"{name}-seed{run['seed']}" / CHECKPOINT
            model = load_trained(path)
            if getattr(model.quantizer, "index_tail", ()):
                print(f"{name}: left out, as a vector has several indices")
                break
            refined = Refined(model, sweeps=sweeps)
            label = results["methods"][name]["label"]
            for key, encode, how in (
                (name, model.encode, label),
                (f"{name}+refined", refined.encode, f"{label}, refined"),
            ):
                entry = found.setdefault(key, {"seeds": [], "label": how, "how": ""})
                final = measure(model, encode, images, count=num_test)
                entry["seeds"].append(
                    {"seed": run["seed"], "evals": [], "final": final, "warnings": []}
                )
            print(f"{name} seed {run['seed']}: {_tell(found, name)}", flush=True)
            save_study(folder / FILE, {"methods": found, **told, "models": results["commit"]})
    if not found:
        return
    print_table(f"Hard codes, {sweeps} sweep(s), {shown}", found)
    print(f"Written: {folder / FILE}")


@torch.no_grad()
def measure(
    model: VQVAE, encode: Encode, images: ImageSet, *, count: int
) -> dict[str, float | None]:
    """Measure pictures that a model decodes from indices, however these were found.

    Args:
        model: In eval mode.
        encode: Gives the indices.
        images: The set.
        count: The first so many of it.

    Returns:
        The measures of `COLUMNS`; those of image nets are None where the nets cannot be had or the
        pictures are too few or small.
    """
    quantizer: Any = model.quantizer
    psnr, ssim, use = Psnr(), Ssim(), CodebookUse(quantizer.num_codes)
    seen: list[Tensor] = []
    made: list[Tensor] = []
    seconds, changed, tokens = 0.0, 0, 0
    for rows in split_rows(images, count=count):
        batch = to_model_range(images.batch(rows))
        begin = time.perf_counter()
        indices = encode(batch)
        seconds += time.perf_counter() - begin
        changed += int((indices != model.encode(batch)).sum())
        tokens += indices.numel()
        use.update(indices)
        pictures = model.decode(indices, size=images.size)
        psnr.update(batch, pictures)
        ssim.update(batch, pictures)
        seen.append(batch)
        made.append(pictures)
    counted = use.compute()
    return {
        "psnr": psnr.compute().mean_over_images,
        "ssim": ssim.compute().mean_over_images,
        "use": counted.use_hard,
        "perplexity": counted.perplexity_hard,
        "changed": changed / tokens,
        "milliseconds": 1000 * seconds / sum(map(len, seen)),
        **_perceive(seen, made),
    }


def _perceive(seen: list[Tensor], made: list[Tensor]) -> dict[str, float | None]:
    """LPIPS and FD-VGG16, None where the nets cannot be had or say nothing of so few pictures."""
    found: dict[str, float | None] = {}
    for net in NETS:
        try:
            lpips = Lpips(get_net(net), net=net)
            for pair in zip(seen, made, strict=True):
                lpips.update(*pair)
            found[f"lpips_{net}"] = lpips.compute().mean_over_images
        except (NotAvailableError, ValueError):
            found[f"lpips_{net}"] = None
    try:
        distance = FrechetDistance(get_features("FD-VGG16"))
        for pair in zip(seen, made, strict=True):
            for side, pictures in zip(("reference", "made"), pair, strict=True):
                distance.update(pictures, side=side)
        found["fd_vgg16"] = distance.compute().distance
    except (NotAvailableError, ValueError):
        found["fd_vgg16"] = None
    return found


def _tell(found: dict[str, MethodResult], name: str) -> str:
    before, after = (found[key]["seeds"][-1]["final"] for key in (name, f"{name}+refined"))
    return f"{before['psnr']:.2f} dB, refined {after['psnr']:.2f} dB"


def print_table(title: str, found: dict[str, MethodResult]) -> None:
    """Print means over seeds, and what SoftVQ is ahead by, with the search and without.

    Args:
        title: Above the table.
        found: By method, plain and refined.
    """
    rows = []
    for entry in found.values():
        cells = [entry["label"]]
        for name, _, factor, decimals in COLUMNS:
            values = [factor * value for value in collect_final(entry, name) or []]
            text = "-"
            if values:
                text = format_value(find_mean(values), find_deviation(values), decimals=decimals)
            cells.append(text)
        rows.append(cells)
    print_rows(title, ["Method", *(title for _, title, *_ in COLUMNS)], rows)
    for base, refined in (("softvq", False), ("softvq+refined", True)):
        group: Any = {
            name: entry
            for name, entry in found.items()
            if name.endswith("+refined") == refined or name == base
        }
        for each in compare_paired({"methods": group}, base=base, measure="psnr"):  # pyright: ignore[reportArgumentType]
            print(f"  {found[base]['label']} minus {each.label}: {describe_gain(each)} dB")
