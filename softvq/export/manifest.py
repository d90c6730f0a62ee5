"""The manifest of a token set: what FORMAT.md says, as a frozen object, and its JSON file."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from softvq.export.vocabulary import DTYPES
from softvq.files import blaming, replacing
from softvq.models.io import check_format

FORMAT = "softvq-tokens"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"
CODEBOOK = "codebook.safetensors"
KEYS = "keys.jsonl"
TOLD_LATER = ("index_axes", "codes_per_index", "index_codebooks")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that is known of a token set before the first item is encoded.

    Attributes:
        dataset: Name of the source set.
        num_items: Items.
        keys_digest: SHA-256 of the file of their names.
        image_size: Height and width.
        image_range: What the decoder takes for black and white; None if not known.
        downsampling: Pixels to a token along each side; None if not known.
        grid: Shape of the tokens of an item.
        dtype: Of the tokens: "uint8", "uint16" or "uint32".
        num_codes: K.
        specials: Numbers of the special tokens, from K on.
        vocab_size: K and the specials.
        has_labels: Whether items have classes.
        soft_top: Codes of a soft target; 0 where there are none.
        soft_temperature: Of their weights.
        codebook_digest: SHA-256 of the codes that the tokens stand for.
        model_digest: SHA-256 of the state dict of the model that made them.
        shard_size: Items in a shard; the last may have fewer.
        index_axes: Last axes of the grid that run over the indices of one vector; 0 for one index.
        codes_per_index: K of each of them, row by row; empty in sets of before it was told.
        index_codebooks: Which codebook of the file each is of; empty likewise.
    """

    dataset: str
    num_items: int
    keys_digest: str
    image_size: tuple[int, ...]
    image_range: tuple[float, float] | None
    downsampling: int | None
    grid: tuple[int, ...]
    dtype: str
    num_codes: int
    specials: Mapping[str, int]
    vocab_size: int
    has_labels: bool
    soft_top: int
    soft_temperature: float | None
    codebook_digest: str
    model_digest: str
    shard_size: int
    index_axes: int = 0
    codes_per_index: tuple[int, ...] = ()
    index_codebooks: tuple[int, ...] = ()

    @property
    def job(self) -> str:
        """SHA-256 of the plan: shards of two exports are not mixed.

        What the model says, whose digest is in it, is left out where older sets do not have it.
        """
        told = {name: each for name, each in asdict(self).items() if name not in TOLD_LATER}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    @property
    def index_tail(self) -> tuple[int, ...]:
        """Shape of the indices of one vector."""
        return self.grid[len(self.grid) - self.index_axes :]

    @property
    def num_shards(self) -> int:
        """Files that hold the tokens."""
        return -(-self.num_items // self.shard_size)

    def shard_name(self, index: int) -> str:
        """File of a shard."""
        return f"tokens-{index:05d}.safetensors"

    def shard_items(self, index: int) -> range:
        """Items of a shard."""
        first = index * self.shard_size
        return range(first, min(first + self.shard_size, self.num_items))


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """A file of the set: its name, size and SHA-256."""

    file: str
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A whole token set: its plan and its files.

    Attributes:
        plan: What was exported.
        num_classes: Largest label and one; None without labels.
        source_digest: SHA-256 over the digests of all source items, in order; None in sets that
            were written before there was one.
        shards: In order.
        codebook: The codebook file.
        keys: The file of the items' names.
    """

    plan: Plan
    num_classes: int | None
    source_digest: str | None
    shards: tuple[FileEntry, ...]
    codebook: FileEntry
    keys: FileEntry


def write_manifest(manifest: Manifest, folder: Path) -> Path:
    """Write a manifest, whole or not at all; a folder without one is no token set."""
    content = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "order": "row-major",
        "code_offset": 0,
        **asdict(manifest.plan),
        "num_classes": manifest.num_classes,
        "source_digest": manifest.source_digest,
        "shards": [asdict(each) for each in manifest.shards],
        "codebook": asdict(manifest.codebook),
        "keys": asdict(manifest.keys),
    }
    with replacing(folder / MANIFEST) as beside:
        beside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return folder / MANIFEST


def read_manifest(folder: Path | str) -> Manifest:
    """Read the manifest of a token set.

    Args:
        folder: Of the set.

    Raises:
        ValueError: If the export is not finished, or the manifest is damaged or newer.
        FileNotFoundError: If there is no token set at all.
    """
    path = Path(folder) / MANIFEST
    if not path.is_file():
        shards = sorted(Path(folder).glob("tokens-*.safetensors"))
        if not shards:
            raise FileNotFoundError(f"folder {folder} holds no {MANIFEST}: it is no token set.")
        raise ValueError(
            f"folder {folder} holds {len(shards)} shards and no {MANIFEST}: the export was not "
            "finished. Run it again into the same folder; it goes on where it stopped."
        )
    with blaming(path):
        content = json.loads(path.read_text(encoding="utf-8"))
        check_format(path, content, name=FORMAT, version=FORMAT_VERSION)
        return _parse(content)


def _parse(content: dict[str, Any]) -> Manifest:
    if len([name for name in TOLD_LATER if name in content]) not in (0, len(TOLD_LATER)):
        raise ValueError(f"manifest: {', '.join(TOLD_LATER)} belong together: damaged.")
    here = [
        each.name for each in fields(Plan) if each.name not in TOLD_LATER or each.name in content
    ]
    values = {name: content[name] for name in here}
    for name in ("grid", "image_size", "image_range", *TOLD_LATER[1:]):
        if values.get(name) is not None:
            values[name] = tuple(values[name])
    plan = Plan(**values)
    _check_numbers(content, plan)
    _check_indices(plan)
    shards = tuple(FileEntry(**each) for each in content["shards"])
    manifest = Manifest(
        plan=plan,
        num_classes=content["num_classes"],
        source_digest=content.get("source_digest"),
        shards=shards,
        codebook=FileEntry(**content["codebook"]),
        keys=FileEntry(**content["keys"]),
    )
    _check_kinds(manifest)
    for entry in (*shards, manifest.codebook, manifest.keys):
        if Path(entry.file).name != entry.file:
            raise ValueError(f"manifest names {entry.file!r}, which is not in its own folder.")
    return manifest


def _check_kinds(manifest: Manifest) -> None:
    """Raise unless what no digest speaks for is of the kind that it should be."""
    entries = (*manifest.shards, manifest.codebook, manifest.keys)
    kinds = [
        *(("file", entry.file, (str,)) for entry in entries),
        *(("bytes", entry.bytes, (int,)) for entry in entries),
        *(("sha256", entry.sha256, (str,)) for entry in entries),
        ("num_classes", manifest.num_classes, (int, type(None))),
        ("source_digest", manifest.source_digest, (str, type(None))),
    ]
    for name, value, allowed in kinds:
        negative = type(value) is int and value < 0
        if type(value) not in allowed or negative:
            raise ValueError(f"manifest: {name} should not be {value!r:.80}.")


def _check_numbers(content: dict[str, Any], plan: Plan) -> None:
    size = plan.num_codes + len(plan.specials)
    specials = list(range(plan.num_codes, size))
    sound = {
        "vocab_size": (plan.vocab_size, size),
        "specials": (sorted(plan.specials.values()), specials),
        "order": (content["order"], "row-major"),
        "code_offset": (content["code_offset"], 0),
        "number of shards": (len(content["shards"]), plan.num_shards),
        "dtype": (plan.dtype, plan.dtype if plan.dtype in DTYPES else f"one of {[*DTYPES]}"),
    }
    for name, (found, expected) in sound.items():
        if found != expected:
            raise ValueError(f"manifest: {name} should be {expected}; it is {found}: damaged.")


def _check_indices(plan: Plan) -> None:
    """Raise unless what is told of the indices of a vector fits together."""
    codes, books = plan.codes_per_index, plan.index_codebooks
    if not codes and not books and plan.index_axes == 0:
        return
    whole = all(type(each) is int and each >= 0 for each in (plan.index_axes, *codes, *books))
    if not whole or plan.index_axes > len(plan.grid):
        raise ValueError(
            f"manifest: index_axes {plan.index_axes!r:.80} and codes_per_index {codes!r:.80} "
            "should be whole numbers: damaged."
        )
    expected = math.prod(plan.index_tail)
    if not len(codes) == len(books) == expected or max(codes) != plan.num_codes or min(codes) < 1:
        raise ValueError(
            f"manifest: codes_per_index and index_codebooks should be {expected} numbers each, the "
            f"largest K {plan.num_codes}; they are {codes!r:.80} and {books!r:.80}: damaged."
        )
