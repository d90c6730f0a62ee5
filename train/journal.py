"""What a run tells while it goes: a table or lines on the terminal, and TensorBoard files."""

import math
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from torch import Tensor

from softvq.data import ImageSet
from softvq.models import VQVAE
from train.board import Board, place_in_group
from train.evaluate import Evaluation, Pictures
from train.indices import first_codebook
from train.patches import average_patches
from train.terminal import Terminal, show_clock

PATCH_IMAGES = 250


class Journal:
    """Progress on the terminal and curves on disk; a context manager.

    Args:
        title: Before the bar and every line.
        total: Steps of the run.
        folder: Of the TensorBoard files; None writes none.
        quiet: Say nothing on the terminal.
        settings: The run's config as JSON values, to compare runs by.
        console: To write on; standard output by default.
    """

    def __init__(
        self,
        title: str,
        *,
        total: int,
        folder: Path | None,
        quiet: bool = False,
        settings: Mapping[str, Any] | None = None,
        console: Console | None = None,
    ) -> None:
        self.terminal = Terminal(title, total=total, quiet=quiet, console=console)
        self.board = Board(folder, settings=settings or {})

    def __enter__(self) -> "Journal":
        """Show the table."""
        self.terminal.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the table away and close the files."""
        self.terminal.__exit__(kind, error, trace)
        self.board.close(finished=kind is None)

    def step(self, step: int, *, rate: float) -> None:
        """Move the bar; ``rate`` in steps a second."""
        self.terminal.step(step, rate=rate)

    def scalars(self, step: int, values: Mapping[str, Tensor | float]) -> None:
        """Write scalars of training; a name ``group/name`` puts them in that group."""
        forms = {
            "loss/total": ("loss", "{:.4f}"),
            "codebook/dead_codes": ("dead codes", "{:.0f}"),
            "codebook/temperature_ratio": ("T / T_c", "{:.3g}"),
        }
        shown = {
            column: form.format(float(values[name]))
            for name, (column, form) in forms.items()
            if name in values
        }
        self.terminal.show(shown)
        self.board.scalars(step, values)

    def evaluation(self, step: int, evaluation: Evaluation, *, rate: float, left: float) -> None:
        """Write measures of the test set, and say the main ones in one line."""
        present = {k: v for k, v in evaluation.measures.items() if v is not None}
        self.board.scalars(step, {place_in_group(name): value for name, value in present.items()})
        parts = {"PSNR hard": f"{present['psnr_hard']:.2f} dB"}
        if "psnr_soft" in present:
            parts["PSNR soft"] = f"{present['psnr_soft']:.2f} dB"
        parts["use"] = f"{100 * present['use_hard']:.1f} %"
        self.terminal.show(parts)
        words = [f"{name.removeprefix('PSNR ')} {value}" for name, value in parts.items()]
        words.append(f"perplexity {present['perplexity_hard']:.0f}")
        if step and math.isfinite(left):
            words.append(f"{rate:.1f} steps/s, {show_clock(left)} left")
        self.terminal.say(f"step {step:>6}  " + "  ".join(words))

    def pictures(self, step: int, pictures: Pictures) -> None:
        """Write a grid: input, hard, and soft where there is one, row by row."""
        rows = [pictures.inputs, pictures.hard]
        self.board.pictures(step, rows if pictures.soft is None else [*rows, pictures.soft])

    def codebook(self, step: int, model: VQVAE, *, images: ImageSet) -> None:
        """Write the codes for the projector, with what they decode to on some images."""
        if self.board.is_open:
            codebook = first_codebook(model.quantizer)
            patches = average_patches(model, images, most=PATCH_IMAGES)
            self.board.codebook(step, codebook, patches)

    def say(self, text: str) -> None:
        """Print a line beside the table."""
        self.terminal.say(text)
