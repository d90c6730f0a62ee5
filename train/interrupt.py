"""Ctrl-C between two steps and not inside one, so that what is saved then is whole.

A scheduler that takes the machine back sends SIGTERM: the same is done.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

NOTE = b"\nStopping after this step. Ctrl-C again stops at once and saves nothing.\n"


SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def noting_interrupts() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C or SIGTERM only be noted; a second of a kind raises KeyboardInterrupt.

    torchrun passes on to its processes what it gets, of which they may have had one themselves: so
    one of each stops nothing at once.

    Yields:
        A function that tells whether one came. Outside of the main thread, which alone gets
        signals, it never does.

    Example:
        >>> with noting_interrupts() as interrupted:
        ...     signal.raise_signal(signal.SIGINT)
        ...     interrupted()
        True
    """
    came: set[int] = set()

    def note(number: int, frame: FrameType | None) -> None:
        if number in came:
            raise KeyboardInterrupt
        if not came:
            os.write(2, NOTE)  # print is not safe where a signal may come in the midst of one
        came.add(number)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
