"""What a study of priors measures: FD-VGG16 of samples, and how many codes they hold.

A distance takes minutes, so it is kept in a file beside what it is of, and taken from there as long
as that is the same.
"""

import json
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from eval.distances import BATCH, Distances
from eval.storage import write_json
from softvq.export import TokenDataset
from softvq.functional.diagnostics import perplexity
from softvq.models import VQVAE
from train.prior.pictures import decode

Facts = dict[str, Any]


def count_codes(tokens: Int[Tensor, "n ..."], test: TokenDataset) -> Facts:
    """Share of codes among samples, and among as many test items.

    Args:
        tokens: Codes of samples.
        test: Items of the test pictures.
    """
    few = torch.arange(min(len(tokens), len(test)))
    real = test.batch(few).tokens
    return {
        "samples": len(tokens),
        "codes_emitted": len(tokens.unique()) / test.num_codes,
        "codes_of_test": len(real.unique()) / test.num_codes,
        "perplexity_emitted": _find_perplexity(tokens),
        "perplexity_of_test": _find_perplexity(real),
    }


def measure_samples(
    tokens: Int[Tensor, "n ..."], model: VQVAE, *, distances: Distances, path: Path, asked: Facts
) -> Facts:
    """FD-VGG16 of samples and of reconstructions, each against the first test pictures.

    Args:
        tokens: Codes of samples.
        model: What decodes them.
        distances: To the test pictures.
        path: File to keep the figures in.
        asked: What they are of, as JSON.
    """
    held = _recall(path, asked)
    if held is not None:
        return held
    test = distances.images.test
    count = min(len(tokens), len(test))
    made = decode(tokens[:count], model, size=test.size)
    found = {
        "fd_vgg16": distances.of_pictures(made.split(BATCH), count=count),
        "fd_vgg16_reconstructions": distances.of_reconstructions(model, count=count),
    }
    if found["fd_vgg16"] is not None:  # what could not be had may be there next time
        _keep(path, asked, found)
    return found


def measure_real(*, samples: int, distances: Distances, path: Path, data: str) -> float | None:
    """Training pictures against test pictures: what no generator needs to beat.

    Args:
        samples: How many are drawn of each generator.
        distances: To the test pictures.
        path: File to keep the figure in.
        data: Names of the pictures.
    """
    count = min(samples, len(distances.images.test), len(distances.images.train))
    asked = {"data": data, "count": count}
    held = _recall(path, asked)
    if held is not None:
        return held
    found = distances.of_training(count=count)
    if found is not None:
        _keep(path, asked, found)
    return found


def _recall(path: Path, asked: Facts) -> Any:  # noqa: ANN401 - figures as they were kept
    if path.exists() and (held := json.loads(path.read_text()))["of"] == asked:
        return held["found"]
    return None


def _keep(path: Path, asked: Facts, found: Facts | float) -> None:
    write_json(path, {"of": asked, "found": found})


def _find_perplexity(tokens: Tensor) -> float:
    return perplexity(tokens.flatten().bincount()).item()
