"""Source archives of Python packages, and the arrays that some of them hold as pickles.

The archive is compared with a known digest first; of a pickle nothing is run.
"""

import io
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from softvq.data.fetch import SourceError, check_digests


def download_from_pip(
    package: str, version: str, *, sha256: str, timeout_s: float = 600.0
) -> bytes:
    """Return the source archive of a Python package, by pip and the index it is configured for.

    Nothing is installed. pip compares the digest before it reads the archive; only then does it ask
    the archive's own build code for its name.

    Args:
        package: Its name.
        version: Its exact version.
        sha256: Digest of the archive in hex.
        timeout_s: Seconds after which pip is stopped.

    Raises:
        SourceError: If there is no pip, or it fails; with pip's own last words.
        DigestError: If the archive is another one.

    Example:
        >>> download_from_pip("softvq", "1.0; ls", sha256="")
        Traceback (most recent call last):
        ValueError: version must be digits and dots, as in "1.1.1"; got '1.0; ls'.
    """
    return _download(package, version, sha256, timeout_s=timeout_s, suffix=".tar.gz")


def download_wheel(package: str, version: str, *, sha256: str, timeout_s: float = 600.0) -> bytes:
    """Return the wheel of a Python package, by pip and the index it is configured for.

    Nothing is installed and nothing of it runs: a wheel is a zip file.

    Args:
        package: Its name.
        version: Its exact version.
        sha256: Digest of the wheel in hex.
        timeout_s: Seconds after which pip is stopped.

    Raises:
        SourceError: If there is no pip, or it fails; with pip's own last words.
        DigestError: If the wheel is another one.

    Example:
        >>> download_wheel("softvq", "1.0; ls", sha256="")
        Traceback (most recent call last):
        ValueError: version must be digits and dots, as in "1.1.1"; got '1.0; ls'.
    """
    return _download(package, version, sha256, timeout_s=timeout_s, suffix=".whl")


def _download(package: str, version: str, sha256: str, *, timeout_s: float, suffix: str) -> bytes:
    if not version.replace(".", "").isdigit():
        raise ValueError(f'version must be digits and dots, as in "1.1.1"; got {version!r}.')
    refused = "--no-binary" if suffix == ".tar.gz" else "--only-binary"
    with tempfile.TemporaryDirectory(prefix="softvq-") as folder:
        # Quoted in a file, as pip takes digests from nowhere else.
        wanted = Path(folder) / "wanted.txt"
        wanted.write_text(f"{package}=={version} --hash=sha256:{sha256}\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input"]
        command += ["--disable-pip-version-check", "--no-deps", refused, ":all:"]
        command += ["--require-hashes", "--retries", "1", "--timeout", "10"]
        command += ["--dest", folder, "-r", str(wanted)]
        try:
            subprocess.run(
                command, cwd=folder, check=True, capture_output=True, text=True, timeout=timeout_s
            )
        except subprocess.CalledProcessError as error:
            words = " ".join(error.stderr.split())[-300:]
            raise SourceError(f"pip ended with status {error.returncode}: {words}") from error
        except subprocess.TimeoutExpired as error:
            raise SourceError(f"pip gave no answer in {timeout_s:g} s") from error
        archives = list(Path(folder).glob(f"*{suffix}"))
        if len(archives) != 1:
            raise SourceError(f"pip left {len(archives)} archives; 1 was expected")
        contents = archives[0].read_bytes()
    name = f"{package}-{version}{suffix}"
    check_digests({name: contents}, {name: f"sha256:{sha256}"}, needed=[name])
    return contents


class _ArrayReader(pickle.Unpickler):
    """Reads dicts, lists, text, numbers and NumPy arrays; every other name is refused."""

    # What a pickled array is made by, under the names of NumPy 1 and 2.
    ADMITTED = frozenset(
        {
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - as in the base
        if (module, name) not in self.ADMITTED:
            raise SourceError(f"the pickle wants {module}.{name}; arrays alone are read")
        if name == "_reconstruct":
            return _reconstruct
        return getattr(np, name)


def _reconstruct(kind: type, shape: tuple[int, ...], code: bytes) -> np.ndarray:
    """What NumPy's own function does, for plain arrays: an empty one, filled by its state."""
    if kind is not np.ndarray:
        raise SourceError(f"the pickle wants an array of type {kind}; plain ones alone are read")
    return np.ndarray.__new__(np.ndarray, shape, code.decode("ascii"))


def read_arrays(contents: bytes) -> Any:  # noqa: ANN401 - nested dicts of arrays
    """Read a pickle of plain containers of NumPy arrays; nothing that it names is run.

    Args:
        contents: The pickle.

    Returns:
        What it holds.

    Raises:
        SourceError: If it names anything but NumPy's array constructors, or is damaged.

    Example:
        >>> read_arrays(pickle.dumps({"a": [np.arange(3)]}, protocol=3))
        {'a': [array([0, 1, 2])]}
        >>> read_arrays(pickle.dumps(print))
        Traceback (most recent call last):
        softvq.data.fetch.SourceError: the pickle wants builtins.print; arrays alone are read
    """
    try:
        return _ArrayReader(io.BytesIO(contents)).load()
    except (
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        TypeError,
        IndexError,
        KeyError,
        AttributeError,
    ) as error:
        raise SourceError(f"the pickle is damaged: {type(error).__name__}: {error}") from error
