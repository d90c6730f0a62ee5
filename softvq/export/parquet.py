"""Token sets as Hugging Face `datasets`: parquet files, out and in (extra `datasets`)."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from einops import rearrange
from torch import Tensor

from softvq.export.digests import digest_tensors
from softvq.export.manifest import Plan
from softvq.export.tokens import TokenDataset
from softvq.files import replacing
from softvq.models.io import check_format

FORMAT = "softvq-parquet"
FORMAT_VERSION = 1
OWN_KEY = b"softvq"


class ParquetTokens(NamedTuple):
    """Rows of a token set, and what a generator must know of their numbers."""

    rows: datasets.Dataset
    """``key``, ``tokens`` (row by row), ``label`` and soft targets where there are any."""
    facts: dict[str, Any]
    """``vocab_size``, ``specials``, ``grid``, ``codebook_digest`` and the rest of the manifest."""


def write_parquet(tokens: TokenDataset, folder: Path | str) -> Path:
    """Write a token set as parquet, a file a shard, for `datasets.load_dataset` and its kin.

    Args:
        tokens: The set.
        folder: To write to; by custom empty.

    Returns:
        The folder.

    Raises:
        ValueError: If the folder holds parquet files of another set.

    Example:
        >>> import tempfile
        >>> from softvq import HardVQ, export_tokens, load_tokens
        >>> from softvq.models import VQVAE
        >>> model = VQVAE(HardVQ(8, 64, layout="channels_first"))
        >>> images = torch.linspace(-1, 1, 3 * 3 * 8 * 8).reshape(3, 3, 8, 8)
        >>> model.quantizer.start_(model.latents(images))
        >>> done = export_tokens(model.eval(), images, tempfile.mkdtemp())
        >>> folder = write_parquet(load_tokens(done.folder), tempfile.mkdtemp())
        >>> sorted(path.name for path in folder.iterdir())
        ['tokens-00000-of-00001.parquet']
    """
    folder, plan = Path(folder), tokens.manifest.plan
    names = [_name(i, num=plan.num_shards) for i in range(plan.num_shards)]
    strange = sorted({path.name for path in folder.glob("*.parquet")} - {*names})
    if strange:
        raise ValueError(
            f"folder {folder} holds {strange[0]} ({len(strange)} such), which is not of this set: "
            "give an empty folder."
        )
    keys = tokens.keys
    for index, name in enumerate(names):
        items = plan.shard_items(index)
        table = _to_table(tokens, index=index, keys=keys[items.start : items.stop])
        with replacing(folder / name) as beside:
            pq.write_table(table, beside)
    return folder


def read_parquet(
    folder: Path | str, *, verify: bool = True, cache_dir: Path | str | None = None
) -> ParquetTokens:
    """Open parquet files that `write_parquet` wrote.

    Args:
        folder: Of the files.
        verify: Whether to read every file once and compare the SHA-256 of what it holds.
        cache_dir: Where `datasets` keeps the Arrow file that it maps into memory; None is its own.

    Returns:
        Rows as a `datasets.Dataset`, and the facts of the set.

    Raises:
        ValueError: If a file is missing, damaged, altered, or of another set.
        FileNotFoundError: If there is none.
    """
    paths = sorted(Path(folder).glob("tokens-*-of-*.parquet"))
    if not paths:
        raise FileNotFoundError(f"folder {folder} holds no tokens-*-of-*.parquet: no token set.")
    told = [_read_facts(path) for path in paths]
    num = told[0]["num_shards"]
    expected = [_name(i, num=num) for i in range(num)]
    found = [path.name for path in paths]
    if found != expected or any(each["set"] != told[0]["set"] for each in told):
        raise ValueError(
            f"folder {folder} should hold {num} files of one set, {expected[0]} to "
            f"{expected[-1]}; it holds {', '.join(found)}. Write it again."
        )
    if verify:
        for path, each in zip(paths, told, strict=True):
            _check_digest(path, each)
    cache = None if cache_dir is None else str(cache_dir)
    files = [str(path) for path in paths]
    # None is its own default, which its annotation leaves out.
    rows = datasets.Dataset.from_parquet(files, cache_dir=cache)  # pyright: ignore[reportArgumentType]
    assert isinstance(rows, datasets.Dataset), "a list of paths gives one split"
    return ParquetTokens(rows, told[0]["set"])


def _name(index: int, *, num: int) -> str:
    return f"tokens-{index:05d}-of-{num:05d}.parquet"


def _features(plan: Plan) -> datasets.Features:
    length = torch.Size(plan.grid).numel()

    def many(kind: str) -> datasets.List:
        return datasets.List(datasets.List(datasets.Value(kind), plan.soft_top), length)

    found: dict[str, Any] = {
        "key": datasets.Value("string"),
        "tokens": datasets.List(datasets.Value(plan.dtype), length),
    }
    if plan.has_labels:
        found["label"] = datasets.Value("int64")
    if plan.soft_top:
        found |= {"soft_indices": many(plan.dtype), "soft_weights": many("float32")}
    return datasets.Features(found)


def _to_table(tokens: TokenDataset, *, index: int, keys: list[str]) -> pa.Table:
    plan = tokens.manifest.plan
    stored = tokens.shard_tensors(index)
    held = {"tokens": rearrange(stored["tokens"], "n ... -> n (...)")}
    if plan.has_labels:
        held["label"] = stored["labels"]
    if plan.soft_top:
        for name in ("soft_indices", "soft_weights"):
            held[name] = rearrange(stored[name], "n ... m -> n (...) m")
    schema = _features(plan).arrow_schema
    columns = {"key": pa.array(keys, pa.string())}
    columns |= {name: _to_array(each) for name, each in held.items()}
    facts = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "shard": index,
        "num_shards": plan.num_shards,
        "digest": _digest(keys, held),
        "set": {**asdict(plan), "job": plan.job, "num_classes": tokens.num_classes},
    }
    metadata = {**(schema.metadata or {}), OWN_KEY: json.dumps(facts).encode()}
    return pa.table(columns, schema=schema.with_metadata(metadata))


def _to_array(tensor: Tensor) -> pa.Array:
    """Nested lists of fixed lengths, as long as the tensor's axes behind the first."""
    array = pa.array(tensor.contiguous().flatten().numpy())
    for size in reversed(tensor.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array


def _to_tensor(column: pa.ChunkedArray, *, num: int) -> Tensor:
    array = column.combine_chunks()
    sizes = []
    while pa.types.is_fixed_size_list(array.type):
        sizes.append(array.type.list_size)
        array = array.flatten()
    return torch.from_numpy(array.to_numpy(zero_copy_only=False).copy()).reshape(num, *sizes)


def _digest(keys: list[str], held: dict[str, Tensor]) -> str:
    names = torch.frombuffer(bytearray(json.dumps(keys).encode()), dtype=torch.uint8)
    return digest_tensors({"keys": names, **held})


def _read_facts(path: Path) -> dict[str, Any]:
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (pa.ArrowInvalid, OSError) as error:
        raise _damaged(path, str(error)) from error
    if OWN_KEY not in metadata:
        raise ValueError(f"path {path} was not written by softvq: its schema says nothing of it.")
    facts = json.loads(metadata[OWN_KEY])
    check_format(path, facts, name=FORMAT, version=FORMAT_VERSION)
    return facts


def _check_digest(path: Path, facts: dict[str, Any]) -> None:
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise _damaged(path, str(error)) from error
    held = {
        name: _to_tensor(table[name], num=len(table))
        for name in table.column_names
        if name != "key"
    }
    found = _digest(table["key"].to_pylist(), held)
    if found != facts["digest"]:
        raise _damaged(path, f"its rows should have SHA-256 {facts['digest']}, they have {found}")


def _damaged(path: Path, why: str) -> ValueError:
    size = path.stat().st_size
    return ValueError(f"path {path} ({size} bytes) is damaged: {why}. Write it again.")
