"""A folder of pictures of any kind: which files count, on which side of a split, and which are bad.

What becomes of each file, `softvq.data.decoding` says.
"""

import hashlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import final

import torch
from jaxtyping import Int, UInt8
from PIL import Image
from torch import Tensor

from softvq.checks import check_count, check_number, choose
from softvq.data.decoding import UnreadableError, decode, show_path
from softvq.data.images import ImageSet, check_indices
from softvq.data.truncated import refusing_truncated

SUFFIXES = (
    ".bmp",
    ".gif",
    ".jfif",
    ".jpe",
    ".jpeg",
    ".jpg",
    ".pbm",
    ".pgm",
    ".png",
    ".pnm",
    ".ppm",
    ".tif",
    ".tiff",
    ".webp",
)
SPLITS = ("train", "test", "all")

# Pillow's decoders run without the interpreter lock, so a few threads help.
DECODE_THREADS = min(4, os.cpu_count() or 1)

logger = logging.getLogger(__name__)


@final
class FolderImages(ImageSet):
    """Pictures in files, decoded when asked for; made by `open_folder`.

    Args:
        path: The folder.
        name: What the pictures are.
        keys: Path of each relative to the folder, with forward slashes.
        size: Height and width in pixels.
        channels: 1 or 3.
        skipped: Files that were left out because they cannot be read.
    """

    def __init__(
        self,
        path: Path,
        *,
        name: str,
        keys: Sequence[str],
        size: int,
        channels: int,
        skipped: Sequence[str],
    ) -> None:
        self.path = path
        self.name = name
        self.keys = tuple(keys)
        self.size = (size, size)
        self.channels = channels
        self.skipped = tuple(skipped)
        self.labels = None
        self.crop = "short side scaled (bicubic), middle kept"

    def batch(self, indices: Int[Tensor, " b"]) -> UInt8[Tensor, "b c h w"]:
        """Return the pictures at ``indices``; see `ImageSet.batch`.

        Raises:
            ValueError: Also if a file can no longer be read.
        """
        check_indices(indices, count=len(self))
        size = self.size[0]
        empty = torch.empty(0, self.channels, size, size, dtype=torch.uint8)

        def read(index: int) -> Tensor:
            return decode(self.path / self.keys[index], size=size, channels=self.channels)

        # A pool that lives for one call leaves nothing behind that workers could not copy.
        with refusing_truncated(), ThreadPoolExecutor(DECODE_THREADS) as pool:
            pictures = list(pool.map(read, indices.tolist()))
        return torch.stack(pictures) if pictures else empty


def open_folder(
    path: Path | str,
    *,
    size: int,
    channels: int = 3,
    split: str = "all",
    test_share: float = 0.1,
    on_error: str = "error",
) -> FolderImages:
    """Return the pictures in a folder and its subfolders, sorted by relative path.

    Hidden files and folders, and files without a picture's suffix, are passed over; linked folders
    are not entered. Every file of the split is decoded once here, so that a damaged one is found
    before training and not hours into it.

    Args:
        path: The folder.
        size: Height and width in pixels that every picture is brought to.
        channels: 1 (grey) or 3 (RGB).
        split: "train", "test" or "all". A hash of the relative path decides, so a file keeps its
            side when others are added.
        test_share: Expected share of files in "test", in [0, 1].
        on_error: For files that cannot be read: "error", or "skip" to leave them out, list them in
            ``skipped`` and warn once.

    Returns:
        The set, with the relative paths as keys and no labels.

    Raises:
        ValueError: If an argument is out of range, ``path`` is no folder, there are no pictures in
            it or none in the split, or a file is damaged, of a kind without a known range (32-bit
            TIFF), or larger than Pillow's limit of pixels.

    Warns:
        UserWarning: If files were skipped.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> Image.new("L", (7, 5), 128).save(folder / "a.png")
        >>> images = open_folder(folder, size=5)
        >>> images.keys, images.batch(torch.tensor([0])).shape
        (('a.png',), torch.Size([1, 3, 5, 5]))
    """
    path = Path(path)
    check_count("size", size)
    if channels not in (1, 3):
        raise ValueError(f"channels must be 1 (grey) or 3 (RGB); got {channels!r}.")
    choose("split", split, SPLITS)
    check_number("test_share", test_share, least=0.0, most=1.0)
    choose("on_error", on_error, ("error", "skip"))
    keys = _split(path, _list_keys(path), split=split, test_share=test_share)

    def read(key: str) -> Tensor:
        return decode(path / key, size=size, channels=channels)

    bad = _scan(read, keys, fail=on_error == "error")
    if len(bad) == len(keys):
        raise ValueError(
            f"path {str(path)!r} has no readable picture: all {len(keys)} failed. "
            f"The first: {next(iter(bad.values()))}"
        )
    if bad:
        warnings.warn(
            f"Skipped {len(bad)} of {len(keys)} files in {show_path(path)}: "
            + " ".join(bad.values()),
            stacklevel=2,
        )
    good = [key for key in keys if key not in bad]
    name = f"folder {show_path(Path(path.resolve().name))} {split}"
    return FolderImages(
        path, name=name, keys=good, size=size, channels=channels, skipped=tuple(bad)
    )


def _list_keys(path: Path) -> list[str]:
    if not path.is_dir():
        raise ValueError(f"path {str(path)!r} is not a folder. Give a folder of pictures.")
    keys = []
    for folder, subfolders, files in os.walk(path, onerror=_reraise):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for name in files:
            if not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES:
                keys.append((Path(folder) / name).relative_to(path).as_posix())
    if not keys:
        raise ValueError(
            f"path {str(path)!r} holds no pictures. "
            f"Files with these suffixes count: {' '.join(SUFFIXES)}."
        )
    return sorted(keys)


def _reraise(error: OSError) -> None:
    # os.walk would pass over a folder that it may not read.
    raise ValueError(f"path holds a folder that cannot be read: {error}") from error


def _split(path: Path, keys: list[str], *, split: str, test_share: float) -> list[str]:
    if split == "all":
        return keys
    chosen = [key for key in keys if (_place(key) < test_share) == (split == "test")]
    if not chosen:
        raise ValueError(
            f"split {split!r} is empty: with test_share={test_share:g} none of the {len(keys)} "
            f"pictures in {str(path)!r} falls into it. Change test_share, or add pictures."
        )
    return chosen


def _place(key: str) -> float:
    """Map a relative path to [0, 1): the same on every machine and in every process."""
    start = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()[:8]
    # 53 bits are what a float holds without rounding up to 1.
    return (int.from_bytes(start, "big") >> 11) / 2**53


def _scan(read: Callable[[str], Tensor], keys: list[str], *, fail: bool) -> dict[str, str]:
    """Decode every file; return why, for those that cannot be read, or raise at the first."""
    logger.info("Reading %d files once to find damaged ones", len(keys))

    def reason(key: str) -> str | None:
        try:
            read(key)
        except UnreadableError as error:
            return str(error)
        return None

    bad = {}
    with warnings.catch_warnings(), refusing_truncated():
        # Pillow warns above its limit and raises only above twice of it; here both are errors.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        # What it says of damaged files, it says of no file in particular; ours name it.
        warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
        for key, why in zip(keys, _map_in_order(reason, keys), strict=True):
            if why is None:
                continue
            if fail:
                raise ValueError(f'{why} Remove the file, or pass on_error="skip".')
            bad[key] = why
    return bad


def _map_in_order(function: Callable[[str], str | None], keys: list[str]) -> Iterator[str | None]:
    # In portions, so that the first failure ends the work and not the whole folder.
    portion = 64 * DECODE_THREADS
    with ThreadPoolExecutor(DECODE_THREADS) as pool:
        for start in range(0, len(keys), portion):
            yield from pool.map(function, keys[start : start + portion])
