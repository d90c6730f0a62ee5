"""Memory of this process, as Linux tells it."""

import math
from pathlib import Path

_PROCESS = Path("/proc/self")


def read_memory(key: str) -> float:
    """Return a figure of this process in MiB, NaN where the system does not tell.

    Args:
        key: "VmRSS" (resident now) or "VmHWM" (its peak).

    Example:
        >>> read_memory("VmRSS") <= read_memory("VmHWM")
        True
    """
    try:
        lines = (_PROCESS / "status").read_text(encoding="ascii").splitlines()
    except OSError:
        return math.nan
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024


def reset_peak() -> None:
    """Begin a new peak at what is resident now, where the system can.

    Example:
        >>> reset_peak()
    """
    try:
        (_PROCESS / "clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return
