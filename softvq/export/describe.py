"""What files of exports tell about themselves, for `softvq info`."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from softvq.export.codebook import FACTS, load_codebook
from softvq.export.manifest import FORMAT, FORMAT_VERSION, MANIFEST, Manifest, read_manifest
from softvq.models.info import Facts, describe_codebook, describe_counts
from softvq.nn.accounting import entropy_bits


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
    if num == 1:
        held = describe_codebook(tensors["codebook"])
        held |= describe_counts(tensors.get("counts", torch.zeros(1)))
    else:
        held = _describe_several(tensors, num=num)
    return {
        "codebooks": num,
        **held,
        "vocabulary": config["vocab_size"],
        "specials": _join(config["specials"]),
        "normalized": str(config["normalized"]),
        "codebook digest": config["codebook_digest"],
        **{name.replace("_", " "): _tell(config[name]) for name in FACTS},
    }


def _describe_several(tensors: dict[str, Tensor], *, num: int) -> Facts:
    """Each fact of the codebooks as a list, in their order."""
    facts = [
        describe_codebook(tensors[f"codebook.{i}"])
        | describe_counts(tensors.get(f"counts.{i}", torch.zeros(1)))
        for i in range(num)
    ]
    names = [name for name in facts[0] if name != "distinct means"]
    return {name: ", ".join(show(each.get(name)) for each in facts) for name in names}


def show(value: str | float | None) -> str:
    """A fact as people read it.

    Example:
        >>> show(10.0), show(1 / 3), show(65536)
        ('10', '0.3333', '65,536')
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


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
    codes = plan.codes_per_index or (plan.num_codes,)
    positions = math.prod(plan.grid) // math.prod(plan.index_tail)
    bits = math.fsum(math.log2(each) for each in codes)
    soft = f"{plan.soft_top} codes a token at T = {plan.soft_temperature}"
    return {
        "kind": "token set",
        "format": f"{FORMAT} {json.dumps(FORMAT_VERSION)}",
        "bytes": sum(each.bytes for each in manifest.shards),
        "items": plan.num_items,
        "grid": " x ".join(map(str, plan.grid)),
        "codes (K)": plan.num_codes,
        "indices per token": len(codes),
        "codes of each index": ", ".join(map(str, codes)) if len(codes) > 1 else None,
        "bits per token": bits,
        "bits per item": bits * positions,
        **_describe_entropy(folder, manifest, positions=positions),
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


def _describe_entropy(folder: Path, manifest: Manifest, *, positions: int) -> Facts:
    """Bits at the frequencies in the set, of each index by itself; none if they were not counted.

    Of indices that share a codebook the counts are of all of them together.
    """
    path, books = folder / manifest.codebook.file, manifest.plan.index_codebooks
    counts = load_codebook(path).counts if path.is_file() else None
    if counts is None:
        return {}
    if max(books, default=0) >= len(counts):
        raise ValueError(
            f"manifest: index_codebooks names codebook {max(books)}; {path} holds {len(counts)}."
        )
    parts = [entropy_bits(counts[book]) for book in books or range(len(counts))]
    shared = len(set(books)) < len(books)
    facts: Facts = {"entropy bits per token": math.fsum(parts)}
    if books:
        facts["entropy bits per item"] = math.fsum(parts) * positions
    if len(parts) > 1:
        name = "entropy bits of each index" + (", those of a codebook together" if shared else "")
        facts[name] = ", ".join(f"{each:.4g}" for each in parts)
    return facts


def _tell(value: object) -> str | int | None:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return value if isinstance(value, int) else None if value is None else str(value)


def _join(values: Any) -> str | None:  # noqa: ANN401 - a mapping out of JSON
    return ", ".join(f"{name} = {value}" for name, value in values.items()) or None
