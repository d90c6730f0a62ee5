"""A picture file, brought to one size and one colour form.

What happens to it, in this order:

1. The first frame is loaded whole; the rotation in its EXIF data is applied.
2. What is transparent (RGBA, LA, palette or single colour) is composited over white, as a page
   would show it: a plain conversion would show whatever colour hides under full transparency.
3. It becomes RGB: grey fills three channels, 16-bit grey is divided by 257, CMYK is converted by
   Pillow's formula without a colour profile.
4. The short side is scaled to the wanted size (bicubic, antialiased) and the middle is cropped.
5. For one channel, RGB becomes grey by ITU-R 601-2 luma.
"""

import stat
import struct
import zlib
from pathlib import Path

import torch
from einops import rearrange
from jaxtyping import UInt8
from PIL import Image, ImageOps
from torch import Tensor

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


class UnreadableError(ValueError):
    """A file that gives no picture; the message names it and says why."""


def decode(path: Path, *, size: int, channels: int) -> UInt8[Tensor, "c h w"]:
    """Return the picture in a file.

    Args:
        path: The file.
        size: Height and width that it is brought to.
        channels: 1 (grey) or 3 (RGB).

    Raises:
        UnreadableError: If it is no regular file, damaged, larger than Pillow's limit of pixels, or
            of a kind without a known range.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.png"
        >>> Image.new("L", (7, 5), 128).save(path)
        >>> decode(path, size=5, channels=3).shape
        torch.Size([3, 5, 5])
    """
    try:
        # Opening a pipe would wait for ever.
        if not stat.S_ISREG(path.stat().st_mode):
            raise UnreadableError(f"{show_path(path)} is not a regular file.")
        with Image.open(path) as file:
            _check_pixels(path, file)
            file.load()
            upright = ImageOps.exif_transpose(file)
    except UnreadableError:
        raise
    except DAMAGE as error:
        raise UnreadableError(
            f"{show_path(path)} cannot be read as a picture ({type(error).__name__}: {error})."
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
        raise UnreadableError(
            f"{show_path(path)} has {pixels} pixels, more than Pillow's limit of {most} "
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
    raise UnreadableError(
        f"{show_path(path)} has pixels of mode {picture.mode!r}, whose range or colours are not "
        "known. Save it with 8 bits a channel."
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


def show_path(path: Path) -> str:
    r"""A path as text that any file and terminal takes: names may hold bytes that are no text.

    Example:
        >>> show_path(Path("a\udcff.png"))
        'a\\udcff.png'
    """
    return str(path).encode("utf-8", "backslashreplace").decode("utf-8")
