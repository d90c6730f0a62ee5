"""`python -m eval bench model`: a whole training step of the bundled VQ-VAE, by quantizer.

The same net, pictures and optimizer; the quantizers take turns in one process.
"""

import json
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from eval.bench import check_backends
from softvq import attach
from softvq.files import replacing
from softvq.nn import Quantizer
from train.build import build_for
from train.methods import get_method
from train.presets import make_preset
from train.provenance import find_commit, find_versions, name_device
from train.values import override

BASE = "ema"  # our own hard quantizer
DEFAULT_NAMES = ("softvq", BASE, "lucid-ema")
BATCH, SIDE = 128, 32


@dataclass(frozen=True, kw_only=True)
class ModelTiming:
    """Seconds of a training step.

    Attributes:
        name: Method.
        seconds: Median of the steps.
        spread: Slowest over fastest of them.
        ratio: Median over that of our `HardVQ` with averages.
    """

    name: str
    seconds: float
    spread: float
    ratio: float


class Trainer:
    """A VQ-VAE of the reference preset with one quantizer, past its warm-up.

    Args:
        name: Method.
    """

    def __init__(self, name: str) -> None:
        words = [f"method.name={name}", f"optim.batch_size={BATCH}"]
        if name.startswith("softvq"):
            words.append("method.options.warmup_share=0.0")
        config = override(make_preset("reference"), words)
        self.model = build_for(config, channels=3, size=(SIDE, SIDE)).train()
        method = get_method(name)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=method.lr)
        if any(isinstance(each, Quantizer) for each in self.model.modules()):
            attach(self.model, self.optimizer, codebook_lr=method.codebook_lr)

    def step(self, images: Tensor) -> float:
        """Seconds of one training step on images (B, 3, 32, 32) in [-1, 1].

        Example:
            >>> Trainer("ema").step(torch.zeros(2, 3, SIDE, SIDE)) > 0
            True
        """
        begin = time.perf_counter()
        out = self.model(images)
        self.optimizer.zero_grad()
        (mse_loss(out.reconstruction, images) + out.quantizer.loss).backward()
        self.optimizer.step()
        return time.perf_counter() - begin


def run(*, names: list[str], repeats: int, folder: Path, batch: int = BATCH) -> list[ModelTiming]:
    """Check, time, print and write ``model.json``.

    Args:
        names: Methods; empty means SoftVQ, our `HardVQ` and vector-quantize-pytorch's, both EMA.
        repeats: Steps of each that count; two more warm up.
        folder: For the file.
        batch: Pictures a step.

    Returns:
        The timings.

    Raises:
        ValueError: For an unknown name.
        RuntimeError: If a back end is wrong.
    """
    check_backends()
    trainers = {name: Trainer(name) for name in names or DEFAULT_NAMES}
    taken: dict[str, list[float]] = {name: [] for name in trainers}
    generator = torch.Generator().manual_seed(0)
    for repeat in range(repeats + 2):
        coarse = 2 * torch.rand(batch, 3, SIDE // 4, SIDE // 4, generator=generator) - 1
        images = nn.functional.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear")
        for name, trainer in trainers.items():
            seconds = trainer.step(images)
            if repeat >= 2:
                taken[name].append(seconds)
    medians = {name: statistics.median(each) for name, each in taken.items()}
    found = [
        ModelTiming(
            name=name,
            seconds=medians[name],
            spread=max(each) / min(each),
            ratio=medians[name] / medians.get(BASE, float("nan")),
        )
        for name, each in taken.items()
    ]
    print_timings(found, batch=batch)
    content = {
        "timings": [asdict(each) for each in found],
        "batch": batch,
        "threads": torch.get_num_threads(),
        "device": name_device(torch.device("cpu")),
        "commit": find_commit(),
        "versions": find_versions(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "model.json") as part:
        part.write_text(json.dumps(content, indent=2), encoding="utf-8")
    return found


def print_timings(timings: list[ModelTiming], *, batch: int) -> None:
    """A table on the terminal."""
    title = f"One training step of the VQ-VAE, {batch} pictures, {torch.get_num_threads()} threads"
    table = Table(title=title)
    for name in ("Method", "ms", "slowest / fastest", f"over {BASE}"):
        table.add_column(name, justify="left" if name == "Method" else "right")
    for each in timings:
        cells = f"{1e3 * each.seconds:.1f}", f"{each.spread:.2f}", f"{each.ratio:.2f}x"
        table.add_row(each.name, *cells)
    Console(width=None if Console().is_terminal else 110).print(table)
