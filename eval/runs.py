"""What every experiment needs of a run: to go on where it was stopped, and where figures come from.

A run keeps its checkpoint in a folder of its own: what is finished, by the same settings and the
same committed code, is taken as it is.
"""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from eval.storage import write_json
from softvq.data import ImageSet
from softvq.models import VQVAE
from train.build import build_model
from train.config import RunConfig
from train.images import ImagePair
from train.loop import CHECKPOINT, Run
from train.provenance import find_commit, find_versions, name_device

Word = Annotated[str, tyro.conf.Positional]
Words = Annotated[tuple[str, ...], tyro.conf.Positional]
"""Arguments of a command line that need no name."""


def finish_run(
    config: RunConfig,
    *,
    images: ImagePair,
    folder: Path,
    fresh: bool = False,
    build: Callable[[RunConfig, ImageSet], VQVAE] = build_model,
) -> Run:
    """Train to the end, from the folder's checkpoint if it is of the same run.

    Args:
        config: The run.
        images: Its images.
        folder: For its checkpoint and TensorBoard files.
        fresh: Train again whatever is there.
        build: Makes its model.

    Returns:
        The run, with its result.

    Raises:
        KeyboardInterrupt: After Ctrl-C, once the step is saved.
    """
    run = Run(config, images=images, folder=folder, build=build)
    name = f"{config.method.name} seed {config.seed}"
    if not fresh and (folder / CHECKPOINT).exists():
        if not run.resume_if_same():
            print(f"{name}: {_why_again(find_commit())}, so trained again")
        elif run.done == config.optim.steps:
            print(f"{name}: finished before, taken as it is")
        else:
            print(f"{name}: going on after step {run.done} of {config.optim.steps}")
    run.train()
    return run


def _why_again(commit: str) -> str:
    if commit.endswith("-dirty"):
        return "there are changes of the code that are not committed"
    return "trained by other code" if commit != "unknown" else "no commit says which code this is"


def find_command() -> str:
    """The command that was typed, for whoever wants the figures again.

    Example:
        >>> find_command().startswith("python -m eval")
        True
    """
    return shlex.join(["python", "-m", "eval", *sys.argv[1:]])


def save_study(path: Path, content: dict[str, Any], *, run: Run | None = None) -> Path:
    """Write an experiment's figures beside where they come from.

    Args:
        path: The JSON file.
        content: Plain values; what is not finite is written as text.
        run: One of its runs, for device and data; without one, drawn numbers on the CPU.

    Returns:
        The path.
    """
    origin = {
        "command": find_command(),
        "commit": find_commit(),
        "versions": find_versions(),
        "device": name_device(torch.device("cpu") if run is None else run.accelerator.device),
        "data": "drawn" if run is None else f"{run.images.train.name}; {run.images.test.name}",
    }
    return write_json(path, {**origin, **content})
