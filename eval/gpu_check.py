"""What a GPU must show, in one short run: `python -m eval.gpu_check [--out FOLDER] [--smoke]`.

Each section prints and writes its result at once, so that a run that is cut leaves what was done.
A section that fails says so and the next goes on; the exit code tells. N rows, D features, K codes.
"""

import _thread
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor

from eval.bench import Problem
from eval.gpu_speed import MODULES, Plan, check_speed, find_backends, make_operands, make_plan
from softvq.checks import choose
from softvq.data.cifar10 import TEST_FILE, TRAIN_FILES
from softvq.data.fetch import FetchError, cache_folder
from softvq.files import replacing
from softvq.functional.assign import nearest_code
from softvq.functional.backends import reference
from softvq.functional.backends.contract import Assigned
from softvq.functional.losses import distortion_loss, free_energy_loss
from softvq.types import SoftCodes
from train.config import RunConfig
from train.images import ImagePair
from train.loop import Run
from train.presets import make_preset
from train.provenance import find_commit, find_versions, name_device
from train.values import override

LIMIT_VALUES = 1e-4  # of ||found - right|| / ||right||, right in float64
LIMIT_GRADIENTS = 1e-3
# Is it right?


def check_correct(plan: Plan) -> dict[str, Any]:
    """Back ends in float32 against the reference in float64: outputs, gradients of both losses.

    Raises:
        RuntimeError: Where an error is over its limit, or not a number.
    """
    found: dict[str, Any] = {}
    faults = []
    for problem in plan.correct:
        right = _outputs_and_gradients("reference", problem, plan.device, torch.float64)
        for name in find_backends(plan.device, problem.dim):
            given = _outputs_and_gradients(name, problem, plan.device, torch.float32)
            errors = {key: _relative_error(given[key], right[key]) for key in right}
            found[f"{name} {problem}"] = errors
            for key, error in errors.items():
                limit = LIMIT_GRADIENTS if " to " in key else LIMIT_VALUES
                if not error <= limit:
                    faults.append(f"{name}, {problem}: {key} is off by {error:.1e}")
        print("  " + json.dumps({key: max(value.values()) for key, value in found.items()}))
    if faults:
        raise RuntimeError("; ".join(faults) + f". All: {json.dumps(found)}")
    return found


def _outputs_and_gradients(
    name: str, problem: Problem, device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    z, codebook, levels = (
        part.to(device, dtype).requires_grad_() for part in make_operands(problem)
    )
    assigned: Assigned = MODULES[name].soft_assign(z, codebook, levels)
    fields = assigned._asdict()
    indices = fields.pop("indices")
    found = {key: value.detach() for key, value in fields.items()}
    use = assigned.use
    by_level = [
        SoftCodes(**{key: fields[key][s] for key in SoftCodes._fields[:-1]}, indices=indices)
        for s in range(2)
    ]
    losses = {
        "free energy": free_energy_loss(z, by_level[1], beta=0.08) + (use * use.log()).sum(),
        "distortion": distortion_loss(z, by_level[0]),
    }
    for loss_name, loss in losses.items():
        gradients = torch.autograd.grad(
            loss, (z, codebook, levels), retain_graph=True, allow_unused=True
        )
        for part, gradient in zip(("z", "codebook", "temperature"), gradients, strict=True):
            if gradient is not None:
                found[f"{loss_name} to {part}"] = gradient
    return found


def _relative_error(given: Tensor, right: Tensor) -> float:
    error = (given.double() - right.double()).norm() / right.double().norm().clamp_min(1e-30)
    return error.item()


# Are indices those of float32?


def check_indices(plan: Plan) -> dict[str, Any]:
    """Indices of bf16 and fp16 inputs under autocast against those of the same numbers in float32.

    Raises:
        RuntimeError: If any differs.
    """
    problem = plan.indices
    z, codebook, _ = (part.to(plan.device) for part in make_operands(problem))
    found = {}
    for dtype in (torch.bfloat16, torch.float16):
        rows, codes = z.to(dtype), codebook.to(dtype)
        with torch.autocast(plan.device.type, dtype=dtype):
            low = nearest_code(rows, codes)
        full = nearest_code(rows.float(), codes.float())
        picks = slice(0, 2048)  # float64 is slow on many devices
        exact = reference.nearest_code(rows[picks].double(), codes.double())
        found[str(dtype)] = {
            "wrong": int((low != full).sum()),
            "of": problem.num_rows,
            "float32_is_not_float64": int((full[picks] != exact).sum()),
        }
    if any(each["wrong"] for each in found.values()):
        raise RuntimeError(f"indices in low precision are not those of float32: {found}")
    return found


# Does it train?


def check_training(plan: Plan) -> dict[str, Any]:
    """`softvq` and `lucid-ema` by the normal loop; a run that takes too long is cut."""
    kept = all((cache_folder() / name).exists() for name in (*TRAIN_FILES, TEST_FILE))
    source = "cifar10" if kept and plan.preset == "full" else "textures"
    base = override(
        make_preset(plan.preset),
        [f"data={source}", f"optim.steps={plan.train_steps}", "eval_at=[0.5, 1.0]"],
    )
    images = ImagePair(base)
    found: dict[str, Any] = {"source": source}
    for name in ("softvq", "lucid-ema"):
        config = override(base, [f"method.name={name}"])
        found[name] = _train(config, images, seconds=plan.train_seconds)
        print(f"  {name} {json.dumps(found[name])}")
    return found


def _train(config: RunConfig, images: ImagePair, *, seconds: float) -> dict[str, Any]:
    """Train until the end, or until the time is over: then as if Ctrl-C had been pressed."""
    run = Run(config, images=images, quiet=True)
    over = threading.Event()

    def stop() -> None:
        over.set()
        _thread.interrupt_main()

    timer = threading.Timer(seconds, stop)
    timer.start()
    try:
        run.train()
    except KeyboardInterrupt:
        if not over.is_set():
            raise
    finally:
        timer.cancel()
    last = run.result.evals[-1] if run.result.evals else None
    return {
        "steps": run.done,
        "of": config.optim.steps,
        "seconds": run.seconds,
        "seconds_a_step": run.seconds / max(run.done, 1),
        "losses": run.result.losses[-1:],
        "last_eval": last,
        "warnings": run.result.warnings,
    }


# All of it

SECTIONS: dict[str, Callable[[Plan], dict[str, Any]]] = {
    "correct": check_correct,
    "indices": check_indices,
    "speed": check_speed,
    "training": check_training,
}


def run_sections(
    plan: Plan, names: list[str], *, folder: Path, seconds: float = float("inf")
) -> list[str]:
    """Run sections in turn; each writes ``NAME.json`` in the folder when it is done.

    Args:
        plan: Sizes.
        names: Keys of `SECTIONS`.
        folder: For the results.
        seconds: No section starts later than this.

    Returns:
        The names of those that failed or did not start.

    Raises:
        ValueError: For an unknown name.
    """
    for name in names:
        choose("sections", name, SECTIONS)
    folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    failed = []
    for name in names:
        begin = time.perf_counter()
        print(f"{name}:", flush=True)
        content: dict[str, Any] = {}
        if begin - start > seconds:
            content["error"] = f"not started: {seconds:.0f} seconds were over"
        else:
            try:
                content["result"] = SECTIONS[name](plan)
            # What a device, a compiler or a check raises; out of memory is a RuntimeError too.
            except (RuntimeError, ValueError, OSError, FetchError) as error:
                content["error"] = f"{type(error).__name__}: {error}"
        if "error" in content:
            failed.append(name)
        content["seconds"] = time.perf_counter() - begin
        _write(folder / f"{name}.json", content, plan)
        print(f"  {json.dumps(content)[:2000]}", flush=True)
    return failed


def _write(path: Path, content: dict[str, Any], plan: Plan) -> None:
    about = {
        "device": name_device(plan.device),
        "commit": find_commit(),
        "versions": find_versions(),
        "problem": asdict(plan.speed),
    }
    with replacing(path) as beside:
        beside.write_text(json.dumps({**content, **about}, indent=1), encoding="utf-8")


def main(
    *,
    out: Path = Path("runs/gpu_check"),
    smoke: bool = False,
    sections: str = "",
    seconds: float = 400.0,
) -> None:
    """Check softvq on the CUDA device of this machine.

    Args:
        out: Folder for the results.
        smoke: Tiny sizes on the CPU: whether the script itself runs.
        sections: Comma-separated out of correct, indices, speed, training; all if empty.
        seconds: No section starts later than this.
    """
    plan = make_plan(smoke=smoke)
    names = [name.strip() for name in sections.split(",") if name.strip()] or list(SECTIONS)
    print(f"On {name_device(plan.device)}; results in {out}.")
    failed = run_sections(plan, names, folder=out, seconds=seconds)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    print("All sections passed.")


if __name__ == "__main__":
    try:
        tyro.cli(main, prog="python -m eval.gpu_check")
    except ValueError as error:
        sys.exit(f"error: {error}")
