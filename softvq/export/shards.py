"""One shard of a token set: written whole, and checked against what it says of itself."""

from pathlib import Path

import torch
from torch import Tensor

from softvq.export.digests import digest_file, digest_tensors
from softvq.export.manifest import FileEntry, Plan
from softvq.models.io import check_format, read_tensors, write_tensors

FORMAT = "softvq-tokens-shard"
FORMAT_VERSION = 1


def write_shard(folder: Path, plan: Plan, *, index: int, tensors: dict[str, Tensor]) -> None:
    """Write one shard.

    Args:
        folder: Of the set.
        plan: Of the set.
        index: Which shard.
        tensors: "tokens", "source_digests", "labels", "soft_indices", "soft_weights".
    """
    items = plan.shard_items(index)
    header = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "job": plan.job,
        "shard": index,
        "first": items.start,
        "count": len(items),
        "digest": digest_tensors(tensors),
    }
    write_tensors(folder / plan.shard_name(index), tensors, header)


def is_whole_shard(folder: Path, plan: Plan, *, index: int) -> bool:
    """Whether a shard of this export is there and its tensors have the SHA-256 that it names.

    Raises:
        ValueError: If it belongs to another export.
    """
    path = folder / plan.shard_name(index)
    if not path.is_file():
        return False
    try:
        header, tensors = read_tensors(path)
    except ValueError:
        return False  # cut short or damaged: it is made anew
    check_format(path, header, name=FORMAT, version=FORMAT_VERSION)
    if header.get("job") != plan.job:
        raise ValueError(
            f"path {path} belongs to another export (other model, data, specials or options). "
            "Give another folder, or remove that one."
        )
    return "source_digests" in tensors and header.get("digest") == digest_tensors(tensors)


def describe_entry(path: Path) -> FileEntry:
    """The manifest's entry of a file.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a"
        >>> _ = path.write_bytes(b"abc")
        >>> describe_entry(path).bytes
        3
    """
    return FileEntry(file=path.name, bytes=path.stat().st_size, sha256=digest_file(path))


def check_entry(folder: Path, entry: FileEntry, *, verify: bool) -> None:
    """Raise unless a file of the set is the one that the manifest names.

    Args:
        folder: Of the set.
        entry: What is expected.
        verify: Whether to read it and compare its SHA-256, not its size alone.

    Raises:
        ValueError: Which file, what was expected and what was found.
    """
    path = folder / entry.file
    if not path.is_file():
        raise ValueError(
            f"shard or file {path} is missing: expected {entry.bytes} bytes. {_REMEDY}"
        )
    size = path.stat().st_size
    if size != entry.bytes:
        how = "truncated" if size < entry.bytes else "too long"
        raise ValueError(f"{path} is {how}: expected {entry.bytes} bytes, found {size}. {_REMEDY}")
    found = digest_file(path) if verify else entry.sha256
    if found != entry.sha256:
        raise ValueError(
            f"{path} was altered: expected SHA-256 {entry.sha256}, found {found}. {_REMEDY}"
        )


def open_shard(path: Path, *, plan: Plan) -> dict[str, Tensor]:
    """The tensors of a shard, mapped from the file: what is not read takes no memory.

    Where there are no labels they are -1, and soft targets of no code stand for none.

    Raises:
        ValueError: If it was not written for this plan: another export, or an edited manifest.
    """
    header, tensors = read_tensors(path)
    check_format(path, header, name=FORMAT, version=FORMAT_VERSION)
    if header.get("job") != plan.job:
        raise ValueError(
            f"shard {path} was not written for what the manifest says: one of both is of another "
            f"export, or was edited. {_REMEDY}"
        )
    num = len(tensors["tokens"])
    shape = (num, *plan.grid, 0)
    missing = {
        "labels": torch.full((num,), -1),
        "soft_indices": torch.empty(shape, dtype=tensors["tokens"].dtype),
        "soft_weights": torch.empty(shape),
    }
    return {**missing, **tensors}


_REMEDY = "Take another copy, or export again into the folder: whole shards are kept."
