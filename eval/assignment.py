"""Time and memory of the assignment alone: over temperatures, over N and K, and at large sizes.

N rows, D features, K codes. A step here is forward and backward of the default recipe's loss: the
mean and the use at one temperature, the free energy at a lower one. `eval.bench` times whole
quantizers beside their rivals.
"""

import json
import math
import multiprocessing
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from eval.bench import Problem, check_backends, time_limit
from eval.contenders import make_rows
from eval.memory import read_memory
from softvq.files import replacing
from softvq.functional.assign import soft_assign_and_use
from softvq.functional.backends import choose_backend
from softvq.functional.losses import use_entropy
from train.provenance import find_commit, find_versions, name_device

RATIOS = (1e-8, 1e-6, 1e-4, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e4, 1e6, 1e8)
LOWER = 1 / 6  # the prototypes' temperature over the gradient path's, as measured in training
BASE = Problem(num_rows=8192, num_codes=8192, dim=64)
MEMORY = (
    Problem(num_rows=16384, num_codes=16384, dim=32),
    Problem(num_rows=16384, num_codes=2**20, dim=32),
)
SIZES = (2048, 4096, 8192, 16384)
SMOKE = Problem(num_rows=64, num_codes=256, dim=4)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Seconds by temperature over the data's scale, by K and by N; MiB and seconds at large sizes.

    ``share`` is the time of the bare products over that of the step at T of the data's scale.
    """

    backend: str
    by_ratio: dict[float, float]
    share: float
    by_codes: dict[int, float]
    by_rows: dict[int, float]
    large: dict[str, tuple[float, float]]


def step(problem: Problem, *, ratio: float, backend: str, seed: int = 0) -> float:
    """Seconds of forward and backward at T = ratio times the variance of the rows.

    Example:
        >>> step(SMOKE, ratio=1.0, backend="reference") > 0
        True
    """
    rows = make_rows(problem.num_rows, problem.dim, seed=seed)[0]
    codes = make_rows(problem.num_codes, problem.dim, seed=seed + 1)[0].requires_grad_()
    level = ratio * rows.var(0).sum()
    levels = torch.stack([level, LOWER * level])
    rows.requires_grad_()
    begin = time.perf_counter()
    out, use = soft_assign_and_use(rows, codes, temperature=levels, backend=backend)
    loss = 1e-5 * out.mean[0].sum() + out.free_energy[1].mean() - 0.01 * use_entropy(use[0])
    loss.backward()
    return time.perf_counter() - begin


def fit_exponent(times: dict[int, float]) -> float:
    """Slope of log time over log size, by least squares.

    Example:
        >>> print(f"{fit_exponent({1: 1.0, 2: 4.0, 4: 16.0}):.1f}")
        2.0
    """
    x, y = ([math.log(each) for each in part] for part in (times.keys(), times.values()))
    return statistics.linear_regression(x, y).slope


def assignment(
    *,
    backend: str = "auto",
    repeats: int = 3,
    threads: int | None = None,
    smoke: bool = False,
    large: bool = True,
    out: Path = Path("runs/assignment"),
) -> Figures:
    """Time the assignment over temperatures and sizes, after checking that it is right.

    Args:
        backend: auto, or a name.
        repeats: Steps of which the median counts.
        threads: For torch; its own choice if not given.
        smoke: Tiny sizes, which only show that everything runs.
        large: Whether to measure memory, up to a million codes.
        out: Folder for assignment.json.

    Returns:
        What was measured.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    check_backends()
    base, sizes = (SMOKE, (64, 128)) if smoke else (BASE, SIZES)
    problems = {ratio: (base, ratio) for ratio in RATIOS}
    by_ratio = _time_in_turn(problems, backend=backend, repeats=repeats)
    rows, codes, dim = base.num_rows, base.num_codes, base.dim
    by_codes = {k: (Problem(num_rows=rows, num_codes=k, dim=dim), 0.1) for k in sizes}
    by_rows = {n: (Problem(num_rows=n, num_codes=codes, dim=dim), 0.1) for n in sizes}
    figures = Figures(
        backend=_name_backend(base, backend),
        by_ratio=by_ratio,
        share=time_limit(base, temperatures=2, repeats=repeats) / by_ratio[1.0],
        by_codes=_time_in_turn(by_codes, backend=backend, repeats=repeats),
        by_rows=_time_in_turn(by_rows, backend=backend, repeats=repeats),
        large=_measure_large((SMOKE,) if smoke else MEMORY, backend) if large else {},
    )
    print_figures(figures, base)
    _write(figures, out)
    return figures


def print_figures(figures: Figures, base: Problem) -> None:
    """Tables on the terminal."""
    console = Console(width=None if Console().is_terminal else 110)
    table = Table(title=f"{base}, {figures.backend}")
    table.add_column("T / variance of the rows", justify="right")
    table.add_column("forward + backward ms", justify="right")
    for ratio, seconds in figures.by_ratio.items():
        table.add_row(f"{ratio:.0e}", f"{1e3 * seconds:.1f}")
    console.print(table)
    times, usual = figures.by_ratio.values(), figures.by_ratio[1.0]
    console.print(f"Slowest temperature over T = variance: {max(times) / usual:.2f}")
    console.print(f"Fastest temperature over T = variance: {min(times) / usual:.2f}")
    console.print(f"Share of the product limit at T = variance: {100 * figures.share:.0f} %")
    console.print(f"Exponent of time over K: {fit_exponent(figures.by_codes):.2f}")
    console.print(f"Exponent of time over N: {fit_exponent(figures.by_rows):.2f}")
    for name, (mib, seconds) in figures.large.items():
        console.print(f"{name}: memory grows by {mib:.0f} MiB at most, {seconds:.1f} s")


def _name_backend(problem: Problem, backend: str) -> str:
    rows = torch.zeros(1, problem.dim).expand(problem.num_rows, problem.dim)
    return choose_backend(backend, rows, num_codes=problem.num_codes).name


def _time_in_turn(problems: dict, *, backend: str, repeats: int) -> dict:
    """Medians by key of (problem, ratio), taking turns; one step more warms up."""
    taken: dict = {key: [] for key in problems}
    for repeat in range(repeats + 1):
        for key, (problem, ratio) in problems.items():
            seconds = step(problem, ratio=ratio, backend=backend, seed=2 * repeat)
            if repeat:
                taken[key].append(seconds)
    return {key: statistics.median(each) for key, each in taken.items()}


def _measure_large(problems: tuple[Problem, ...], backend: str) -> dict[str, tuple[float, float]]:
    """Growth of memory in MiB and seconds of one step, each in a process of its own."""
    if not Path("/proc/self/status").exists():
        return {}
    found = {}
    for problem in problems:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            arguments = (problem, backend, torch.get_num_threads())
            found[str(problem)] = pool.apply(_grow, arguments)
    return found


def _grow(problem: Problem, backend: str, threads: int) -> tuple[float, float]:
    torch.set_num_threads(threads)
    step(SMOKE, ratio=0.1, backend=backend)  # loads kernels
    rows = make_rows(problem.num_rows, problem.dim)[0].requires_grad_()
    codes = make_rows(problem.num_codes, problem.dim, seed=1)[0].requires_grad_()
    levels = torch.tensor([1.0, LOWER])
    before = read_memory("VmRSS")
    begin = time.perf_counter()
    out, use = soft_assign_and_use(rows, codes, temperature=levels, backend=backend)
    loss = 1e-5 * out.mean[0].sum() + out.free_energy[1].mean() - 0.01 * use_entropy(use[0])
    loss.backward()
    seconds = time.perf_counter() - begin
    return max(0.0, read_memory("VmHWM") - before), seconds


def _write(figures: Figures, folder: Path) -> None:
    content = {
        **asdict(figures),
        "device": name_device(torch.device("cpu")),
        "threads": torch.get_num_threads(),
        "commit": find_commit(),
        "versions": find_versions(),
    }
    with replacing(folder / "assignment.json") as beside:
        beside.write_text(json.dumps(content, indent=1), encoding="utf-8")
    print(f"Written: {folder / 'assignment.json'}")
