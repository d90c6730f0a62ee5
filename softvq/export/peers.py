"""Codebooks out of the state dicts of other packages, by the names of their keys.

What is known: softvq; vector-quantize-pytorch (VectorQuantize with heads, ResidualVQ,
GroupedResidualVQ, SimVQ); taming-transformers, latent-diffusion, diffusers and transformers'
Chameleon, Emu3 and Janus (VectorQuantizer, and taming's Gumbel one); transformers' EnCodec and DAC,
whose stages come in order (DAC compares directions: metric="cosine"). Never a pickle: a mapping of
tensors, or a safetensors file.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from softvq.export.codebook import Codebook
from softvq.files import holding_interrupts

State = Mapping[str, Tensor]


class _Kind(NamedTuple):
    """How a package names its codes, and the codebooks (K, D) that one such tensor holds."""

    package: str
    pattern: re.Pattern[str]
    take: Callable[[State, str], list[Tensor]]


def _take_one(state: State, key: str) -> list[Tensor]:
    return [state[key]]


def _take_heads(state: State, key: str) -> list[Tensor]:
    if f"{key.removesuffix('embed')}codebook_mean" in state:
        raise ValueError(
            f"state: {key} has affine_param: its codes depend on the statistics of the last batch. "
            "Give key= of a tensor, or export from the module that trained."
        )
    return list(state[key])


def _take_simvq(state: State, key: str) -> list[Tensor]:
    weight = f"{key.removesuffix('frozen_codebook')}code_transform.weight"
    if weight not in state:
        raise ValueError(f"state: {key} needs {weight}: only a linear code_transform is known.")
    return [state[key] @ state[weight].mT]


KINDS = (
    _Kind("softvq", re.compile(r"(.*\.)?codebook"), _take_one),
    _Kind("vector-quantize-pytorch", re.compile(r"(.*\.)?_codebook\.embed"), _take_heads),
    _Kind("SimVQ", re.compile(r"(.*\.)?frozen_codebook"), _take_simvq),
    _Kind(
        "taming, diffusers",
        re.compile(r"((.*\.)?(quantize|quantizer|vq|_vq_vae)\.)?embedding\.weight"),
        _take_one,
    ),
    _Kind("EnCodec", re.compile(r"(.*\.)?layers\.\d+\.codebook\.embed"), _take_one),
    _Kind("DAC", re.compile(r"(.*\.)?quantizers\.\d+\.codebook\.weight"), _take_one),
    _Kind("taming Gumbel", re.compile(r"(.*\.)?quantize\.embed\.weight"), _take_one),
)


def read_codebook(
    state: State | Path | str, *, key: str | None = None, metric: str = "squared_euclidean"
) -> Codebook:
    """Find the codebook, or those of all stages and heads, in a state dict.

    Args:
        state: Names and tensors, or a safetensors file of them. A projection that a package puts
            behind its codes stays there.
        key: Name of the tensor (K, D), where it is not found by itself.
        metric: Which the package used; a state dict does not tell.

    Returns:
        The codebook, on the CPU, codes as they were stored.

    Raises:
        ValueError: If no codebook is found, or more than one package's; for a pickle.
        FileNotFoundError: If there is no such file.

    Example:
        >>> import torch
        >>> read_codebook({"quantize.embedding.weight": torch.eye(4, 2)}).num_codes
        4
    """
    tensors = state if isinstance(state, Mapping) else load_plain_tensors(state)
    if key is not None:
        if key not in tensors:
            raise ValueError(f"key {key!r} is none of the state's: {_list_tables(tensors)}.")
        found = [tensors[key]]
    else:
        found = _find(tensors)
    codes = tuple(each.detach().cpu().contiguous() for each in found)
    return Codebook(codebooks=codes, metric=metric)


def load_plain_tensors(path: Path | str) -> dict[str, Tensor]:
    """The tensors of a safetensors file of any program.

    Raises:
        ValueError: If it is no whole one; a pickle (``.pt``, ``.ckpt``) is never opened.
        FileNotFoundError: If there is none.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"path {path} is no file: nothing to load.")
    try:
        with holding_interrupts():
            return load_file(path)
    except SafetensorError as error:
        raise ValueError(
            f"path {path} ({path.stat().st_size} bytes) is no whole safetensors file ({error}). "
            "Pickles are not opened, since they can run code: load yours with "
            "torch.load(path, weights_only=True) and give its state dict."
        ) from error


def _find(state: State) -> list[Tensor]:
    by_kind: dict[str, list[Tensor]] = {}
    for kind in KINDS:
        keys = sorted(filter(kind.pattern.fullmatch, state), key=_natural)
        codes = [code for name in keys for code in kind.take(state, name)]
        if codes:
            by_kind[kind.package] = codes
    if len(by_kind) == 1:
        return next(iter(by_kind.values()))
    what = f"codebooks of {', '.join(by_kind)}" if by_kind else "no codebook"
    raise ValueError(
        f"state holds {what}; known are those of {', '.join(kind.package for kind in KINDS)}. "
        f"Name the tensor with key=; two-dimensional are: {_list_tables(state)}."
    )


def _natural(name: str) -> list[tuple[int, str]]:
    """Stage 10 comes after stage 2."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split(".")]


def _list_tables(state: State) -> str:
    names = [f"{name} {tuple(each.shape)}" for name, each in state.items() if each.ndim == 2]
    return ", ".join(names[:12]) or "none"
