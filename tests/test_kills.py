"""kill -9 at any moment of writing: the last whole state is there, and nothing else piles up.

Every other kill comes at a counted file operation of the writer, and the rest come by the clock.
``SOFTVQ_KILLS=50`` (`make kill`) kills each kind of writer fifty times.
"""

import os
import random
import signal
import time

import pytest

from tests.export.workers import CONTEXT
from tests.kills import KINDS, SHARDS, write_on
from tests.remains import hidden

KILLS = int(os.environ.get("SOFTVQ_KILLS", "4"))
MOST_WRITES = 4
FILES = {"report": 3}  # of which a killed writer may have left one each, and no more


def told(folder, kind):
    """The last number whose writer said that it was done."""
    path = folder.parent / f"{kind}.told"
    return int(path.read_text().split()[-1]) if path.exists() else None


def run(kind, folder, first, *, event=None, after_s=None, last=None):
    """Write from a number on, and be killed; how the process ended."""
    last = first + MOST_WRITES if last is None else last
    process = CONTEXT.Process(target=write_on, args=(kind, folder, first, last, event))
    process.start()
    if after_s is not None:
        process.join(after_s)
        process.kill()
    process.join(120)
    assert process.exitcode is not None, "a writer that hangs"
    return process.exitcode


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_last_whole_state_survives(kind, tmp_path):
    folder, chance = tmp_path / "folder", random.Random(kind)
    folder.mkdir()
    assert run(kind, folder, 1, last=1) == 0
    began = time.monotonic()
    assert run(kind, folder, 2, last=2) == 0
    seconds = time.monotonic() - began
    killed = tries = 0
    while killed < KILLS:
        tries += 1
        assert tries < 20 * KILLS, f"{killed} kills in {tries} tries"
        if kind == "tokens" and KINDS[kind].read(folder) > SHARDS:
            (folder / "t").rename(folder.parent / f"t{tries}")  # whole: another one is begun
        before = told(folder, kind)
        by_clock = {"after_s": chance.random() * 3 * seconds}
        moment = {"event": chance.randrange(1, 60)} if tries % 2 else by_clock
        status = run(kind, folder, before + 1, **moment)
        killed += status == -signal.SIGKILL
        assert status in (0, -signal.SIGKILL)
        if kind != "tokens":
            # What was said to be done is there; what was not said may have been done, too.
            assert told(folder, kind) <= KINDS[kind].read(folder) <= told(folder, kind) + 1
        elif (folder / "t").exists():
            assert KINDS[kind].read(folder) >= 0
            assert len(hidden(folder / "t")) <= SHARDS + 3
        assert len(hidden(folder)) <= FILES.get(kind, 1)
    last = told(folder, kind) + 1
    assert run(kind, folder, last, last=last) == 0
    assert hidden(folder) == []
    if kind == "tokens":
        assert KINDS[kind].read(folder) == 1 + 2 * SHARDS
        assert hidden(folder / "t") == []
    else:
        assert KINDS[kind].read(folder) == last
    print(f"{kind}: {killed} kills in {tries} tries")
