"""A folder of pictures of any kind, brought to one size and one colour form.

What happens to each file, in this order:

1. The first frame is loaded whole; the rotation in its EXIF data is applied.
2. What is transparent (RGBA, LA, palette or single colour) is composited over white, as a page
   would show it: a plain conversion would show whatever colour hides under full transparency.
3. It becomes RGB: grey fills three channels, 16-bit grey is divided by 257, CMYK is converted by
   Pillow's formula without a colour profile.
4. The short side is scaled to the wanted size (bicubic, antialiased) and the middle is cropped.
5. For one channel, RGB becomes grey by ITU-R 601-2 luma.
"""

import hashlib
import logging
import os
import stat
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import final

import torch
from einops import rearrange
from jaxtyping import Int, UInt8
from PIL import Image, ImageOps
from torch import Tensor

from softvq.checks import check_count, check_number, choose
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

# What Pillow's parsers raise for damaged files.
DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    OverflowError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)

logger = logging.getLogger(__name__)


class _UnreadableError(ValueError):
    """A file that gives no picture; the message names it and says why."""


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

        def decode(index: int) -> Tensor:
            return _decode(self.path / self.keys[index], size=size, channels=self.channels)

        # A pool that lives for one call leaves nothing behind that workers could not copy.
        with refusing_truncated(), ThreadPoolExecutor(DECODE_THREADS) as pool:
            pictures = list(pool.map(decode, indices.tolist()))
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

    def decode(key: str) -> Tensor:
        return _decode(path / key, size=size, channels=channels)

    bad = _scan(decode, keys, fail=on_error == "error")
    if len(bad) == len(keys):
        raise ValueError(
            f"path {str(path)!r} has no readable picture: all {len(keys)} failed. "
            f"The first: {next(iter(bad.values()))}"
        )
    if bad:
        warnings.warn(
            f"Skipped {len(bad)} of {len(keys)} files in {_show(path)}: " + " ".join(bad.values()),
            stacklevel=2,
        )
    good = [key for key in keys if key not in bad]
    name = f"folder {_show(Path(path.resolve().name))} {split}"
    return FolderImages(
        path, name=name, keys=good, size=size, channels=channels, skipped=tuple(bad)
    )


def _show(path: Path) -> str:
    r"""A path as text that any file and terminal takes: names may hold bytes that are no text.

    Example:
        >>> _show(Path("a\udcff.png"))
        'a\\udcff.png'
    """
    return str(path).encode("utf-8", "backslashreplace").decode("utf-8")


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


def _scan(decode: Callable[[str], Tensor], keys: list[str], *, fail: bool) -> dict[str, str]:
    """Decode every file; return why, for those that cannot be read, or raise at the first."""
    logger.info("Reading %d files once to find damaged ones", len(keys))

    def reason(key: str) -> str | None:
        try:
            decode(key)
        except _UnreadableError as error:
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


def _decode(path: Path, *, size: int, channels: int) -> Tensor:
    """Return the picture in ``path`` as uint8 (c, size, size)."""
    try:
        # Opening a pipe would wait for ever.
        if not stat.S_ISREG(path.stat().st_mode):
            raise _UnreadableError(f"{_show(path)} is not a regular file.")
        with Image.open(path) as file:
            _check_pixels(path, file)
            file.load()
            upright = ImageOps.exif_transpose(file)
    except _UnreadableError:
        raise
    except DAMAGE as error:
        raise _UnreadableError(
            f"{_show(path)} cannot be read as a picture ({type(error).__name__}: {error})."
        ) from error
    picture = _crop(_to_rgb(path, upright), size=size)
    if channels == 1:
        picture = picture.convert("L")
    pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
    return rearrange(pixels, "(h w c) -> c h w", h=size, w=size)


def _check_pixels(path: Path, picture: Image.Image) -> None:
    most = Image.MAX_IMAGE_PIXELS
    pixels = picture.width * picture.height
    if most is not None and pixels > most:
        raise _UnreadableError(
            f"{_show(path)} has {pixels} pixels, more than Pillow's limit of {most} "
            "(PIL.Image.MAX_IMAGE_PIXELS)."
        )


def _to_rgb(path: Path, picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I;16"):
        # Pillow's own conversion to 8 bits has clipped, divided by 256 and rounded down by turns.
        grey = picture.convert("I").point(lambda value: value * (1 / 257) + 0.5)
        return grey.convert("L").convert("RGB")
    if picture.mode in ("RGBA", "LA") or "transparency" in picture.info:
        above = picture.convert("RGBA")
        white = Image.new("RGBA", above.size, "white")
        return Image.alpha_composite(white, above).convert("RGB")
    if picture.mode in ("1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr"):
        return picture.convert("RGB")
    raise _UnreadableError(
        f"{_show(path)} has pixels of mode {picture.mode!r}, whose range or colours are not known. "
        "Save it with 8 bits a channel."
    )


def _crop(picture: Image.Image, *, size: int) -> Image.Image:
    """Scale the short side to ``size`` and take the middle, in one step.

    One step, for a very long picture would take very much memory between the two.
    """
    short = min(picture.size)
    if short == size:
        left, top = ((side - size) // 2 for side in picture.size)
        return picture.crop((left, top, left + size, top + size))
    starts, ends = [], []
    for side in picture.size:
        scaled = round(side * size / short)
        start = (scaled - size) // 2
        starts.append(start * side / scaled)
        ends.append((start + size) * side / scaled)
    box = (starts[0], starts[1], ends[0], ends[1])
    return picture.resize((size, size), Image.Resampling.BICUBIC, box=box)
