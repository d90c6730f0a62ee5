"""Pillow's switch for files that are cut short: off while we read, whoever has turned it on.

It is one for the whole process, and some packages turn it on as they are imported. A file's fate
must not depend on them: half of a picture is no picture, filled up with grey least of all.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import ImageFile

_lock = threading.Lock()
_readers = 0
_before = False


@contextmanager
def refusing_truncated() -> Iterator[None]:
    """Let Pillow raise for files that are cut short; the switch is put back by the last to leave.

    Example:
        >>> ImageFile.LOAD_TRUNCATED_IMAGES = True
        >>> with refusing_truncated():
        ...     ImageFile.LOAD_TRUNCATED_IMAGES
        False
        >>> ImageFile.LOAD_TRUNCATED_IMAGES
        True
        >>> ImageFile.LOAD_TRUNCATED_IMAGES = False
    """
    global _readers, _before
    with _lock:
        if _readers == 0:
            _before = ImageFile.LOAD_TRUNCATED_IMAGES
            ImageFile.LOAD_TRUNCATED_IMAGES = False
        _readers += 1
    try:
        yield
    finally:
        with _lock:
            _readers -= 1
            if _readers == 0:
                ImageFile.LOAD_TRUNCATED_IMAGES = _before
