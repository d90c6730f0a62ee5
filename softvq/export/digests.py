"""SHA-256 of tensors and files: what an export was made from, and that it is whole."""

import ctypes
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

if TYPE_CHECKING:
    from hashlib import _Hash


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes of tensors, in the order of their names.

    Args:
        tensors: On any device.

    Returns:
        64 hexadecimal digits.

    Example:
        >>> digest_tensors({"a": torch.zeros(2)})[:8]
        'd783eb36'
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        kind = str(tensor.dtype).removeprefix("torch.")
        digest.update(f"{name} {kind} {list(tensor.shape)}\n".encode())
        _add_bytes(digest, tensor)
    return digest.hexdigest()


def digest_items(items: Shaped[Tensor, "n ..."]) -> Int64[Tensor, " n"]:
    """The first eight bytes of the SHA-256 of each item, to tell whether one has changed.

    Args:
        items: Pictures as their data set gives them.

    Returns:
        One number an item: of `digest_tensors` over it alone, by the name "item", little-endian.

    Example:
        >>> digest_items(torch.zeros(2, 3)).tolist()
        [-672604376439455478, -672604376439455478]
    """
    heads = [bytes.fromhex(digest_tensors({"item": item})[:16]) for item in items]
    numbers = [int.from_bytes(head, "little", signed=True) for head in heads]
    return torch.tensor(numbers, dtype=torch.int64)


def digest_file(path: Path) -> str:
    """SHA-256 of a file, read in parts.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "empty"
        >>> path.touch()
        >>> digest_file(path)[:8]
        'e3b0c442'
    """
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(2**20):
            digest.update(part)
    return digest.hexdigest()


def _add_bytes(digest: "_Hash", tensor: Tensor) -> None:
    # By address, since numpy is no dependency; `tensor` lives until the call is over.
    num_bytes = tensor.numel() * tensor.element_size()
    if num_bytes:
        digest.update((ctypes.c_char * num_bytes).from_address(tensor.data_ptr()))


def plain_state(module: torch.nn.Module) -> dict[str, Tensor]:
    """The state dict, without the names that torch.compile puts in for a wrapped part.

    Example:
        >>> list(plain_state(torch.nn.Linear(1, 1)))
        ['weight', 'bias']
    """
    return {name.replace("_orig_mod.", ""): each for name, each in module.state_dict().items()}
