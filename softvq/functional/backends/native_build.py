"""The compiled library of the `native` back end: built at first use, kept in the user's cache.

The file's name is a digest of sources, compiler, flags and processor, so that nothing stale is ever
found. Beside the library lies the digest of its contents: a file that is cut short, or changed by
another program, is built anew. Two processes that build at once do no harm, since each writes
beside and renames.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from softvq.files import replacing

SWITCH_VARIABLE = "SOFTVQ_NATIVE"
CACHE_VARIABLE = "SOFTVQ_CACHE"
COMPILER_VARIABLE = "CC"
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-shared", "-fPIC", "-std=gnu11")
TUNINGS = (("-march=native",), ("-mcpu=native",), ())
SOURCES = (
    "native.c",
    "native_forward.h",
    "native_backward.h",
    "native_tile.h",
    "native_math.h",
)
FUNCTIONS = tuple(f"softvq_{name}" for name in ("pack", "nearest", "forward", "backward", "finish"))
BUILD_TIMEOUT_S = 120.0
ERROR_LENGTH = 300


class NativeError(RuntimeError):
    """The library cannot be had; the message says why, to follow "because"."""


class Loaded(NamedTuple):
    """The library, or the reason why there is none."""

    library: ctypes.CDLL | None
    reason: str


@functools.cache
def load() -> Loaded:
    """The library of this process, built if need be.

    Returns:
        The library, or why there is none: a failure is found once and kept.
    """
    if os.environ.get(SWITCH_VARIABLE, "").strip().lower() in ("0", "off", "false", "no"):
        return Loaded(None, f"it is turned off by the environment variable {SWITCH_VARIABLE}")
    if sys.byteorder != "little" or os.name != "posix":
        return Loaded(None, f"it is built on Linux and macOS alone, and this is {sys.platform}")
    try:
        return Loaded(build(native_folder()), "")
    except (NativeError, OSError) as error:
        return Loaded(None, str(error))


def why_not() -> str | None:
    """Why there is no library, or None where there is one; a constant to a compiler."""
    loaded = load()
    return None if loaded.library is not None else loaded.reason


# What `torch.compiler.assume_constant_result` does, but that imports the whole compiler.
why_not.__dict__["_dynamo_marked_constant"] = True


def native_folder() -> Path:
    """The folder of compiled libraries; it need not exist.

    Within SOFTVQ_CACHE or, where that is unset or empty, the operating system's cache folder of the
    user, which is named here as `platformdirs` would name it: that package is an extra.

    Example:
        >>> native_folder().name
        'native'
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser() / "native"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "softvq" / "native"
    base = os.environ.get("XDG_CACHE_HOME", "").strip()
    return (Path(base) if base else Path.home() / ".cache") / "softvq" / "native"


def build(folder: Path) -> ctypes.CDLL:
    """The library out of a folder, put there first where it is not, or not whole.

    Args:
        folder: Of libraries; made for this user alone if it does not exist.

    Raises:
        NativeError: Without a compiler, where compiling fails, or where the folder is not safe.
        OSError: Where the folder cannot be written to.
    """
    compiler = find_compiler()
    failures = []
    for tuning in TUNINGS:
        flags = (*FLAGS, *tuning)
        path = folder / f"softvq-{_digest_of_inputs(compiler, flags)}.so"
        if not _is_whole(path):
            try:
                _compile(compiler, flags, path)
            except NativeError as error:
                failures.append(str(error))
                continue
        _check_owner(folder)
        _check_owner(path)
        return _open(path)
    raise NativeError(failures[0])


def _open(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    for name in FUNCTIONS:
        function = getattr(library, name)
        function.argtypes = (ctypes.c_void_p, *(ctypes.c_int64,) * 3)
        function.restype = ctypes.c_int
    return library


def find_compiler() -> tuple[str, ...]:
    """The command of the C compiler: $CC, or the first of cc, gcc and clang.

    Raises:
        NativeError: If there is none.
    """
    named = os.environ.get(COMPILER_VARIABLE, "").strip()
    if named:
        command = tuple(shlex.split(named))
        if shutil.which(command[0]) is None:
            raise NativeError(f"the compiler that {COMPILER_VARIABLE} names, {named}, is not there")
        return command
    for name in COMPILERS:
        if shutil.which(name) is not None:
            return (name,)
    raise NativeError(f"no C compiler was found: install one of {', '.join(COMPILERS)}")


def _compile(compiler: tuple[str, ...], flags: tuple[str, ...], path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_owner(path.parent)
    with tempfile.TemporaryDirectory(prefix="softvq-") as work:
        made = Path(work) / "native.so"
        source = Path(__file__).with_name(SOURCES[0])
        _run([*compiler, *flags, "-o", str(made), str(source), "-lm"])
        if not made.is_file():
            raise NativeError(f"{compiler[0]} said that all is well and wrote nothing")
        content = made.read_bytes()
    with replacing(path) as beside:
        beside.write_bytes(content)
    with replacing(_seal(path)) as beside:
        beside.write_text(hashlib.sha256(content).hexdigest(), encoding="ascii")


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeError(f"{command[0]} could not be run: {error}") from error
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[:ERROR_LENGTH]
        raise NativeError(f"{command[0]} failed with status {done.returncode}: {said}")
    return done.stdout


def _digest_of_inputs(compiler: tuple[str, ...], flags: tuple[str, ...]) -> str:
    parts = [*compiler, _run([*compiler, "--version"]), *flags, platform.machine(), _processor()]
    digest = hashlib.sha256("\0".join(parts).encode())
    for name in SOURCES:
        digest.update(Path(__file__).with_name(name).read_bytes())
    return digest.hexdigest()[:32]


def _processor() -> str:
    """What instructions the processor has, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    wanted = ("flags", "features", "model name", "cpu part")
    return "\n".join(sorted({line for line in lines if line.lower().startswith(wanted)}))


def _seal(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _is_whole(path: Path) -> bool:
    """Whether the library is there with the contents that were written."""
    try:
        sealed = _seal(path).read_text(encoding="ascii", errors="replace").strip()
        return hashlib.sha256(path.read_bytes()).hexdigest() == sealed
    except FileNotFoundError:
        return False


def _check_owner(path: Path) -> None:
    """Raise unless this user alone can change what is at the path: it will be run."""
    found = path.stat()
    if found.st_uid not in (os.getuid(), 0) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NativeError(f"{path} can be changed by other users: remove it, or chmod go-w")
