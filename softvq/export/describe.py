"""What files of exports tell about themselves, for `softvq info`."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from softvq.export.codebook import FACTS
from softvq.export.manifest import FORMAT, FORMAT_VERSION, MANIFEST, read_manifest
from softvq.models.info import Facts, describe_codebook, describe_counts


def describe_codebook_file(config: dict[str, Any], tensors: dict[str, Tensor]) -> Facts:
    """Facts of a file that `softvq.export_codebook` wrote.

    Args:
        config: Of the file's metadata.
        tensors: Of the file.

    Example:
        >>> config = {"codebooks": [[2, 3]], "vocab_size": 2, "specials": {}, "normalized": False}
        >>> config |= {"codebook_digest": "ab", **dict.fromkeys(FACTS)}
        >>> describe_codebook_file(config, {"codebook": torch.eye(2, 3)})["vocabulary"]
        2
    """
    num = len(config["codebooks"])
    name = "codebook" if num == 1 else "codebook.0"
    counts = tensors.get(name.replace("codebook", "counts"))
    return {
        "codebooks": num,
        **describe_codebook(tensors[name]),
        **describe_counts(torch.zeros(1) if counts is None else counts),
        "vocabulary": config["vocab_size"],
        "specials": _join(config["specials"]),
        "normalized": str(config["normalized"]),
        "codebook digest": config["codebook_digest"],
        **{name.replace("_", " "): _tell(config[name]) for name in FACTS},
    }


def describe_shard(config: dict[str, Any], tensors: dict[str, Tensor]) -> Facts:
    """Facts of one shard of a token set.

    Args:
        config: Of the file's metadata.
        tensors: Of the file.

    Example:
        >>> config = {"shard": 0, "first": 0, "count": 2}
        >>> describe_shard(config, {"tokens": torch.zeros(2, 8, 8, dtype=torch.uint8)})["grid"]
        '8 x 8'
    """
    return {
        "shard": config["shard"],
        "items": f"{config['first']} to {config['first'] + config['count'] - 1}",
        "grid": " x ".join(map(str, tensors["tokens"].shape[1:])),
        "type": str(tensors["tokens"].dtype).removeprefix("torch."),
        "holds": ", ".join(sorted(tensors)),
    }


def is_token_set(path: Path | str) -> bool:
    """Whether this is the folder of a token set, or its manifest.

    Example:
        >>> is_token_set("no-such-folder")
        False
    """
    path = Path(path)
    return (path / MANIFEST).is_file() or (path.name == MANIFEST and path.is_file())


def describe_tokens(path: Path | str) -> Facts:
    """Facts of a token set.

    Args:
        path: Its folder or its manifest.

    Raises:
        ValueError: If the manifest is damaged or newer.
    """
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    manifest = read_manifest(folder)
    plan = manifest.plan
    soft = f"{plan.soft_top} codes a token at T = {plan.soft_temperature}"
    return {
        "kind": "token set",
        "format": f"{FORMAT} {json.dumps(FORMAT_VERSION)}",
        "bytes": sum(each.bytes for each in manifest.shards),
        "items": plan.num_items,
        "grid": " x ".join(map(str, plan.grid)),
        "codes (K)": plan.num_codes,
        "bits per token": math.log2(plan.num_codes),
        "bits per item": math.log2(plan.num_codes) * math.prod(plan.grid),
        "vocabulary": plan.vocab_size,
        "specials": _join(plan.specials),
        "type": plan.dtype,
        "shards": plan.num_shards,
        "classes": manifest.num_classes,
        "soft targets": soft if plan.soft_top else None,
        "dataset": plan.dataset,
        "image size": " x ".join(map(str, plan.image_size)),
        "pixels to a token": plan.downsampling,
        "codebook digest": plan.codebook_digest,
        "model digest": plan.model_digest,
        "source digest": manifest.source_digest,
    }


def _tell(value: object) -> str | int | None:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return value if isinstance(value, int) else None if value is None else str(value)


def _join(values: Any) -> str | None:  # noqa: ANN401 - a mapping out of JSON
    return ", ".join(f"{name} = {value}" for name, value in values.items()) or None
