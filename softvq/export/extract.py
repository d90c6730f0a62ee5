"""`export_codebook`: the codes of a model, and what a token set tells about them, in one file."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from softvq.export.codebook import Codebook, save_codebook
from softvq.export.source import take_codebook
from softvq.export.tokens import TokenDataset
from softvq.export.vocabulary import number_specials


def export_codebook(
    vq_or_model: nn.Module | Codebook,
    path: Path | str,
    *,
    tokens: TokenDataset | None = None,
    counts: Tensor | Sequence[Tensor] | None = None,
    specials: Iterable[str] | None = None,
    grid: tuple[int, ...] | None = None,
    dataset: str | None = None,
) -> Path:
    """Write the codebook of a model: see FORMAT.md.

    Args:
        vq_or_model: A quantizer of softvq, a model that holds some, one of another package that
            `read_codebook` knows, or what that gave.
        path: File to write; by custom it ends in ``.safetensors``.
        tokens: A token set of this codebook: gives counts, specials, grid and data set.
        counts: How often each code was the nearest, int64 (K,), one a codebook.
        specials: Names of special tokens; they get the numbers K, K + 1, ...
        grid: Shape of the tokens of an item.
        dataset: What the codebook was trained on, or counted over.

    Returns:
        The path.

    Raises:
        ValueError: If there is no codebook, it was never placed on data, the token set is of
            another one, or counts do not fit.

    Example:
        >>> import tempfile, torch
        >>> from softvq import HardVQ
        >>> from softvq.export import load_codebook
        >>> vq = HardVQ(8, 4)
        >>> vq.start_(torch.randn(9, 4))
        >>> path = export_codebook(vq, f"{tempfile.mkdtemp()}/codebook.safetensors")
        >>> load_codebook(path).codebook.shape
        torch.Size([8, 4])
    """
    held = vq_or_model if isinstance(vq_or_model, Codebook) else take_codebook(vq_or_model)
    if tokens is not None:
        tokens.check_codebook(held)
        told = tokens.codebook
        held = replace(
            held, counts=told.counts, specials=told.specials, grid=told.grid, dataset=told.dataset
        )
    if counts is not None:
        parts = (counts,) if isinstance(counts, Tensor) else tuple(counts)
        held = replace(held, counts=tuple(each.detach().cpu() for each in parts))
    if specials is not None:
        held = replace(held, specials=number_specials(specials, num_codes=held.num_codes))
    if grid is not None:
        held = replace(held, grid=tuple(grid))
    if dataset is not None:
        held = replace(held, dataset=dataset)
    return save_codebook(held, path)
