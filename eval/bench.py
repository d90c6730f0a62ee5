"""Time and memory of quantizers, side by side in one process: `python -m eval bench`.

N rows, D features, K codes. Ratios are to vector-quantize-pytorch's EMA quantizer, of residual
stacks to its stack, from steps taken in turn, so that what else the machine does falls on all
alike. A back end that is not right is not timed.
"""

import json
import math
import multiprocessing
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from torch import Tensor

from eval.contenders import CONTENDERS, RESIDUAL, Contender, make_rows
from eval.memory import read_memory
from softvq.checks import choose
from softvq.files import replacing
from softvq.functional.assign import soft_assign_and_use
from softvq.functional.backends import choose_backend, native
from train.provenance import find_commit, find_versions, name_device
from train.quantizers import STAGES

BASES = ("lucid-ema", "lucid-residual")
ALL = {**CONTENDERS, **RESIDUAL}
PRODUCTS = {1: 5, 2: 8}  # that exact assignment needs, by number of temperatures
MEMORY_CAP = 6 * 2**30  # bytes of N x K buffers beyond which a dense contender is not started
DENSE_BUFFERS = {"dense-soft": 5, "dense-hard": 3, "lucid-ema": 6, "lucid-simvq": 2}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Sizes to time: N rows of D features against K codes."""

    num_rows: int
    num_codes: int
    dim: int

    def __str__(self) -> str:
        return f"N={self.num_rows} K={self.num_codes} D={self.dim}"


PROBLEMS = {
    "quick": [
        Problem(num_rows=8192, num_codes=512, dim=64),
        Problem(num_rows=8192, num_codes=8192, dim=64),
        Problem(num_rows=8192, num_codes=16384, dim=8),
    ],
    "growth": [Problem(num_rows=8192, num_codes=2**i, dim=64) for i in range(9, 15)],
    "residual": [Problem(num_rows=4096, num_codes=1024, dim=64)],
    "smoke": [Problem(num_rows=64, num_codes=64, dim=4)],
}


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Medians in seconds; spread is slowest over fastest step; growth of memory in MiB."""

    problem: Problem
    name: str
    forward: float
    forward_backward: float
    step: float
    spread: float
    ratio: float
    growth_mib: float


def check_backends() -> None:
    """Raise unless the back ends of this machine equal the reference, values and gradients.

    Raises:
        RuntimeError: Naming the back end and its largest difference.

    Example:
        >>> check_backends()
    """
    exact = _try_backend("reference", torch.float64)
    _compare("chunked", _try_backend("chunked", torch.float64), exact, limit=1e-9)
    if native.unavailable(torch.device("cpu"), torch.float32) is None:
        _compare("native", _try_backend("native", torch.float32), exact, limit=1e-3)


def _try_backend(backend: str, dtype: torch.dtype) -> list[Tensor]:
    """Outputs and gradients of a small problem."""
    rows = make_rows(300, 16)[0].to(dtype).requires_grad_()
    codes = make_rows(128, 16)[0].to(dtype).mul(0.9).requires_grad_()
    levels = torch.tensor([1.0, 0.1], dtype=dtype)
    out, use = soft_assign_and_use(rows, codes, temperature=levels, backend=backend)
    parts = [out.mean, out.spread, out.free_energy, out.entropy, use]
    loss = torch.stack([(part * torch.sin(part.detach() + 1)).sum() for part in parts]).sum()
    return [*parts, *torch.autograd.grad(loss, (rows, codes))]


def _compare(name: str, found: list[Tensor], exact: list[Tensor], *, limit: float) -> None:
    """Raise where a result is off by more than a share of the largest number in it, or of one."""
    for ours, right in zip(found, exact, strict=True):
        worst = ((ours.double() - right).abs().max() / right.abs().max().clamp_min(1)).item()
        if not worst <= limit:
            raise RuntimeError(f"{name} differs from reference by {worst:.1e}: nothing is timed.")


def time_problem(problem: Problem, names: list[str], *, repeats: int) -> list[Timing]:
    """Time some contenders on one problem, taking turns.

    Args:
        problem: Sizes.
        names: Keys of `ALL`.
        repeats: Steps of each that count; one more warms up.

    Returns:
        A timing for each name that fits in memory, ratios to the base where it is among them.
    """
    names = [name for name in names if _fits(name, problem)]
    made = {name: _make(name, problem) for name in names}
    taken: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    for repeat in range(repeats + 1):
        # New rows each time, as in training: codes that lie on the rows that they are timed with,
        # as they do after a start, have no entropy.
        rows = make_rows(problem.num_rows, problem.dim, seed=repeat)
        for name in names:
            times = step(made[name], rows)
            if repeat:
                taken[name].append(times)
    medians = {name: statistics.median(t[2] for t in taken[name]) for name in names}
    base = next((medians[name] for name in BASES if name in medians), math.nan)
    return [
        Timing(
            problem=problem,
            name=name,
            forward=statistics.median(t[0] for t in taken[name]),
            forward_backward=statistics.median(t[1] for t in taken[name]),
            step=medians[name],
            spread=max(t[2] for t in taken[name]) / min(t[2] for t in taken[name]),
            ratio=medians[name] / base,
            growth_mib=measure_growth(name, problem),
        )
        for name in names
    ]


def step(contender: Contender, rows: Tensor) -> tuple[float, float, float]:
    """One training step of a quantizer: seconds until forward, backward and update are done."""
    leaf = rows.clone().requires_grad_()
    pull = torch.full_like(rows, 1e-5)
    for parameter in contender.parameters():
        parameter.grad = None
    begin = time.perf_counter()
    quantized, loss = contender(leaf)
    forward = time.perf_counter() - begin
    ((quantized * pull).sum() + loss).backward()
    backward = time.perf_counter() - begin
    contender.update()
    return forward, backward, time.perf_counter() - begin


def time_limit(problem: Problem, *, temperatures: int, repeats: int) -> float:
    """Seconds of the bare products that exact soft assignment needs, forward and backward.

    At one temperature two forward (scores, mean) and three backward (scores, and what flows to rows
    and to codes), at two three and five, of 2 N K D operations each, at the rate of a product whose
    blocks stay in the cache.
    """
    rows = make_rows(1024, problem.dim)[0]
    codes = make_rows(min(problem.num_codes, 512), problem.dim)[0].mT.contiguous()
    best = math.inf
    for _ in range(repeats + 5):
        begin = time.perf_counter()
        torch.mm(rows, codes)
        best = min(best, time.perf_counter() - begin)
    blocks = problem.num_rows * problem.num_codes / (rows.shape[0] * codes.shape[1])
    return PRODUCTS[temperatures] * blocks * best


def measure_growth(name: str, problem: Problem) -> float:
    """Growth of the peak resident memory over one step, in MiB, in a process of its own.

    Inputs, codebook and module exist before; NaN where the system does not tell.
    """
    if not Path("/proc/self/status").exists():
        return math.nan
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_growth, (name, problem, torch.get_num_threads()))


def run(problems: str, *, names: list[str], repeats: int, folder: Path) -> list[Timing]:
    """Check, time, print and write ``bench.json`` and ``bench.png``.

    Args:
        problems: A key of `PROBLEMS`.
        names: Keys of `ALL`; empty means the residual ones for "residual", and all others else.
        repeats: Steps of each that count.
        folder: For the files.

    Returns:
        The timings.

    Raises:
        ValueError: For an unknown name.
        RuntimeError: If a back end is wrong.
    """
    stacks = problems == "residual"
    chosen = names or list(RESIDUAL if stacks else CONTENDERS)
    for name in chosen:
        choose("contender", name, ALL)
    sizes = PROBLEMS[choose("problems", problems, PROBLEMS)]
    check_backends()
    timings: list[Timing] = []
    for problem in sizes:
        found = time_problem(problem, chosen, repeats=repeats)
        timings += found
        limit = time_limit(problem, temperatures=1, repeats=repeats)
        print_timings(found, limit=limit * (STAGES if stacks else 1))
    _write(timings, folder)
    return timings


def print_timings(timings: list[Timing], *, limit: float) -> None:
    """A table of one problem on the terminal."""
    console = Console(width=None if Console().is_terminal else 110)
    problem = timings[0].problem
    rows = torch.zeros(1, problem.dim).expand(problem.num_rows, problem.dim)
    backend = choose_backend("auto", rows, num_codes=problem.num_codes).name
    title = f"{problem}, medians; bare products {1e3 * limit:.1f} ms; back end {backend}"
    table = Table(title=title)
    table.add_column("quantizer")
    for head in ("forward ms", "+ backward ms", "+ update ms", "spread", "ratio", "MiB"):
        table.add_column(head, justify="right")
    for each in timings:
        numbers = (each.forward, each.forward_backward, each.step)
        table.add_row(
            each.name,
            *(f"{1e3 * number:.1f}" for number in numbers),
            f"{each.spread:.2f}",
            f"{each.ratio:.2f}",
            f"{each.growth_mib:.0f}",
        )
    console.print(table)


def draw_growth(timings: list[Timing]) -> Figure:
    """Step time over K, both axes logarithmic, one line a quantizer."""
    figure = Figure((7, 5), layout="constrained")
    axes = figure.subplots()
    for name in dict.fromkeys(each.name for each in timings):
        mine = sorted((each.problem.num_codes, each.step) for each in timings if each.name == name)
        axes.loglog([k for k, _ in mine], [t for _, t in mine], marker="o", label=name)
    axes.set_xlabel("codes K")
    axes.set_ylabel("seconds a training step")
    axes.legend()
    return figure


def _make(name: str, problem: Problem) -> Contender:
    torch.manual_seed(0)
    made = ALL[name](problem.num_codes, problem.dim, problem.num_rows)
    return made.train()


def _fits(name: str, problem: Problem) -> bool:
    needed = 4 * DENSE_BUFFERS.get(name, 0) * problem.num_rows * problem.num_codes
    return needed <= MEMORY_CAP


def _growth(name: str, problem: Problem, threads: int) -> float:
    torch.set_num_threads(threads)
    contender, rows = _make(name, problem), make_rows(problem.num_rows, problem.dim)
    step(contender, rows[:, : min(64, problem.num_rows)])  # starts k-means, loads kernels
    before = read_memory("VmRSS")
    step(contender, rows)
    return max(0.0, read_memory("VmHWM") - before)


def _write(timings: list[Timing], folder: Path) -> None:
    content = {
        "timings": [asdict(each) for each in timings],
        "device": name_device(torch.device("cpu")),
        "commit": find_commit(),
        "versions": find_versions(),
    }
    with replacing(folder / "bench.json") as beside:
        beside.write_text(json.dumps(content, indent=1), encoding="utf-8")
    with replacing(folder / "bench.png") as beside:
        draw_growth(timings).savefig(beside, format="png", dpi=120)
    print(f"Written: {folder / 'bench.json'}, {folder / 'bench.png'}")
