"""A disk without room, for every kind of writer: an error, the last whole state, and no remains.

The operating system is told to let no file grow beyond a limit, which a write notices midway.
"""

import errno
import resource
import signal

import pytest

from tests.export.workers import CONTEXT
from tests.kills import KINDS
from tests.remains import hidden

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="limits of POSIX")


def write_within(kind, folder, number, limit, answers):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        KINDS[kind].write(folder, number)
    except OSError as error:
        answers.put((error.errno, str(error)))
    else:
        answers.put((None, "it was written"))


@pytest.mark.parametrize("kind", [each for each in KINDS if each != "tokens"])
def test_what_was_there_stays_and_nothing_else(kind, tmp_path):
    KINDS[kind].write(tmp_path, 1)
    before = sorted(path.name for path in tmp_path.iterdir())
    answers = CONTEXT.SimpleQueue()
    process = CONTEXT.Process(target=write_within, args=(kind, tmp_path, 2, 100, answers))
    process.start()
    number, message = answers.get()
    process.join(60)
    assert number == errno.EFBIG or "File too large" in message
    assert str(tmp_path) in message
    assert hidden(tmp_path) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert KINDS[kind].read(tmp_path) == 1
