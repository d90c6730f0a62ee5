"""The pictures that a comparison leaves in its folder: ``pictures.safetensors``.

Written whole or not at all, and checked on the way in and on the way out.

Shape letters: P pictures, C channels, H height, W width, K codes, M of them shown in the atlas,
F pixels to a code along each side, D features.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from eval.storage import find_file, refuse, tell_remedy
from softvq.files import replacing

PICTURES_FILE = "pictures.safetensors"
ATLAS_PARTS = ("codes", "tokens", "patches", "vectors")
"""Of the codes that the atlas shows: which, tokens averaged, mean decoded patches, code vectors."""


def save_pictures(folder: Path | str, pictures: Mapping[str, Tensor]) -> Path:
    """Write ``pictures.safetensors`` into ``folder``.

    Args:
        folder: The output folder; made if missing.
        pictures: ``inputs`` and for each method ``{method}/hard``, where it has one
            ``{method}/soft`` (all uint8, P x C x H x W), and ``{method}/counts`` (int64, K): how
            often each code is the hard code of a token of the test set. For the atlas all or none
            of ``{method}/codes`` (int64, M), ``tokens`` (int64, M), ``patches`` (uint8,
            M x C x F x F) and ``vectors`` (float32, M x D).

    Returns:
        The file.

    Raises:
        ValueError: For another name, dtype or shape; nothing is written then.

    Example:
        >>> save_pictures("runs", {"inputs": torch.zeros(1, 3, 2, 2)})
        Traceback (most recent call last):
        ValueError: inputs must be uint8 of shape (P, 1 or 3, H, W); got torch.float32 (1, 3, 2, 2).
    """
    _check_pictures(pictures, remedy="")
    path = Path(folder) / PICTURES_FILE
    # safetensors refuses tensors that share memory, as the slices of one batch do.
    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in pictures.items()}
    with replacing(path) as beside:
        beside.write_bytes(save(whole))
    return path


def load_pictures(folder: Path | str) -> dict[str, Tensor]:
    """Read and check ``pictures.safetensors`` of ``folder``.

    Args:
        folder: The output folder of a comparison.

    Returns:
        The tensors by the names that ``save_pictures`` takes.

    Raises:
        ValueError: If the file is missing, cut short or does not hold what it should.

    Example:
        >>> load_pictures("no-such-folder")
        Traceback (most recent call last):
        ValueError: no-such-folder holds no pictures.safetensors. Make it with: make compare \
OUT=no-such-folder
    """
    path, remedy = find_file(folder, PICTURES_FILE), tell_remedy(folder)
    try:
        pictures = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is cut short or damaged ({error}). {remedy}") from error
    _check_pictures(pictures, remedy=f" In {path}. {remedy}")
    return pictures


def _check_pictures(pictures: Mapping[str, Tensor], *, remedy: str) -> None:
    if "inputs" not in pictures:
        refuse("pictures lack 'inputs', the test pictures that went in.", remedy)
    shape = tuple(pictures["inputs"].shape)
    for name, tensor in pictures.items():
        method, _, part = name.rpartition("/")
        part = "inputs" if name == "inputs" else part if method else ""
        if part not in _CHECKS:
            refuse(
                f"pictures hold {name!r}; valid are 'inputs' and '{{method}}/' followed by one of "
                f"{', '.join(map(repr, [*_PARTS, *ATLAS_PARTS]))}.",
                remedy,
            )
        fits, wanted = _CHECKS[part]
        if not fits(tensor):
            came = f"got {tensor.dtype} {tuple(tensor.shape)}."
            refuse(f"{name} must be {wanted}; {came}", remedy)
        if part in ("hard", "soft") and tensor.shape != shape:
            came = f"got {tensor.dtype} {tuple(tensor.shape)}."
            refuse(f"{name} must be shaped as inputs, {shape}; {came}", remedy)
    for method in {name.rpartition("/")[0] for name in pictures} - {""}:
        _check_atlas(pictures, method, remedy=remedy)


def _check_atlas(pictures: Mapping[str, Tensor], method: str, *, remedy: str) -> None:
    """Raise unless the parts of an atlas are all there, of one length and of the codes counted."""
    lengths = {
        part: len(pictures[f"{method}/{part}"])
        for part in ATLAS_PARTS
        if f"{method}/{part}" in pictures
    }
    if not lengths:
        return
    if len(lengths) < len(ATLAS_PARTS) or len(set(lengths.values())) > 1:
        refuse(
            f"{method} must have each of {', '.join(ATLAS_PARTS)}, equally long; got {lengths}.",
            remedy,
        )
    codes, counts = pictures[f"{method}/codes"], pictures.get(f"{method}/counts")
    if counts is None or int(codes.max()) >= len(counts) or len(codes.unique()) < len(codes):
        refuse(
            f"{method}/codes must be different codes of those in {method}/counts; got "
            f"{codes.tolist()[:8]} and {0 if counts is None else len(counts)} counts.",
            remedy,
        )


def _is_batch(tensor: Tensor) -> bool:
    """Whether these are bytes of pictures."""
    good = tensor.ndim == 4 and tensor.shape[1] in (1, 3) and tensor.numel() > 0
    return tensor.dtype == torch.uint8 and good


def _is_list(tensor: Tensor) -> bool:
    """Whether these are whole numbers, none negative."""
    good = tensor.dtype == torch.int64 and tensor.ndim == 1 and tensor.numel() > 0
    return good and bool((tensor >= 0).all())


_PARTS = ("hard", "soft", "counts")
_PICTURES = "uint8 of shape (P, 1 or 3, H, W)"
_CHECKS: dict[str, tuple[Callable[[Tensor], bool], str]] = {
    "inputs": (_is_batch, _PICTURES),
    "hard": (_is_batch, _PICTURES),
    "soft": (_is_batch, _PICTURES),
    "counts": (
        lambda tensor: _is_list(tensor) and bool((tensor > 0).any()),
        "int64 of shape (K,), none negative, not all 0",
    ),
    "codes": (_is_list, "int64 of shape (M,), none negative"),
    "tokens": (_is_list, "int64 of shape (M,), none negative"),
    "patches": (_is_batch, "uint8 of shape (M, 1 or 3, F, F)"),
    "vectors": (
        lambda tensor: tensor.dtype == torch.float32 and tensor.ndim == 2 and tensor.numel() > 0,
        "float32 of shape (M, D)",
    ),
}
