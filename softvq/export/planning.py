"""What an export will be, settled before the first shard: `make_plan`."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from softvq.export.codebook import Codebook
from softvq.export.indices import IndexLayout, lay_indices
from softvq.export.manifest import Plan
from softvq.export.pictures import Pictures
from softvq.export.soft import SoftTargets
from softvq.export.source import encode
from softvq.export.vocabulary import narrowest_dtype, number_specials
from softvq.nn import Arrangement


def list_keys(keys: Sequence[str]) -> str:
    r"""Keys as a file holds them: one JSON text a line, whatever is in them.

    Example:
        >>> list_keys(["a/1.png"])
        '"a/1.png"\n'
    """
    return "".join(f"{json.dumps(key)}\n" for key in keys)


def settle_temperature(model: Any, soft: SoftTargets | None) -> SoftTargets | None:  # noqa: ANN401
    """Soft targets with a temperature: the one asked for, or the quantizer's own.

    Raises:
        ValueError: If the model gives no latents, or there is no temperature.
    """
    if soft is None:
        return None
    if not hasattr(model, "latents"):
        raise ValueError(
            f"soft targets need latents; {type(model).__name__} gives indices alone. Use a "
            "softvq.models.VQVAE."
        )
    if soft.temperature is not None:
        return soft
    own = getattr(model.quantizer, "temperature", None)
    if own is None:
        raise ValueError(
            f"soft.temperature is None and {type(model.quantizer).__name__} has none of its own: "
            "give a number, in units of squared distance."
        )
    return replace(soft, temperature=float(own))


def make_plan(
    model: Any,  # noqa: ANN401
    pictures: Pictures,
    *,
    codebook: Codebook,
    specials: Iterable[str],
    soft: SoftTargets | None,
    shard_size: int,
) -> Plan:
    """Everything that the manifest will say, but for the files.

    Args:
        model: In eval mode.
        pictures: What to encode; the first is, to learn the grid.
        codebook: Of the model.
        specials: Names of special tokens.
        soft: With a temperature, or None.
        shard_size: Items in a file.

    Raises:
        ValueError: For specials that are not different names, more soft codes than there are, or
            tokens whose last axes are not the indices of a vector.
    """
    layout = lay_indices(model, [len(each) for each in codebook.codebooks])
    first = pictures.read(0, 1)
    numbers = number_specials(specials, num_codes=codebook.num_codes)
    if soft is not None and soft.top > codebook.num_codes:
        raise ValueError(f"soft.top is {soft.top}; the codebook has {codebook.num_codes} codes.")
    assert codebook.source_digest is not None, "take_codebook gives one"
    grid = tuple(encode(model, first.images, num_codes=codebook.num_codes).tokens.shape[1:])
    axes = len(layout.tail)
    if grid[len(grid) - axes :] != layout.tail or len(grid) < axes:
        raise ValueError(
            f"the model has {len(codebook.codebooks)} codebooks: the indices of a vector, "
            f"{layout.tail}, must be the last axes of its tokens; got a grid of {grid}."
        )
    if soft is not None and not _is_plain(model, layout):
        raise ValueError(
            "soft targets need distances to the codes themselves: one codebook, with no scale, "
            "projection or sphere around it. Leave them out."
        )
    return Plan(
        dataset=pictures.name,
        num_items=len(pictures),
        keys_digest=hashlib.sha256(list_keys(pictures.keys).encode()).hexdigest(),
        image_size=tuple(first.images.shape[2:]),
        image_range=codebook.image_range,
        downsampling=codebook.downsampling,
        grid=grid,
        dtype=narrowest_dtype(codebook.num_codes + len(numbers)),
        num_codes=codebook.num_codes,
        specials=numbers,
        vocab_size=codebook.num_codes + len(numbers),
        has_labels=first.labels is not None,
        soft_top=0 if soft is None else soft.top,
        soft_temperature=None if soft is None else soft.temperature,
        codebook_digest=codebook.digest,
        model_digest=codebook.source_digest,
        shard_size=shard_size,
        index_axes=axes,
        codes_per_index=layout.codes,
        index_codebooks=layout.books,
    )


def _is_plain(model: nn.Module, layout: IndexLayout) -> bool:
    return not layout.tail and not any(isinstance(each, Arrangement) for each in model.modules())
