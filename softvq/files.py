"""Writing files so that nothing half-written is ever taken for whole.

A file is written in a hidden folder beside its place, ``.name.1a2b3c4d.partial``, and renamed from
there: atomic, as both are on one file system. The folder is locked while its writer lives. What a
killed one leaves is therefore known by its lock, and the next writer of that file removes it.
"""

import errno
import glob
import hashlib
import json
import os
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

SUFFIX = ".partial"
_LOCK = "lock"
_CONTENT = f"content{SUFFIX}"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SENSELESS = (
    ArithmeticError,
    AttributeError,
    json.JSONDecodeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    UnicodeDecodeError,
)
_ABANDONED_S = 24 * 3600.0
"""Age of remains where nothing can be locked, and so nothing says whether their writer lives."""


@contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """Give a path beside ``path`` to write to; on success it takes that name, else it is removed.

    A link at ``path`` is replaced, and what it leads to is left alone.

    Args:
        path: The file to be written; missing folders are made.

    Yields:
        A path on the same file system, so that the rename is atomic. Its name ends in ``.partial``:
        a writer that goes by the suffix must be told the format.

    Raises:
        FileNotFoundError: If nothing was written.
        OSError: If the disk is full or the folder cannot be written to, naming ``path``; what was
            there before is as it was.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "a.txt"
        >>> with replacing(target) as beside:
        ...     _ = beside.write_text("whole")
        >>> target.read_text()
        'whole'
    """
    path = Path(path)
    with _naming(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    with folder_beside(path) as folder:
        beside = folder / _CONTENT
        with _naming(path):
            beside.touch()  # only to learn what mode a new file gets here; some writers set one
            mode = beside.stat().st_mode
            beside.unlink()
        with _naming(path, only=_NO_ROOM):
            yield beside
        beside.chmod(mode)
        with _naming(path):
            with open(beside, "rb") as written:
                os.fsync(written.fileno())
            os.replace(beside, path)


@contextmanager
def folder_beside(path: Path | str) -> Iterator[Path]:
    """Give an empty hidden folder beside ``path``; it is removed, here or after a kill.

    Args:
        path: What is being made; missing folders are made.

    Yields:
        The folder, for this call alone.

    Raises:
        OSError: If it cannot be made, naming ``path``.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "a"
        >>> with folder_beside(target) as folder:
        ...     (folder / "made").mkdir()
        ...     _ = (folder / "made").rename(target)
        >>> [each.name for each in target.parent.iterdir()]
        ['a']
    """
    path = Path(path)
    with _naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_remains(path.parent, glob.escape(_shorten(path.name)))
        folder, lock = _make_folder(path)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def remove_remains(folder: Path, pattern: str) -> None:
    """Remove what writers left that were killed; what is being written now stays.

    Args:
        folder: Where they wrote.
        pattern: Names of the files that were to be, as `glob` has it.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with replacing(folder / "a") as beside:
        ...     remove_remains(folder, "*")
        ...     _ = beside.write_text("still there")
        >>> [path.name for path in folder.iterdir()]
        ['a']
    """
    for left in folder.glob(f".{pattern}.*{SUFFIX}"):
        if left.is_dir() and not left.is_symlink():
            _remove_if_abandoned(left)


@contextmanager
def holding_interrupts() -> Iterator[None]:
    """Let Ctrl-C wait until the block is left, where it raises what it would have raised within.

    For native code that takes a KeyboardInterrupt amid its work for a failure, and answers with an
    error of its own: a whole file then looks like a damaged one. Outside of the main thread, which
    alone gets signals, it does nothing.

    Example:
        >>> try:
        ...     with holding_interrupts():
        ...         signal.raise_signal(signal.SIGINT)
        ...         print("to its end")
        ... except KeyboardInterrupt:
        ...     print("interrupted")
        to its end
        interrupted
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came = threading.Event()
    signal.signal(signal.SIGINT, lambda number, frame: came.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came.is_set():
            signal.raise_signal(signal.SIGINT)


@contextmanager
def blaming(path: Path | str) -> Iterator[None]:
    """Let whatever the contents of a file make go wrong be a ValueError that names the file.

    For what is built from a config that anybody may have edited: there is no end to what may be in
    it.

    Args:
        path: The file.

    Raises:
        ValueError: For wrong types, names that are missing, numbers without sense or measure.

    Example:
        >>> with blaming("m.safetensors"):
        ...     {}["model"]
        Traceback (most recent call last):
        ValueError: path m.safetensors lacks or garbles 'model': it is damaged, or was edited. \
Take another copy.
    """
    try:
        yield
    except _SENSELESS as error:
        raise ValueError(
            f"path {path} lacks or garbles {error}: it is damaged, or was edited. Take another "
            "copy."
        ) from error
    except ValueError as error:
        if str(path) in str(error):
            raise
        raise ValueError(f"path {path} is damaged, or was edited: {error}") from error


@contextmanager
def _naming(path: Path, *, only: tuple[int, ...] = ()) -> Iterator[None]:
    """Let errors of the system name the file that was to be written, not one beside it."""
    try:
        yield
    except OSError as error:
        if error.errno is None or (only and error.errno not in only):
            raise
        raise OSError(
            error.errno,
            f"cannot be written ({os.strerror(error.errno)}); what was there is as it was",
            str(path),
        ) from error


def _shorten(name: str) -> str:
    """A name that leaves room for more: file systems take 255 bytes."""
    encoded = os.fsencode(name)
    return name if len(encoded) <= 200 else hashlib.sha256(encoded).hexdigest()


def _make_folder(path: Path) -> tuple[Path, int | None]:
    """A folder of one's own beside ``path``, and its lock where there are locks."""
    while True:
        folder = path.with_name(f".{_shorten(path.name)}.{secrets.token_hex(4)}{SUFFIX}")
        folder.mkdir()
        if fcntl is None:
            return folder, None
        try:
            lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        except FileNotFoundError:
            continue  # taken for remains in the moment before it had a lock
        if not _take(lock, wait=True):
            return folder, lock  # this file system has no locks
        if (folder / _LOCK).exists():
            return folder, lock
        os.close(lock)


def _take(lock: int, *, wait: bool) -> bool:
    """Whether an open file is now locked for this process; never, where there are no locks."""
    assert fcntl is not None, "callers look"
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def _remove_if_abandoned(folder: Path) -> None:
    try:
        if fcntl is None:
            if time.time() - folder.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(folder, ignore_errors=True)
            return
        lock = os.open(folder / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        _remove_empty(folder)
        return
    except OSError:
        return  # of another user
    try:
        if _take(lock, wait=False):
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _remove_empty(folder: Path) -> None:
    """Remove a folder whose writer died before it had locked it; one that lives makes another."""
    try:
        folder.rmdir()
    except OSError:
        return
