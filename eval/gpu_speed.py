"""Times and memory of the assignment on a device, for `eval.gpu_check`.

N rows, D features, K codes.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eval.bench import Problem
from eval.contenders import CONTENDERS, Contender, make_rows
from softvq.functional.backends import chunked, reference, triton

MODULES = {"reference": reference, "chunked": chunked, "triton": triton}
EPOCH = 50_000 // 128
PRODUCTS = 8  # of 2 N K D operations: exact assignment at two temperatures, 3 forward, 5 backward
# Cuts of the kernels to time beside the chosen ones: rows, codes, chunk, warps, stages, levels.
CANDIDATES = {
    "less_spilling": ((64, 32, 16, 8, 2, 1), (64, 32, 16, 8, 2, 1), (16, 64, 32, 8, 2, 2)),
    "two_levels": ((64, 32, 32, 8, 2, 2), (64, 32, 32, 8, 2, 2), (32, 64, 32, 8, 2, 2)),
    "large": ((128, 64, 32, 8, 3, 2), (128, 32, 32, 8, 3, 2), (64, 64, 32, 8, 2, 2)),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Sizes and limits of a run."""

    device: torch.device
    correct: tuple[Problem, ...]
    speed: Problem
    indices: Problem
    repeats: int
    preset: str
    train_steps: int
    train_seconds: float
    candidates: bool


def make_plan(*, smoke: bool) -> Plan:
    """Full sizes on the CUDA device, or with ``smoke`` tiny ones on the CPU.

    Raises:
        ValueError: If there is no CUDA device and ``smoke`` is not asked for.

    Example:
        >>> make_plan(smoke=True).speed.num_codes
        64
    """
    if smoke:
        small = Problem(num_rows=96, num_codes=64, dim=8)
        return Plan(
            device=torch.device("cpu"),
            correct=(small, Problem(num_rows=33, num_codes=17, dim=20)),
            speed=small,
            indices=small,
            repeats=1,
            preset="smoke",
            train_steps=4,
            train_seconds=400,  # never cut, however busy the machine
            candidates=False,
        )
    if not torch.cuda.is_available():
        raise ValueError("there is no CUDA device; --smoke runs everything at tiny sizes on a CPU.")
    return Plan(
        device=torch.device("cuda"),
        correct=(
            Problem(num_rows=4096, num_codes=1024, dim=256),
            Problem(num_rows=4096, num_codes=512, dim=64),
            Problem(num_rows=1000, num_codes=777, dim=20),
        ),
        speed=Problem(num_rows=65_536, num_codes=16_384, dim=256),
        indices=Problem(num_rows=65_536, num_codes=16_384, dim=64),
        repeats=5,
        preset="full",
        train_steps=5 * EPOCH,
        train_seconds=75,
        candidates=True,
    )


def find_backends(device: torch.device, dim: int) -> list[str]:
    """Back ends besides the reference that can run here; says why where one cannot.

    Example:
        >>> find_backends(torch.device("cpu"), 300)
          without the triton back end: its kernels hold at most 256 features, and D is 300
        ['chunked']
    """
    reason = triton.unavailable(device, dim, torch.float32)
    if reason is not None:
        print(f"  without the triton back end: {reason}")
    return ["chunked"] if reason is not None else ["chunked", "triton"]


def make_operands(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (N, D), codes near them (K, D), and two temperatures on the scale of the data.

    Example:
        >>> make_operands(Problem(num_rows=9, num_codes=5, dim=2))[1].shape
        torch.Size([5, 2])
    """
    z = make_rows(problem.num_rows, problem.dim)[0]
    generator = torch.Generator().manual_seed(1)
    picks = torch.randint(problem.num_rows, (problem.num_codes,), generator=generator)
    noise = torch.randn(problem.num_codes, problem.dim, generator=generator)
    codebook = z[picks] + 0.3 * noise * z.std(0)
    codebook = codebook - codebook.mean(0)
    scale = z.var(0).sum()
    return z, codebook, torch.stack([0.3 * scale, 0.1 * scale])


def check_speed(plan: Plan) -> dict[str, Any]:
    """Product rates, the assignment alone, then whole steps, with times and peak memory.

    Args:
        plan: Sizes.

    Returns:
        Figures by name; seconds, MiB, and shares of the time that bare products would take.
    """
    problem = plan.speed
    rates = measure_rates(plan)
    found: dict[str, Any] = {"problem": str(problem), "product_tflops": rates}
    found["assignment"] = {
        name: _time_assignment(plan, name) for name in find_backends(plan.device, problem.dim)
    }
    print(f"  assignment {json.dumps(found['assignment'])}")
    if plan.candidates and "triton" in found["assignment"]:
        found["candidates"] = _time_candidates(plan)
    for name in ("softvq", "lucid-ema"):
        found[name] = _time_contender(plan, name)
        print(f"  {name} {json.dumps(found[name])}")
    work = PRODUCTS * 2 * problem.num_rows * problem.num_codes * problem.dim / 1e12
    seconds = found["softvq"]["forward_backward_s"]
    found["ratio_to_lucid_ema"] = found["softvq"]["step_s"] / found["lucid-ema"]["step_s"]
    # tf32x3, which keeps float32's digits, is three products in tf32.
    limits = {**rates, "tf32x3": rates["tf32"] / 3}
    found["share_of_limit"] = {name: work / seconds / rate for name, rate in limits.items()}
    return found


def measure_rates(plan: Plan) -> dict[str, float]:
    """Tera-operations a second of a product of the problem's shape, in three precisions.

    Example:
        >>> rates = measure_rates(make_plan(smoke=True))  # doctest: +ELLIPSIS
          product rates, TFLOP/s: ...
        >>> sorted(rates)
        ['bf16', 'float32', 'tf32']
    """
    problem = plan.speed
    rows = min(problem.num_rows, 16_384)
    left = make_rows(rows, problem.dim)[0].to(plan.device)
    right = make_rows(problem.num_codes, problem.dim)[0].to(plan.device).mT.contiguous()
    work = 2 * rows * problem.num_codes * problem.dim / 1e12
    found = {}
    before = torch.get_float32_matmul_precision()
    try:
        for name, precision in (("float32", "highest"), ("tf32", "high"), ("bf16", before)):
            torch.set_float32_matmul_precision(precision)
            dtype = torch.bfloat16 if name == "bf16" else torch.float32
            ours, theirs = left.to(dtype), right.to(dtype)
            found[name] = work / _time(plan, lambda a=ours, b=theirs: torch.mm(a, b))
    finally:
        torch.set_float32_matmul_precision(before)
    print(f"  product rates, TFLOP/s: {json.dumps(found)}")
    return found


def _time_assignment(plan: Plan, name: str) -> dict[str, float | None]:
    """Seconds and MiB of the calls that the default recipe makes, without the module about them."""
    operands = [part.to(plan.device).requires_grad_() for part in make_operands(plan.speed)]
    levels = operands.pop().detach()

    def forward() -> Tensor:
        out = MODULES[name].soft_assign(*operands, levels)
        use = out.use[0]
        return out.mean[0].square().sum() + out.free_energy[1].sum() + (use * use.log()).sum()

    with torch.no_grad():
        alone = _time(plan, forward)
    with _peak_memory(plan) as peak:
        both = _time(plan, lambda: torch.autograd.grad(forward(), operands))
    return {"forward_s": alone, "forward_backward_s": both, "peak_mib": peak()}


def _time_candidates(plan: Plan) -> dict[str, Any]:
    """The assignment under other cuts of the kernels; the tables are put back."""
    tables = (triton.FORWARD_BLOCKS, triton.ROW_BLOCKS, triton.CODE_BLOCKS)
    padded = triton.pad(plan.speed.dim)
    chosen = [table[padded] for table in tables]
    found: dict[str, Any] = {}
    try:
        for name, cuts in CANDIDATES.items():
            for table, cut in zip(tables, cuts, strict=True):
                table[padded] = triton.Blocks(*cut)
            try:
                found[name] = _time_assignment(plan, "triton")
            except RuntimeError as error:  # out of registers or of shared memory
                found[name] = f"{type(error).__name__}: {error}"
            print(f"  blocks {name} {cuts}: {json.dumps(found[name])}")
    finally:
        for table, cut in zip(tables, chosen, strict=True):
            table[padded] = cut
    return found


def _time_contender(plan: Plan, name: str) -> dict[str, Any]:
    """Medians of a contender's training step, and the peak of its memory."""
    problem = plan.speed
    torch.manual_seed(0)
    made = CONTENDERS[name](problem.num_codes, problem.dim, problem.num_rows)
    made.train().to(plan.device)
    rows = make_rows(problem.num_rows, problem.dim).to(plan.device)
    begin = time.perf_counter()
    _step(plan, made, rows)  # places the codebook, compiles kernels
    start = time.perf_counter() - begin
    with _peak_memory(plan) as peak:
        taken = [_step(plan, made, rows) for _ in range(plan.repeats)]
    both, whole = (statistics.median(each) for each in zip(*taken, strict=True))
    return {"start_s": start, "forward_backward_s": both, "step_s": whole, "peak_mib": peak()}


def _step(plan: Plan, contender: Contender, rows: Tensor) -> tuple[float, float]:
    """Seconds until forward and backward are done, and until the update is."""
    leaf = rows.clone().requires_grad_()
    pull = torch.full_like(rows, 1e-5)
    for parameter in contender.parameters():
        parameter.grad = None
    _wait(plan)
    begin = time.perf_counter()
    quantized, loss = contender(leaf)
    ((quantized * pull).sum() + loss).backward()
    _wait(plan)
    both = time.perf_counter() - begin
    contender.update()
    _wait(plan)
    return both, time.perf_counter() - begin


def _time(plan: Plan, action: Callable[[], object]) -> float:
    """Median seconds of an action, after one to warm up."""
    taken = []
    for _ in range(plan.repeats + 1):
        _wait(plan)
        begin = time.perf_counter()
        action()
        _wait(plan)
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken[1:])


def _wait(plan: Plan) -> None:
    if plan.device.type == "cuda":
        torch.cuda.synchronize()


@contextmanager
def _peak_memory(plan: Plan) -> Iterator[Callable[[], float | None]]:
    """Gives a function: MiB by which device memory grew at most; None on a CPU."""
    if plan.device.type != "cuda":
        yield lambda: None
        return
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    yield lambda: (torch.cuda.max_memory_allocated() - before) / 2**20
