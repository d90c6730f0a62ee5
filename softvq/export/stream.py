"""Tokens as one flat file of numbers, as nanoGPT and its kin read them."""

import json
from pathlib import Path
from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor

from softvq.checks import choose
from softvq.export.tokens import TokenDataset
from softvq.export.vocabulary import DTYPES, narrowest_dtype
from softvq.files import replacing

FORMAT = "softvq-stream"
FORMAT_VERSION = 1


class Stream(NamedTuple):
    """A stream on disk: ``numpy.memmap(path, dtype=dtype, mode="r")`` reads it."""

    path: Path
    dtype: str
    length: int
    """Numbers in the file."""
    item_length: int
    """Numbers of an item, its start token included."""


def write_stream(tokens: TokenDataset, path: Path | str, *, start: str | None = None) -> Stream:
    """Write all tokens of a set behind one another, item by item, row by row, little-endian.

    The indices of a vector, where it has several, follow one another.

    Beside ``train.bin`` comes ``train.bin.json``, which tells type, vocabulary and length.

    Args:
        tokens: The set.
        path: File to write; by custom ``train.bin``.
        start: Name of the special token that begins every item; None for none.

    Returns:
        Where it is and how to read it: uint16, or uint32 where the vocabulary needs it.

    Raises:
        ValueError: If there is no such special token.
    """
    specials = tokens.specials
    lead = []
    if start is not None:
        if not specials:
            raise ValueError(f"start is {start!r}; the set has no special tokens.")
        lead = [specials[choose("start", start, specials)]]
    dtype = narrowest_dtype(tokens.vocab_size, least="uint16")
    length = torch.Size(tokens.grid).numel() + len(lead)
    path = Path(path)
    facts = path.with_name(f"{path.name}.json")
    with replacing(path) as beside, open(beside, "wb") as file:
        for index in range(len(tokens.manifest.shards)):
            stored = tokens.shard_tokens(index).to(torch.int64)
            rows = rearrange(stored, "n ... -> n (...)")
            start_column = torch.tensor(lead, dtype=torch.int64).expand(len(rows), -1)
            file.write(_to_bytes(torch.cat([start_column, rows], dim=1), dtype=dtype))
        facts.unlink(missing_ok=True)  # a kill between the two must not pair it with another stream
    stream = Stream(path, dtype, len(tokens) * length, length)
    told = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "dtype": dtype,
        "length": stream.length,
        "item_length": length,
        "start": start,
        "vocab_size": tokens.vocab_size,
        "num_codes": tokens.num_codes,
        "specials": specials,
        "grid": tokens.grid,
        "codes_per_index": tokens.codes_per_index,
        "codebook_digest": tokens.manifest.plan.codebook_digest,
    }
    with replacing(facts) as beside:
        beside.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return stream


def _to_bytes(numbers: Tensor, *, dtype: str) -> bytes:
    """Little-endian on any machine, without numpy."""
    width = DTYPES[dtype].itemsize
    shifts = torch.arange(0, 8 * width, 8)
    parts = (numbers[..., None] >> shifts) & 0xFF
    return bytes(parts.to(torch.uint8).flatten().untyped_storage())
