"""Writing a token set: shard by shard, each whole or not at all, by one process or several."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from softvq.checks import check_count
from softvq.export.codebook import Codebook, save_codebook
from softvq.export.digests import digest_tensors
from softvq.export.indices import apart, check_each
from softvq.export.manifest import (
    CODEBOOK,
    KEYS,
    MANIFEST,
    Manifest,
    Plan,
    read_manifest,
    write_manifest,
)
from softvq.export.pictures import Pictures
from softvq.export.planning import list_keys, make_plan, settle_temperature
from softvq.export.recheck import refuse_changed
from softvq.export.shards import describe_entry, is_whole_shard, open_shard, write_shard
from softvq.export.soft import SoftTargets, top_codes
from softvq.export.source import check_eval, encode, take_codebook
from softvq.export.vocabulary import DTYPES
from softvq.files import remove_remains, replacing

Progress = Callable[[int, int], None]
WRITTEN = ("tokens-*", CODEBOOK, KEYS, MANIFEST)
"""Files of a set; what killed processes left of them is removed once the set is whole."""


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """How a set is cut and who writes what; the tokens do not depend on who.

    Attributes:
        batch_size: Items that are encoded at once.
        shard_size: Items in a file.
        process: Which of the processes this is, from 0; None asks torch.distributed, or torchrun.
        processes: How many write into the folder, each its own shards; None asks
            torch.distributed, or torchrun, and is 1 without either.
    """

    batch_size: int = 64
    shard_size: int = 16384
    process: int | None = None
    processes: int | None = None

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        check_count("shard_size", self.shard_size)
        if (self.process is None) != (self.processes is None):
            raise ValueError("process and processes must both be given, or neither.")
        if self.process is not None and self.processes is not None:
            check_count("processes", self.processes)
            if check_count("process", self.process, least=0) >= self.processes:
                raise ValueError(
                    f"process must be in [0, {self.processes}), the processes; got {self.process}."
                )

    def own_shards(self, num_shards: int) -> range:
        """The shards that this process writes.

        Example:
            >>> list(Sharding(process=1, processes=3).own_shards(8))
            [1, 4, 7]
        """
        process, processes = self.process, self.processes
        if process is None or processes is None:
            process, processes = _find_place()
        return range(process, num_shards, processes)


def _find_place() -> tuple[int, int]:
    """Which process this is, of how many."""
    if not dist.is_available():
        return 0, 1
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    if dist.is_torchelastic_launched():  # by torchrun, with no group joined: none is needed here
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return 0, 1


class TokenExport(NamedTuple):
    """What a call of `export_tokens` did."""

    folder: Path
    written: int
    """Shards that this call wrote."""
    kept: int
    """Shards of this process that were there, whole."""
    missing: int
    """Shards that other processes have yet to write; 0 means the set is whole and can be read."""


def export_tokens(
    model: Any,  # noqa: ANN401 - any with encode
    dataset: Any,  # noqa: ANN401 - any with pictures
    folder: Path | str,
    *,
    specials: Iterable[str] = (),
    soft: SoftTargets | None = None,
    sharding: Sharding | None = None,
    reread: bool = True,
    progress: Progress | None = None,
) -> TokenExport:
    """Encode a data set and write its tokens; run again, it goes on where it stopped.

    Same model, data and options give the same bytes, whatever the number of processes. The last
    process that ends writes the manifest, without which the folder cannot be read as a set.

    Args:
        model: In eval mode: a `softvq.models.VQVAE`, or any module whose ``encode(images)`` gives
            codes (B, ...), the indices of a vector last where it has several.
        dataset: As for `softvq.export.pictures.Pictures`: an ImageSet, or a map-style torch data
            set without random augmentation.
        folder: To write to; by custom empty, or one where the same export stopped.
        specials: Names of special tokens; they get the numbers K, K + 1, ...
        soft: Also keep the nearest codes and their weights.
        sharding: Sizes of batch and shard, and which process this is.
        reread: Whether the pictures of shards that are there already are read again, to see that
            none has changed; that takes the time of reading, not of encoding.
        progress: Called with items done and items in all of this process, after each batch.

    Returns:
        What was written.

    Raises:
        ValueError: In training mode, with random augmentation, for a file that is no picture, for
            latents that are not finite, where the folder holds another export, or where a picture
            or label has changed since its shard was written.
        OSError: If the disk is full; what was whole by then is kept.

    Example:
        >>> import tempfile
        >>> from softvq import HardVQ, load_tokens
        >>> from softvq.models import VQVAE
        >>> model = VQVAE(HardVQ(8, 64, layout="channels_first"))
        >>> images = torch.linspace(-1, 1, 3 * 3 * 8 * 8).reshape(3, 3, 8, 8)
        >>> model.quantizer.start_(model.latents(images))
        >>> done = export_tokens(model.eval(), images, tempfile.mkdtemp(), specials=["bos"])
        >>> tokens = load_tokens(done.folder)
        >>> len(tokens), tokens.grid, tokens.vocab_size
        (3, (2, 2), 9)
    """
    check_eval(model)
    pictures, sharding, folder = Pictures(dataset), sharding or Sharding(), Path(folder)
    codebook = take_codebook(model)
    soft = settle_temperature(model, soft)
    plan = make_plan(
        model,
        pictures,
        codebook=codebook,
        specials=specials,
        soft=soft,
        shard_size=sharding.shard_size,
    )
    _refuse_other(folder, plan)
    folder.mkdir(parents=True, exist_ok=True)
    own = sharding.own_shards(plan.num_shards)
    todo = [index for index in own if not is_whole_shard(folder, plan, index=index)]
    total = sum(len(plan.shard_items(index)) for index in own)
    done = 0
    for index in own:
        parts = []
        for items in _cut(plan.shard_items(index), size=sharding.batch_size):
            if index in todo:
                parts.append(_encode(model, pictures, codebook, plan=plan, items=items))
            elif reread:
                refuse_changed(folder, plan, pictures, index=index, items=items)
            done += len(items)
            if progress is not None:
                progress(done, total)
        if parts:
            tensors = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
            is_whole_shard(folder, plan, index=index)  # raises if another export wrote meanwhile
            write_shard(folder, plan, index=index, tensors=tensors)
    missing = _finish(folder, plan, codebook, keys=pictures.keys)
    return TokenExport(folder, len(todo), len(own) - len(todo), missing)


def _cut(items: range, *, size: int) -> list[range]:
    """Batches begin where their shard does, so that they are the same for any process."""
    return [items[first : first + size] for first in range(0, len(items), size)]


def _encode(
    model: Any,  # noqa: ANN401
    pictures: Pictures,
    codebook: Codebook,
    *,
    plan: Plan,
    items: range,
) -> dict[str, Tensor]:
    batch = pictures.read(items.start, items.stop)
    try:
        encoded = encode(model, batch.images, num_codes=plan.num_codes)
    except ValueError as error:
        first, last = pictures.keys[items.start], pictures.keys[items.stop - 1]
        raise ValueError(f"{error} In items {first} to {last} of {plan.dataset}.") from error
    if tuple(encoded.tokens.shape[1:]) != plan.grid:
        raise ValueError(
            f"all items must have the grid of the first, {plan.grid}; got "
            f"{tuple(encoded.tokens.shape[1:])} in {pictures.keys[items.start]} and after."
        )
    told = f"tokens of the model, items {items.start} to {items.stop - 1}"
    check_each(told, encoded.tokens, tail=plan.index_tail, codes=plan.codes_per_index)
    dtype = DTYPES[plan.dtype]
    tensors = {"tokens": encoded.tokens.to(dtype), "source_digests": batch.digests}
    if plan.has_labels:
        assert batch.labels is not None, "a set has labels for all or for none"
        tensors["labels"] = batch.labels
    if plan.soft_top:
        assert encoded.rows is not None, "settle_temperature refuses models without latents"
        soft = SoftTargets(top=plan.soft_top, temperature=plan.soft_temperature)
        codes = codebook.codebook.to(encoded.rows.device)
        top = top_codes(encoded.rows, codes, assigned=encoded.tokens.reshape(-1), soft=soft)
        shape = (*encoded.tokens.shape, plan.soft_top)
        tensors["soft_indices"] = top.indices.reshape(shape).to(dtype)
        tensors["soft_weights"] = top.weights.reshape(shape)
    return tensors


def _is_finished(folder: Path, plan: Plan) -> bool:
    return (folder / MANIFEST).is_file() and read_manifest(folder).plan.job == plan.job


def _refuse_other(folder: Path, plan: Plan) -> None:
    if (folder / MANIFEST).is_file() and not _is_finished(folder, plan):
        raise ValueError(
            f"folder {folder} holds another export (other model, data, specials or options). Give "
            "another folder, or remove that one."
        )


def _finish(folder: Path, plan: Plan, codebook: Codebook, *, keys: Sequence[str]) -> int:
    """Write what belongs to all shards, once all are there; else tell how many are not.

    Two processes that end at once write the same bytes, each file renamed into place as a whole.
    """
    shards = range(plan.num_shards)
    missing = sum(not is_whole_shard(folder, plan, index=index) for index in shards)
    if missing:
        return missing
    counts = [torch.zeros(len(each), dtype=torch.int64) for each in codebook.codebooks]
    largest, sources = -1, []
    for index in shards:
        tensors = open_shard(folder / plan.shard_name(index), plan=plan)
        tokens = tensors["tokens"].to(torch.int64)
        for book, part in zip(plan.index_codebooks, apart(tokens, plan.index_tail), strict=True):
            counts[book] += part.flatten().bincount(minlength=len(counts[book]))
        largest = max(largest, int(tensors["labels"].max()))
        sources.append(tensors["source_digests"])
    told = replace(
        codebook,
        counts=tuple(counts),
        grid=plan.grid,
        dataset=plan.dataset,
        specials=dict(plan.specials),
    )
    save_codebook(told, folder / CODEBOOK)
    with replacing(folder / KEYS) as beside:
        beside.write_text(list_keys(keys), encoding="utf-8")
    manifest = Manifest(
        plan=plan,
        num_classes=largest + 1 if plan.has_labels else None,
        source_digest=digest_tensors({"source_digests": torch.cat(sources)}),
        shards=tuple(describe_entry(folder / plan.shard_name(index)) for index in shards),
        codebook=describe_entry(folder / CODEBOOK),
        keys=describe_entry(folder / KEYS),
    )
    write_manifest(manifest, folder)
    for name in WRITTEN:
        remove_remains(folder, name)
    return 0
