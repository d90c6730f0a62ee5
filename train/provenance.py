"""Where a number comes from: commit, versions, device."""

import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch

NO_CODE = ("docs", "samples", "tests", "*.md")
"""Changes here change no figure."""
PACKAGES = ("softvq", "torch", "vector-quantize-pytorch", "accelerate", "numpy", "transformers")


def find_commit() -> str:
    """Commit of the code, ``-dirty`` where its files differ from it; "unknown" without git.

    Documents, pictures and tests are no part of the code.

    Example:
        >>> len(find_commit()) > 0
        True
    """
    here = Path(__file__).parent
    head = _git(here, "rev-parse", "--short=12", "HEAD")
    if head is None:
        return "unknown"
    # Without the lock that status takes to refresh the index: whoever commits meanwhile would fail.
    places = [":(top)", *(f":(top,exclude){each}" for each in NO_CODE)]
    changed = _git(here, "--no-optional-locks", "status", "--porcelain", "-uno", "--", *places)
    return f"{head}-dirty" if changed else head


def find_versions() -> dict[str, str]:
    """Versions of what the figures depend on.

    Example:
        >>> "torch" in find_versions()
        True
    """
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def name_device(device: torch.device) -> str:
    """A device in words.

    Example:
        >>> "thread" in name_device(torch.device("cpu"))
        True
    """
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} ({device})"
    return f"CPU {platform.machine()}, {torch.get_num_threads()} threads"


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
