"""The command line in real processes: killed, interrupted, out of space, several at once.

Every run ends with files and a line that tells of them, or with a status that is not 0 and an
error; and what a run leaves behind is never taken for more than it is.
"""

import contextlib
import os
import random
import signal
import time

import pytest

from softvq.export import load_tokens
from softvq.models import save_model
from tests.export.graphs import make_model
from tests.export.workers import run_command, run_in, run_limited, start

TRIES = 10
SHARDS = 15
OPTIONS = ["--data", "textures", "--split", "test", "--num-images", "30", "--size", "8"]
OPTIONS += ["--batch-size", "1", "--shard-size", "2", "--specials", "bos"]
INTERRUPTED = 130


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    return save_model(make_model(), tmp_path_factory.mktemp("model") / "model.safetensors")


@pytest.fixture(scope="module")
def words(started):
    return lambda folder: ["export", "tokens", str(started), str(folder), *OPTIONS]


@pytest.fixture(scope="module")
def whole(words, tmp_path_factory):
    """What an undisturbed run leaves, and the seconds that it takes."""
    folder = tmp_path_factory.mktemp("whole")
    finish(start(run_command, words(folder / "t"), folder / "warm"))  # the server starts up
    began = time.monotonic()
    finish(start(run_command, words(folder / "again"), folder / "log"))
    return read_folder(folder / "t"), time.monotonic() - began


def finish(process):
    process.join(300)
    assert process.exitcode is not None, "a run that hangs"
    return process.exitcode


def read_folder(folder):
    return {
        path.name: path.read_bytes() if path.is_file() else b"a folder"
        for path in sorted(folder.iterdir())
    }


def tell(output):
    return [(output.parent / f"{output.name}.{end}").read_text() for end in ("out", "err")]


def check_what_is_left(folder, expected):
    """Whole shards under their names, and a manifest with all of them or none."""
    left = read_folder(folder) if folder.exists() else {}
    named = {name: content for name, content in left.items() if not name.startswith(".")}
    assert named.items() <= expected.items()
    if "manifest.json" in named:
        assert named == expected
        load_tokens(folder)
    else:
        with pytest.raises((ValueError, FileNotFoundError), match=r"no manifest.json"):
            load_tokens(folder)
    return len(named)


def wait_for_files(folder, count, process):
    """Until so many files are there, or the process has ended: moments that no clock decides."""
    while process.is_alive() and not (folder.exists() and len([*folder.iterdir()]) >= count):
        time.sleep(0.001)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT], ids=str)
def test_a_run_that_is_stopped_at_any_moment_goes_on(words, whole, tmp_path, sign):
    expected, seconds = whole
    chance, left, ends = random.Random(int(sign)), [], set()
    for number in range(TRIES):
        folder, output = tmp_path / f"t{number}", tmp_path / f"log{number}"
        process = start(run_command, words(folder), output)
        wait_for_files(folder, chance.randrange(SHARDS + 1), process)
        time.sleep(chance.random() * seconds / SHARDS)
        with contextlib.suppress(ProcessLookupError):  # it had ended by itself
            os.kill(process.pid, sign)
        status = finish(process)
        ends.add(status)
        told, error = tell(output) if output.with_suffix(".out").exists() else ("", "")
        if status == 0:
            assert told.endswith("shards written, 0 kept; whole)\n")
            assert "manifest.json" in read_folder(folder)
        elif status == INTERRUPTED:
            assert "interrupted: whole files are kept" in error
        left.append(check_what_is_left(folder, expected))
        assert finish(start(run_command, words(folder), output)) == 0
        kept = min(left[-1], SHARDS)
        line = f"({SHARDS - kept} shards written, {kept} kept; whole)\n"
        assert tell(output)[0].endswith(line)
        assert read_folder(folder) == expected
    assert ends & {-sign, INTERRUPTED, 1}, f"none was stopped: {ends}"


@pytest.mark.parametrize("largest", [0, 100, 400, 700, 5000], ids=str)
def test_a_full_disk_is_told_and_leaves_nothing_half_written(words, whole, tmp_path, largest):
    """By the greatest size of a file, which for the system is the same error of the same write."""
    expected, _ = whole
    folder, output = tmp_path / "t", tmp_path.parent / f"log{largest}"
    process = start(run_limited, words(folder), output, largest)
    status = finish(process)
    small = max(map(len, expected.values())) <= largest
    assert (status == 0) == small
    if not small:
        check_what_is_left(folder, expected)
        assert not [name for name in read_folder(folder) if name.endswith(".partial")]
    assert finish(start(run_command, words(folder), tmp_path / "log")) == 0
    assert read_folder(folder) == expected


def test_two_runs_of_the_same_export_at_once_both_end_well(words, whole, tmp_path):
    for number in range(3):
        folder = tmp_path / f"t{number}"
        outputs = [tmp_path / f"log{number}{i}" for i in range(2)]
        both = [start(run_command, words(folder), output) for output in outputs]
        assert [finish(process) for process in both] == [0, 0], [tell(each) for each in outputs]
        assert all("whole)" in tell(output)[0] for output in outputs)
        assert read_folder(folder) == whole[0]


def test_under_torchrun_each_process_writes_its_own_shards(words, whole, tmp_path):
    processes = []
    for rank in range(3):
        place = {"TORCHELASTIC_RUN_ID": "a", "RANK": str(rank), "WORLD_SIZE": "3"}
        processes.append(start(run_in, words(tmp_path / "t"), tmp_path / f"log{rank}", place))
    assert [finish(process) for process in processes] == [0, 0, 0]
    lines = [tell(tmp_path / f"log{rank}")[0] for rank in range(3)]
    assert all("(5 shards written, 0 kept; " in line for line in lines), lines
    assert any("whole)" in line for line in lines)
    assert read_folder(tmp_path / "t") == whole[0]


def test_a_process_with_nothing_to_do_says_so(words, tmp_path):
    one = [*words(tmp_path / "t"), "--shard-size", "30", "--process", "1/2"]
    assert finish(start(run_command, one, tmp_path / "log")) == 0
    assert "nothing to do for this process" in tell(tmp_path / "log")[0]


def test_a_line_that_cannot_be_printed_is_an_error(words, tmp_path):
    (tmp_path / "log.out").symlink_to("/dev/full")
    assert finish(start(run_command, words(tmp_path / "t"), tmp_path / "log")) != 0
    assert "No space left" in (tmp_path / "log.err").read_text()


@pytest.mark.parametrize("where", ["file", "inside", "proc"])
def test_a_place_that_cannot_be_written_to_is_an_error(words, tmp_path, where):
    (tmp_path / "file").write_text("mine")
    folder = {"file": tmp_path / "file", "inside": tmp_path / "file" / "t", "proc": "/proc/none"}
    assert finish(start(run_command, words(folder[where]), tmp_path / "log")) == 1
    assert (tmp_path / "file").read_text() == "mine"
