"""TensorBoard files of a run: curves in groups, settings, fixed pictures, the codebook as a cloud.

Everything lies in the run's own folder: `tensorboard --logdir` over several runs compares them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from einops import rearrange, repeat
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from train.patches import Patches

# TensorBoard sorts groups by name and shows the first ones open.
GROUPS = {
    ("psnr", "ssim", "ms_ssim", "lpips", "fd", "fid", "rfid", "not_finite"): "quality",
    ("use", "perplexity", "distinct", "bits", "entropy_bits", "dead"): "use",
}
OTHER = "weights"
METRICS = ("quality/psnr_hard", "quality/psnr_soft", "use/use_hard", "use/perplexity_hard")
OVERVIEW = {
    "PSNR": ["Multiline", ["quality/psnr_hard", "quality/psnr_soft"]],
    "codes in use": ["Multiline", ["use/use_hard", "use/use_soft"]],
    "perplexity": ["Multiline", ["use/perplexity_hard", "use/perplexity_soft"]],
    "training loss": ["Multiline", ["loss/total", "loss/reconstruction"]],
}
SPRITE = 16


class Board:
    """TensorBoard files in one folder, or nothing at all.

    Args:
        folder: Of the files; None writes none.
        settings: The run's config as JSON values, for the hparams tab.
    """

    def __init__(self, folder: Path | None, *, settings: Mapping[str, Any]) -> None:
        self._folder = folder
        self._end: Any = None
        with self._naming():
            self._writer = None if folder is None else SummaryWriter(str(folder))
            if self._writer is None:
                return
            self._writer.add_custom_scalars({"overview": OVERVIEW})
            if settings:
                # SummaryWriter.add_hparams would make each run a second run of its own.
                experiment, start, self._end = hparams(flatten(settings), dict.fromkeys(METRICS))
                self._write(experiment)
                self._write(start)

    @property
    def is_open(self) -> bool:
        """Whether anything is written."""
        return self._writer is not None

    def scalars(self, step: int, values: Mapping[str, Tensor | float]) -> None:
        """Write scalars by their full names."""
        if self._writer is not None:
            with self._naming():
                for name, value in values.items():
                    self._writer.add_scalar(name, float(value), step)

    def pictures(self, step: int, rows: list[Tensor]) -> None:
        """Write a grid of uint8 pictures, one row of it for each (P, C, H, W)."""
        if self._writer is not None:
            grid = rearrange(torch.stack(rows), "r p c h w -> c (r h) (p w)")
            with self._naming():
                self._writer.add_image("pictures/input, hard, soft", grid.numpy(), step)

    def codebook(self, step: int, codebook: Tensor, patches: Patches) -> None:
        """Write the codes for the projector, each with its mean decoded patch and its frequency."""
        if self._writer is None or not codebook.isfinite().all():
            return
        times = max(1, SPRITE // patches.means.shape[-1])
        sprites = repeat(patches.means, "k c h w -> k c (h i) (w j)", i=times, j=times)
        sprites = (sprites.expand(-1, 3, -1, -1) + 1) / 2
        rows = [[code, tokens] for code, tokens in enumerate(patches.tokens.tolist())]
        with self._naming():
            self._writer.add_embedding(
                codebook.detach().cpu().float(),
                metadata=rows,
                metadata_header=["code", f"tokens of {patches.images} test images"],
                label_img=sprites,
                global_step=step,
                tag="codebook",
            )

    def close(self, *, finished: bool) -> None:
        """Close the files; a run that finished is marked so among the settings."""
        if self._writer is None:
            return
        with self._naming():
            if finished and self._end is not None:
                self._write(self._end)
            self._writer.close()

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Let errors of the system name the folder: they come from a thread that knows none."""
        try:
            yield
        except OSError as error:
            raise OSError(
                error.errno,
                f"curves cannot be written ({error.strerror}); the last checkpoint is as it was",
                str(self._folder),
            ) from error

    def _write(self, summary: Any) -> None:  # noqa: ANN401 - a protocol buffer
        if self._writer is not None and self._writer.file_writer is not None:
            self._writer.file_writer.add_summary(summary)


def place_in_group(measure: str) -> str:
    """The full name of a test measure, so that what is read together stands together.

    Example:
        >>> place_in_group("psnr_hard"), place_in_group("entropy_bits_hard")
        ('quality/psnr_hard', 'use/entropy_bits_hard')
        >>> place_in_group("not_finite_hard")
        'quality/not_finite_hard'
        >>> place_in_group("entropy")
        'weights/entropy'
    """
    for starts, group in GROUPS.items():
        if measure.startswith(starts):
            return f"{group}/{measure}"
    return f"{OTHER}/{measure}"


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str | float | bool]:
    """Nested settings by full names, as the hparams tab takes them; what is None is left out.

    Example:
        >>> flatten({"optim": {"steps": 4, "rates": [1, 2]}, "path": None})
        {'optim.steps': 4, 'optim.rates': '[1, 2]'}
    """
    flat: dict[str, str | float | bool] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        elif value is not None:
            plain = isinstance(value, str | int | float)
            flat[f"{prefix}{name}"] = value if plain else str(value)
    return flat
