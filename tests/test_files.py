import errno
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from softvq import files
from softvq.files import holding_interrupts, remove_remains, replacing
from tests.remains import hidden, leave_remains


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_file_takes_its_name_when_it_is_whole(tmp_path):
    target = tmp_path / "a" / "b" / "codes.bin"
    with replacing(target) as beside:
        beside.write_bytes(b"half")
        assert beside.stat().st_dev == target.parent.stat().st_dev
        assert beside.suffix == ".partial"
        assert not target.exists()
    assert target.read_bytes() == b"half"
    assert names(target.parent) == ["codes.bin"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_what_breaks_off_leaves_the_old_file_and_nothing_else(tmp_path, error):
    target = tmp_path / "codes.bin"
    target.write_bytes(b"old")

    def write():
        with replacing(target) as beside:
            beside.write_bytes(b"new, but not all of it")
            raise error

    with pytest.raises(error):
        write()
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["codes.bin"]


def test_what_breaks_off_before_writing_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError, match="early"), replacing(tmp_path / "a"):
        raise RuntimeError("early")
    assert names(tmp_path) == []


def test_an_old_file_is_replaced(tmp_path):
    target = tmp_path / "codes.bin"
    target.write_bytes(b"old and longer")
    with replacing(str(target)) as beside:
        beside.write_bytes(b"new")
    assert target.read_bytes() == b"new"


def test_nothing_written_is_an_error(tmp_path):
    target = tmp_path / "codes.bin"
    target.write_bytes(b"old")
    with pytest.raises(FileNotFoundError, match="partial"), replacing(target):
        pass
    assert target.read_bytes() == b"old"


def test_two_writers_do_not_share_a_path(tmp_path):
    with replacing(tmp_path / "a") as one, replacing(tmp_path / "a") as two:
        assert one != two
        one.write_bytes(b"1")
        two.write_bytes(b"2")
    assert names(tmp_path) == ["a"]
    assert Path(tmp_path / "a").read_bytes() == b"1"


def test_a_writer_leaves_no_trace(tmp_path):
    with replacing(tmp_path / "a") as beside:
        beside.write_text("a")
        assert len(hidden(tmp_path)) == 1
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("locked", [True, False], ids=["in writing", "before the lock"])
@pytest.mark.parametrize("name", ["a.bin", "a [b]*?.bin", "naïve 文件.bin", "n" * 255], ids=len)
def test_the_next_writer_removes_what_a_killed_one_left(tmp_path, name, locked):
    target = tmp_path / name
    left = leave_remains(target.with_name(files._shorten(name)), locked=locked)
    other = leave_remains(tmp_path / "other")
    with replacing(target) as beside:
        beside.write_text("whole")
    assert not left.exists()
    assert other.exists()
    assert target.read_text() == "whole"


def test_what_another_writes_just_now_stays(tmp_path):
    target = tmp_path / "a"
    with replacing(target) as slow:
        slow.write_text("slow")
        with replacing(target) as fast:
            fast.write_text("fast")
        remove_remains(tmp_path, "*")
        assert target.read_text() == "fast"
    assert target.read_text() == "slow"
    assert names(tmp_path) == ["a"]


def test_files_of_others_are_no_remains(tmp_path):
    mine = [".a.partial", "a.1.partial", ".a.1.partial", ".b.1.partial"]
    for name in mine:
        (tmp_path / name).write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / ".a.2.partial").symlink_to(tmp_path / "folder", target_is_directory=True)
    with replacing(tmp_path / "a") as beside:
        beside.write_text("a")
    assert names(tmp_path) == sorted([*mine, "a", "folder", ".a.2.partial"])


WRITE_AND_DIE = """
import os, runpy, sys
with runpy.run_path(sys.argv[1])["replacing"](sys.argv[2]) as beside:
    if sys.argv[3] == "written":
        beside.write_text("half")
    os._exit(9)
"""


@pytest.mark.parametrize("moment", ["opened", "written"])
def test_a_lock_dies_with_its_process(tmp_path, moment):
    target = tmp_path / "a"
    target.write_text("old")
    words = [sys.executable, "-c", WRITE_AND_DIE, files.__file__, str(target), moment]
    assert subprocess.run(words, check=False, timeout=60).returncode == 9
    assert target.read_text() == "old"
    assert len(hidden(tmp_path)) == 1
    with replacing(target) as beside:
        beside.write_text("new")
    assert names(tmp_path) == ["a"]


def test_many_writers_of_one_file_at_once(tmp_path):
    """Each also looks for remains: none may take another's folder for one."""
    target, failed = tmp_path / "a", []

    def write(number):
        try:
            for _ in range(40):
                with replacing(target) as beside:
                    beside.write_text(str(number) * 1000)
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert names(tmp_path) == ["a"]
    assert len(set(target.read_text())) == 1
    assert len(target.read_text()) == 1000


def test_a_folder_that_is_swept_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    """The moments in which a sweep may come, one after the other."""
    moments = ["before", "after"]
    take, open_file = files._take, os.open

    def sweep():
        for left in tmp_path.glob(".*.partial"):
            for each in left.iterdir():
                each.unlink()
            left.rmdir()

    def swept_take(lock, *, wait):
        if wait and "after" in moments:
            moments.remove("after")
            sweep()
        return take(lock, wait=wait)

    def swept_open(path, *rest, **options):
        if str(path).endswith("lock") and "before" in moments:
            moments.remove("before")
            sweep()
        return open_file(path, *rest, **options)

    monkeypatch.setattr(files, "_take", swept_take)
    monkeypatch.setattr(os, "open", swept_open)
    with replacing(tmp_path / "a") as beside:
        beside.write_text("a")
    assert moments == []
    assert names(tmp_path) == ["a"]


def test_without_locks_only_age_tells(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "fcntl", None)
    target, left = tmp_path / "a", leave_remains(tmp_path / "a")
    with replacing(target) as beside:
        beside.write_text("a")
    assert names(tmp_path) == sorted([left.name, "a"])
    os.utime(left, (0, 0))
    with replacing(target) as beside:
        beside.write_text("b")
    assert names(tmp_path) == ["a"]


def test_a_file_system_without_locks_is_written_to(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    left = leave_remains(tmp_path / "a")
    with replacing(tmp_path / "a") as beside:
        beside.write_text("a")
    assert names(tmp_path) == sorted([left.name, "a"])


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path):
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    with replacing(tmp_path / "link") as beside:
        beside.write_text("mine")
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert (tmp_path / "link").read_text() == "mine"
    assert not (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG], ids=os.strerror)
def test_a_full_disk_names_the_file_that_was_to_be(tmp_path, number):
    target = tmp_path / "a"
    target.write_text("old")

    def write():
        with replacing(target) as beside:
            beside.write_bytes(b"half")
            raise OSError(number, os.strerror(number))

    with pytest.raises(OSError, match="cannot be written") as caught:
        write()
    assert (caught.value.errno, caught.value.filename) == (number, str(target))
    assert os.strerror(number) in str(caught.value)
    assert target.read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_an_error_that_is_not_of_writing_stays_as_it_is(tmp_path):
    mine = PermissionError(errno.EACCES, "Permission denied", "an input")
    with pytest.raises(PermissionError) as caught, replacing(tmp_path / "a"):
        raise mine
    assert caught.value is mine


@pytest.mark.parametrize("where", ["file/a", "folder", "/proc/none/a"])
def test_a_place_that_cannot_be_written_to_is_named(tmp_path, where):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    target = tmp_path / where
    with pytest.raises(OSError, match="cannot be written") as caught, replacing(target):
        pytest.fail("nothing is written then")
    assert caught.value.filename == str(target)
    assert names(tmp_path) == ["file", "folder"]


@contextmanager
def as_nobody():
    """Rights of a user who owns nothing, where the tests run as one who may write everywhere."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_a_read_only_folder_is_named():
    with tempfile.TemporaryDirectory() as made:  # tmp_path is for the eyes of its owner alone
        folder = Path(made)
        (folder / "a").write_text("old")
        folder.chmod(0o555)
        with (
            as_nobody(),
            pytest.raises(PermissionError, match="cannot be written") as caught,
            replacing(folder / "a"),
        ):
            pytest.fail("nothing is written then")
        assert caught.value.filename == str(folder / "a")
        assert names(folder) == ["a"]


def test_an_interrupt_waits_for_the_end_of_what_holds_it():
    done, before = [], signal.getsignal(signal.SIGINT)

    def work():
        with holding_interrupts():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            done.append("to its end")
        done.append("after it")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["to its end"]
    assert signal.getsignal(signal.SIGINT) is before


def test_whoever_only_notes_interrupts_still_does():
    noted, before = [], signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, lambda number, frame: noted.append(number))
    try:
        with holding_interrupts():
            signal.raise_signal(signal.SIGINT)
            assert noted == []
    finally:
        signal.signal(signal.SIGINT, before)
    assert noted == [signal.SIGINT]


def test_where_interrupts_are_ignored_they_stay_so():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with holding_interrupts():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_holds_nothing():
    before, seen = signal.getsignal(signal.SIGINT), []

    def hold():
        with holding_interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    assert seen == [before]
