"""What a run tells while it goes: a progress line, and TensorBoard files."""

import math
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import torch
from einops import rearrange
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from train.evaluate import Evaluation, Pictures


class Journal:
    """Progress on the terminal and curves on disk; a context manager.

    Args:
        title: Before the bar and every line.
        total: Steps of the run.
        folder: Of the TensorBoard files; None writes none.
        quiet: Say nothing on the terminal.
    """

    def __init__(self, title: str, *, total: int, folder: Path | None, quiet: bool = False) -> None:
        self.console = Console(quiet=quiet)
        self.title = title
        self._writer = None if folder is None else SummaryWriter(str(folder))
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[loss]}"),
            console=self.console,
            disable=quiet or not self.console.is_terminal,
        )
        self._task = self._progress.add_task(title, total=total, rate="", loss="")

    def __enter__(self) -> "Journal":
        """Show the bar."""
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the bar away and close the files."""
        self._progress.stop()
        if self._writer is not None:
            self._writer.close()

    def step(self, step: int, *, rate: float) -> None:
        """Move the bar; ``rate`` in steps a second."""
        self._progress.update(self._task, completed=step, rate=f"{rate:.1f} steps/s")

    def scalars(self, step: int, values: Mapping[str, Tensor | float]) -> None:
        """Write scalars; a name ``group/name`` puts them in that group."""
        if "loss/total" in values:
            self._progress.update(self._task, loss=f"loss {float(values['loss/total']):.4f}")
        if self._writer is None:
            return
        for name, value in values.items():
            self._writer.add_scalar(name, float(value), step)

    def evaluation(self, step: int, evaluation: Evaluation, *, rate: float, left: float) -> None:
        """Write measures of the test set, and say the main ones in one line."""
        present = {k: v for k, v in evaluation.measures.items() if v is not None}
        self.scalars(step, {f"test/{name}": value for name, value in present.items()})
        parts = [f"hard {present['psnr_hard']:.2f} dB"]
        if "psnr_soft" in present:
            parts.append(f"soft {present['psnr_soft']:.2f} dB")
        parts.append(f"use {100 * present['use_hard']:.1f} %")
        parts.append(f"perplexity {present['perplexity_hard']:.0f}")
        if step:
            parts.append(f"{rate:.1f} steps/s, {_clock(left)} left")
        self.console.print(
            f"{self.title:<24} step {step:>6}  " + "  ".join(parts), highlight=False, soft_wrap=True
        )

    def pictures(self, step: int, pictures: Pictures) -> None:
        """Write a grid: input, hard, and soft where there is one, row by row."""
        if self._writer is None:
            return
        rows = [pictures.inputs, pictures.hard]
        rows += [] if pictures.soft is None else [pictures.soft]
        grid = rearrange(torch.stack(rows), "r p c h w -> c (r h) (p w)")
        self._writer.add_image("pictures/input, hard, soft", grid.numpy(), step)

    def say(self, text: str) -> None:
        """Print a line beside the bar."""
        self.console.print(
            f"{self.title:<24} {text}", highlight=False, markup=False, soft_wrap=True
        )


def _clock(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
