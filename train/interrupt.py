"""Ctrl-C between two steps and not inside one, so that what is saved then is whole."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

NOTE = b"\nStopping after this step. Ctrl-C again stops at once and saves nothing.\n"


@contextmanager
def noting_interrupts() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C only be noted; a second one raises KeyboardInterrupt as ever.

    Yields:
        A function that tells whether one came. Outside of the main thread, which alone gets
        signals, it never does.

    Example:
        >>> with noting_interrupts() as interrupted:
        ...     signal.raise_signal(signal.SIGINT)
        ...     interrupted()
        True
    """
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True
        os.write(2, NOTE)  # print is not safe where a signal may come in the midst of one

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGINT, before)
