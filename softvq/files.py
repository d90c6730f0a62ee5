"""Writing files so that nothing half-written is ever taken for whole."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """Give a path beside ``path`` to write to; on success it takes that name, else it is removed.

    Args:
        path: The file to be written; missing folders are made.

    Yields:
        A path in the same folder, so that the rename is atomic.

    Raises:
        FileNotFoundError: If nothing was written.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp()) / "a.txt"
        >>> with replacing(target) as beside:
        ...     _ = beside.write_text("whole")
        >>> target.read_text()
        'whole'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    beside.touch()  # only to learn what mode a new file gets here; some writers give it their own
    mode = beside.stat().st_mode
    beside.unlink()
    try:
        yield beside
        beside.chmod(mode)
        with open(beside, "rb") as written:
            os.fsync(written.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
