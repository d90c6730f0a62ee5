"""Files that PyTorch's hub publishes: tensors by name, named after their own digest."""

import hashlib
import io
import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from softvq.data.fetch import DigestError, FetchError, SourceError, cache_folder, download
from softvq.files import replacing

MOST_BYTES = 600_000_000


def load_published(url: str, *, cache: Path | None = None) -> dict[str, Tensor]:
    """Return the tensors of a file that PyTorch's hub publishes, kept in the cache folder.

    Args:
        url: Its address, whose name ends in the first eight or more digits of its sha256.
        cache: Folder of the file; None means what `softvq.data.fetch.cache_folder` says.

    Returns:
        Tensors by name.

    Raises:
        FetchError: If it can be had neither there nor from its home.
        OSError: If the cache folder cannot be written to.

    Example:
        >>> load_published("data:,abc/net-00000000.pth", cache=Path("nowhere"))
        Traceback (most recent call last):
        softvq.data.fetch.FetchError: net-00000000.pth could not be had. Tried, in this order:
        - cache file nowhere/net-00000000.pth: not there
        - data:,abc/net-00000000.pth: net-00000000.pth has sha256 3b199a31..., expected 00000000...
        Put net-00000000.pth from its home into nowhere.
    """
    path = cache_folder(cache) / url.rsplit("/", 1)[-1]
    failures = []
    for name, get in (
        (f"cache file {path}", lambda: read_file(path)),
        (url, lambda: download(url, most_bytes=MOST_BYTES)),
    ):
        try:
            contents = get()
            tensors = read_hub_file(contents, path.name)
        except SourceError as error:
            failures.append(f"- {name}: {error}")
            continue
        if name == url:
            with replacing(path) as beside:
                beside.write_bytes(contents)
        return tensors
    tried = "\n".join(failures)
    raise FetchError(
        f"{path.name} could not be had. Tried, in this order:\n{tried}\n"
        f"Put {path.name} from its home into {path.parent}."
    )


def read_hub_file(contents: bytes, url: str) -> dict[str, Tensor]:
    """Tensors of a file that PyTorch's hub publishes, its digest verified, no pickle executed.

    Args:
        contents: The file.
        url: Its address, whose name ends in the first eight or more digits of its sha256.

    Raises:
        DigestError: If the contents have another digest.
        SourceError: If they are no plain mapping of tensors.

    Example:
        >>> read_hub_file(b"abc", "https://example.org/net-00000000.pth")
        Traceback (most recent call last):
        softvq.data.fetch.DigestError: net-00000000.pth has sha256 ba7816bf..., expected 00000000...
    """
    name = url.rsplit("/", 1)[-1]
    expected = name.rsplit("-", 1)[-1].partition(".")[0]
    found = hashlib.sha256(contents).hexdigest()
    if len(expected) < 8 or not found.startswith(expected):
        raise DigestError(f"{name} has sha256 {found[:8]}..., expected {expected}...")
    try:
        tensors = torch.load(io.BytesIO(contents), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise SourceError(f"{name} cannot be read: {error}") from error
    if not isinstance(tensors, Mapping):
        raise SourceError(f"{name} holds a {type(tensors).__name__}; tensors by name were expected")
    return {key: value for key, value in tensors.items() if isinstance(value, Tensor)}


def read_file(path: Path) -> bytes:
    """Return a file's contents.

    Raises:
        SourceError: If it is not there, or cannot be read.

    Example:
        >>> read_file(Path("nowhere/a"))
        Traceback (most recent call last):
        softvq.data.fetch.SourceError: not there
    """
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise SourceError("not there") from error
    except OSError as error:
        raise SourceError(f"cannot be read: {error}") from error
