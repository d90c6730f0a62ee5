"""`python -m eval compare PRESET` runs the comparison, `python -m eval report FOLDER` its page."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import tyro

from eval.compare import Comparison, choose_methods
from eval.report import write_report
from eval.results import load_results
from eval.table import print_table
from softvq.data.fetch import FetchError
from train.config import override
from train.presets import make_preset

Word = Annotated[str, tyro.conf.Positional]
Words = Annotated[tuple[str, ...], tyro.conf.Positional]


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
        methods: Comma-separated; the preset's own if empty.
        fresh: Train again what the folder holds already.
    """
    base = make_preset(preset)
    config = override(base, list(overrides))
    if (config.method.name, config.seed) != (base.method.name, base.seed):
        raise ValueError(
            "method.name and seed are what a comparison varies: give --methods and --seeds."
        )
    folder = out or Path("runs") / f"compare-{preset}"
    chosen = choose_methods(methods, preset)
    command = shlex.join(["python", "-m", "eval", *sys.argv[1:]])
    work = Comparison(config, chosen, seeds=seeds, folder=folder, command=command, fresh=fresh)
    print_table(work.run())
    print(f"Report: {write_report(folder)}")


def report(folder: Annotated[Path, tyro.conf.Positional], /) -> None:
    """Print the table of a finished comparison and write its page again.

    Args:
        folder: Holds results.json and pictures.safetensors.
    """
    print_table(load_results(folder))
    print(f"Report: {write_report(folder)}")


if __name__ == "__main__":
    try:
        tyro.extras.subcommand_cli_from_dict(
            {"compare": compare, "report": report}, prog="python -m eval"
        )
    except (ValueError, FileNotFoundError, FetchError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(
            "\nStopped. The same command goes on from what was saved, if the code is the same."
        )
