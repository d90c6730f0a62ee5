"""`python -m eval bench readout`: DDCLAttention and self-attention over ever longer sequences.

Both make one vector of N tokens: a layer that leaves tokens, and their mean. Forward and backward,
in turn, in one process. Times are those of the processor, not of the clock, so that what else the
machine does shifts the ratio less. N tokens, D features.
"""

import json
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from einops import rearrange
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from eval.bench import check_backends
from eval.memory import read_memory
from softvq import DDCLAttention
from softvq.files import replacing
from train.provenance import find_commit, find_versions, name_device

DIM, HEADS, PROTOTYPES = 384, 4, 16
LENGTHS = tuple(2**power for power in range(9, 17))
PATIENCE = 3.0  # seconds of a step beyond which the next length, at four times that, is not run


class SelfAttention(nn.Module):
    """LayerNorm(z + W_o attention(z)) with as many heads, fused where torch can.

    Example:
        >>> SelfAttention()(torch.zeros(1, 3, DIM)).shape
        torch.Size([1, 3, 384])
    """

    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.Linear(DIM, 3 * DIM)
        self.output = nn.Linear(DIM, DIM)
        self.norm = nn.LayerNorm(DIM)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, N, D) to tokens."""
        query, key, value = rearrange(
            self.inputs(tokens), "b n (three h d) -> three b h n d", three=3, h=HEADS
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        return self.norm(tokens + self.output(rearrange(mixed, "b h n d -> b n (h d)")))


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Processor seconds of a step, and growth of the peak memory over it in MiB."""

    name: str
    length: int
    seconds: float
    growth_mib: float


def make_steps() -> dict[str, Callable[[Tensor], Tensor]]:
    """One step a contender: tokens in, loss out.

    Example:
        >>> sorted(make_steps())
        ['ddcl', 'self-attention']
    """
    torch.manual_seed(0)
    layer, other = DDCLAttention(DIM, PROTOTYPES, heads=HEADS), SelfAttention()
    layer(make_tokens(512))

    def read(tokens: Tensor) -> Tensor:
        out = layer(tokens)
        return out.tokens.mean(1).square().sum() + out.loss

    return {"ddcl": read, "self-attention": lambda z: other(z).mean(1).square().sum()}


def make_tokens(length: int) -> Tensor:
    """One sequence of tokens of unit deviation.

    Example:
        >>> make_tokens(5).shape
        torch.Size([1, 5, 384])
    """
    generator = torch.Generator().manual_seed(length)
    return torch.randn(1, length, DIM, generator=generator)


def time_step(step: Callable[[Tensor], Tensor], tokens: Tensor) -> float:
    """Processor seconds of one forward and backward pass.

    Example:
        >>> time_step(make_steps()["ddcl"], make_tokens(64)) > 0
        True
    """
    leaf = tokens.clone().requires_grad_()
    begin = time.process_time()
    step(leaf).backward()
    return time.process_time() - begin


def run(*, repeats: int, folder: Path, lengths: tuple[int, ...] = LENGTHS) -> list[Timing]:
    """Check, time, print, and write ``readout.json`` and ``readout.png``.

    Args:
        repeats: Steps of each that count; one more warms up.
        folder: For the files.
        lengths: Sequence lengths, ascending.

    Returns:
        The timings; self-attention stops where it would take too long.

    Raises:
        RuntimeError: If a back end is wrong.
    """
    check_backends()
    steps = make_steps()
    found: list[Timing] = []
    for length in lengths:
        tokens = make_tokens(length)
        taken: dict[str, list[float]] = {name: [] for name in steps}
        for repeat in range(repeats + 1):
            for name, step in steps.items():
                seconds = time_step(step, tokens)
                if repeat:
                    taken[name].append(seconds)
        for name, seconds in taken.items():
            median = statistics.median(seconds)
            growth = _in_new_process(name, length)
            found.append(Timing(name=name, length=length, seconds=median, growth_mib=growth))
            if name == "self-attention" and median > PATIENCE:
                del steps[name]
    print_timings(found)
    _write(found, folder)
    return found


def find_exponent(timings: list[Timing], name: str) -> float:
    """The power of N with which time grows, by least squares over the longer half of the lengths.

    Example:
        >>> made = [Timing(name="a", length=n, seconds=n * n, growth_mib=0) for n in (2, 4, 8, 16)]
        >>> round(find_exponent(made, "a"), 3)
        2.0
    """
    mine = [each for each in timings if each.name == name]
    points = [(math.log(t.length), math.log(t.seconds)) for t in mine[len(mine) // 2 - 1 :]]
    x, y = (statistics.fmean(column) for column in zip(*points, strict=True))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def print_timings(timings: list[Timing]) -> None:
    """A table on the terminal, ratios beside it."""
    console = Console(width=None if Console().is_terminal else 110)
    table = Table(title=f"One vector of N tokens, D={DIM}, forward and backward, processor time")
    table.add_column("N", justify="right")
    for head in ("DDCL ms", "attention ms", "ratio", "DDCL MiB", "attention MiB"):
        table.add_column(head, justify="right")
    by = {(each.name, each.length): each for each in timings}
    for length in sorted({each.length for each in timings}):
        ours, theirs = by["ddcl", length], by.get(("self-attention", length))
        cells = [f"{length:,}", f"{1e3 * ours.seconds:.1f}"]
        cells += [f"{1e3 * theirs.seconds:.1f}" if theirs else "too long"]
        cells += [f"{ours.seconds / theirs.seconds:.2f}" if theirs else ""]
        cells += [f"{ours.growth_mib:.0f}", f"{theirs.growth_mib:.0f}" if theirs else ""]
        table.add_row(*cells)
    console.print(table)
    for name in dict.fromkeys(each.name for each in timings):
        if sum(each.name == name for each in timings) > 2:
            print(f"{name}: time grows as N^{find_exponent(timings, name):.2f}")


def draw(timings: list[Timing]) -> Figure:
    """Time and memory over N, both axes logarithmic."""
    figure = Figure((9, 4), layout="constrained")
    for axes, field, label in zip(
        figure.subplots(1, 2),
        ("seconds", "growth_mib"),
        ("seconds", "growth, MiB, at least 1"),
        strict=True,
    ):
        for name, marker in (("ddcl", "o"), ("self-attention", "s")):
            least = 1.0 if field == "growth_mib" else 0.0  # a logarithm has no place for none
            points = [(t.length, max(getattr(t, field), least)) for t in timings if t.name == name]
            axes.loglog(*zip(*points, strict=True), marker=marker, label=name)
        axes.set_xlabel("tokens N")
        axes.set_ylabel(label)
        axes.legend()
    return figure


def _in_new_process(name: str, length: int) -> float:
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_growth, (name, length, torch.get_num_threads()))


def _growth(name: str, length: int, threads: int) -> float:
    torch.set_num_threads(threads)
    step, tokens = make_steps()[name], make_tokens(length)
    time_step(step, tokens[:, :64])
    before = read_memory("VmRSS")
    time_step(step, tokens)
    return max(0.0, read_memory("VmHWM") - before)


def _write(timings: list[Timing], folder: Path) -> None:
    content = {
        "timings": [asdict(each) for each in timings],
        "sizes": {"dim": DIM, "heads": HEADS, "prototypes": PROTOTYPES},
        "device": name_device(torch.device("cpu")),
        "threads": torch.get_num_threads(),
        "commit": find_commit(),
        "versions": find_versions(),
    }
    with replacing(folder / "readout.json") as beside:
        beside.write_text(json.dumps(content, indent=1), encoding="utf-8")
    with replacing(folder / "readout.png") as beside:
        draw(timings).savefig(beside, format="png", dpi=120)
    print(f"Written: {folder / 'readout.json'}, {folder / 'readout.png'}")
