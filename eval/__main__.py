"""`python -m eval COMMAND`: the comparison and its page, times and memory, and the experiments.

A command is one module; an experiment's command line is its function of the same name.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import tyro

from eval.ablation import ablation
from eval.bench import run as run_bench
from eval.compare import run_comparison
from eval.report import write_report
from eval.results import load_results
from eval.robust import robust
from eval.runs import Word, Words
from eval.table import print_table
from eval.theorems import theorems
from eval.tune import tune
from eval.use import use
from softvq.data.fetch import FetchError


def compare(
    preset: Word = "quick",
    overrides: Words = (),
    /,
    *,
    out: Path | None = None,
    seeds: int = 1,
    methods: str = "",
    fresh: bool = False,
) -> None:
    """Train SoftVQ and its rivals, and compare their hard codes on the test set.

    Args:
        preset: quick, reference, full or smoke.
        overrides: Changes such as data=textures optim.steps=1000 net.num_codes=1024.
        out: Folder for results.json, report.html and pictures; runs/compare-PRESET by default.
        seeds: Runs of each method, paired over methods.
        methods: Comma-separated, or rivals, ablation, all; the preset's own if empty.
        fresh: Train again what the folder holds already.
    """
    folder = out or Path("runs") / f"compare-{preset}"
    results = run_comparison(
        preset, overrides, methods=methods, seeds=seeds, folder=folder, fresh=fresh
    )
    print_table(results)
    print(f"Report: {write_report(folder)}")


def report(folder: Annotated[Path, tyro.conf.Positional], /) -> None:
    """Print the table of a finished comparison and write its page again.

    Args:
        folder: Holds results.json and pictures.safetensors.
    """
    print_table(load_results(folder))
    print(f"Report: {write_report(folder)}")


def bench(
    problems: Word = "quick",
    /,
    *,
    names: str = "",
    repeats: int = 5,
    threads: int | None = None,
    out: Path = Path("runs/bench"),
) -> None:
    """Time quantizers side by side, after checking that ours is right.

    Args:
        problems: quick, growth or smoke.
        names: Comma-separated contenders; all if empty.
        repeats: Steps of each that count.
        threads: For torch; its own choice if not given.
        out: Folder for bench.json and bench.png.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    run_bench(problems, names=wanted, repeats=repeats, folder=out)


if __name__ == "__main__":
    try:
        commands: dict[str, Callable[..., None]] = {
            **{"compare": compare, "report": report, "bench": bench, "ablation": ablation},
            **{"tune": tune, "robust": robust, "use": use, "theorems": theorems},
        }
        tyro.extras.subcommand_cli_from_dict(commands, prog="python -m eval")
    except (ValueError, FileNotFoundError, FetchError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(
            "\nStopped. The same command goes on from what was saved, if the code is the same."
        )
