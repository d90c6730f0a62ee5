"""The measures of one file, with the time and the memory that they took."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from eval.columns import COLUMNS
from eval.conditions import group_conditions
from eval.memory import read_memory, reset_peak
from softvq.data import ImageSet
from softvq.models import VQVAE, load_model
from softvq.models.io import check_format, load_strictly, read_tensors
from train.build import build_model
from train.checkpoint import FORMAT, FORMAT_VERSION, read_state
from train.config import from_json
from train.evaluate import Evaluation, evaluate


class Measured(NamedTuple):
    """An evaluation, and what it took: seconds, and growth of the peak memory in MiB.

    ``processor`` are the seconds that its threads were at work, all together: on busy cores the
    other figure says more about them than about this.
    """

    evaluation: Evaluation
    seconds: float
    processor: float
    growth: float


def open_model(path: Path, images: ImageSet) -> VQVAE:
    """Return the model of a checkpoint of a run, or of a file of `softvq.models.save_model`.

    Args:
        path: The file.
        images: Pictures of the channels and size that it was trained on.

    Raises:
        ValueError: If the file is neither, cut short, or of a newer version.
        FileNotFoundError: If there is none.
    """
    config, tensors = read_tensors(path)
    if config.get("format") != FORMAT:
        return load_model(path)
    check_format(path, config, name=FORMAT, version=FORMAT_VERSION)
    model = build_model(from_json(read_state(path)["config"]), images)
    held = {
        name.removeprefix("model."): tensor
        for name, tensor in tensors.items()
        if name.startswith("model.")
    }
    load_strictly(model, held, path=path)
    return model


def measure_model(model: VQVAE, images: ImageSet) -> Measured:
    """Measure a model on every picture of a set, all but what image nets say.

    Args:
        model: Unwrapped.
        images: The set, at best one that training never saw.

    Returns:
        The measures; seconds and memory are those of this process, model and pictures beforehand
        not counted. Where the system does not tell of memory, the growth is NaN.
    """
    reset_peak()
    before, begin, work = read_memory("VmRSS"), time.perf_counter(), time.process_time()
    found = evaluate(model, images)
    return Measured(
        found,
        seconds=time.perf_counter() - begin,
        processor=time.process_time() - work,
        growth=read_memory("VmHWM") - before,
    )


def describe_measured(measured: Measured, *, images: ImageSet) -> Iterator[str]:
    """Yield the lines that a person reads: measures, what they were taken under, what they took.

    Args:
        measured: Of `measure_model`.
        images: The set.
    """
    found = measured.evaluation
    yield f"{images.name}, {len(images):,} pictures"
    for column in COLUMNS:
        value = found.measures.get(column.measure)
        if value is not None:
            kind = "soft" if column.soft else "hard"
            yield f"  {kind} {column.title:<24} {column.scale * value:.{column.decimals}f}"
    yield "What the figures were taken under"
    for row in group_conditions([("model", found.conditions, found.missing)]):
        yield f"  {row.describe()}"
    yield (
        f"{measured.seconds:.1f} s with {torch.get_num_threads()} threads, "
        f"{measured.processor:.1f} s of processor time; "
        f"memory grew by {measured.growth:.0f} MiB at most"
    )
