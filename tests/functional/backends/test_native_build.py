import multiprocessing
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from softvq.functional import nearest_code
from softvq.functional.backends import native, native_build
from softvq.functional.backends.native_build import NativeError, build
from tests.compilers import needs_compiler

REASON = "from softvq.functional.backends import native_build as b; print(b.why_not())"


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """A cache folder of its own, and nothing loaded yet."""
    monkeypatch.setenv(native_build.CACHE_VARIABLE, str(tmp_path))
    native_build.load.cache_clear()
    yield tmp_path / "native"
    native_build.load.cache_clear()


def make_compiler(folder: Path, body: str) -> str:
    """A program that stands for a compiler, and tells its version."""
    script = folder / "compiler.sh"
    script.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo 1; exit; fi\n{body}\n')
    script.chmod(0o755)
    return str(script)


def libraries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.so"))


@needs_compiler
def test_the_library_is_built_once_and_for_this_user_alone(fresh):
    assert native_build.load().library is not None
    (library,) = libraries(fresh)
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o700
    before = library.stat().st_mtime_ns
    build(fresh)
    assert library.stat().st_mtime_ns == before
    assert not list(fresh.glob("*.partial"))


@needs_compiler
@pytest.mark.parametrize("left", [0, 1000])
def test_a_library_that_was_cut_short_is_built_anew(fresh, left):
    build(fresh)
    (library,) = libraries(fresh)
    whole = library.read_bytes()
    library.unlink()  # the file that is loaded here keeps its contents
    library.write_bytes(whole[:left])
    assert build(fresh).softvq_panel() > 0
    assert len(library.read_bytes()) > 1000


@needs_compiler
def test_a_library_without_its_digest_is_built_anew(fresh):
    build(fresh)
    (library,) = libraries(fresh)
    library.with_suffix(".sha256").unlink()
    library.unlink()
    library.write_bytes(b"anything")
    assert build(fresh).softvq_panel() > 0


@needs_compiler
def test_processes_that_build_at_once_do_no_harm(fresh):
    commands = [sys.executable, "-c", REASON]
    running = [subprocess.Popen(commands, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate()[0].strip() for process in running] == ["None"] * 3
    assert len(libraries(fresh)) == 1
    assert not list(fresh.glob("*.partial"))


@needs_compiler
def test_a_change_of_flags_is_another_library(fresh, monkeypatch):
    build(fresh)
    monkeypatch.setattr(native_build, "FLAGS", (*native_build.FLAGS, "-DANYTHING"))
    build(fresh)
    assert len(libraries(fresh)) == 2


@needs_compiler
def test_flags_that_a_compiler_does_not_know_are_left_out(fresh, monkeypatch):
    monkeypatch.setattr(native_build, "TUNINGS", (("-march=nonsense",), ()))
    assert build(fresh).softvq_panel() > 0


def test_without_a_compiler_the_reason_names_them(fresh, monkeypatch):
    monkeypatch.delenv(native_build.COMPILER_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(fresh))
    found = native_build.load()
    assert found.library is None
    assert "no C compiler was found: install one of cc, gcc, clang" in found.reason


def test_a_compiler_that_is_not_there_is_named(fresh, monkeypatch):
    monkeypatch.setenv(native_build.COMPILER_VARIABLE, "/nowhere/cc -O1")
    assert "CC names, /nowhere/cc -O1, is not there" in native_build.load().reason


def test_a_compiler_that_fails_is_quoted(fresh, monkeypatch, tmp_path):
    compiler = make_compiler(tmp_path, "echo it is broken >&2; exit 3")
    monkeypatch.setenv(native_build.COMPILER_VARIABLE, compiler)
    reason = native_build.load().reason
    assert "failed with status 3: it is broken" in reason
    assert libraries(fresh) == []
    assert native.unavailable(torch.device("cpu"), torch.float32) == reason


def test_a_compiler_that_writes_nothing_is_found_out(fresh, monkeypatch, tmp_path):
    monkeypatch.setenv(native_build.COMPILER_VARIABLE, make_compiler(tmp_path, "exit 0"))
    assert "wrote nothing" in native_build.load().reason


def test_a_compiler_that_writes_no_library_is_found_out(fresh, monkeypatch, tmp_path):
    body = 'while [ "$1" != -o ]; do shift; done; echo text > "$2"'
    monkeypatch.setenv(native_build.COMPILER_VARIABLE, make_compiler(tmp_path, body))
    assert native_build.load().library is None
    assert "softvq-" in native_build.load().reason


@needs_compiler
def test_a_folder_that_cannot_be_made_is_a_reason(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv(native_build.CACHE_VARIABLE, str(blocked))
    native_build.load.cache_clear()
    assert str(blocked) in native_build.load().reason
    native_build.load.cache_clear()


@needs_compiler
def test_a_folder_that_others_can_change_is_not_trusted(fresh):
    build(fresh)
    fresh.chmod(0o777)
    with pytest.raises(NativeError, match="can be changed by other users"):
        build(fresh)


@needs_compiler
def test_a_library_that_others_can_change_is_not_loaded(fresh):
    build(fresh)
    libraries(fresh)[0].chmod(0o666)
    with pytest.raises(NativeError, match="can be changed by other users"):
        build(fresh)


@pytest.mark.parametrize("value", ["0", "off", " False "])
def test_it_can_be_turned_off(fresh, monkeypatch, value):
    monkeypatch.setenv(native_build.SWITCH_VARIABLE, value)
    assert "turned off" in native_build.load().reason


@needs_compiler
def test_threads_that_load_at_once_get_one_library_each(fresh):
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: native_build.load(), range(4)))
    assert all(each.library is not None for each in found)


@pytest.mark.parametrize("chosen", [True, False], ids=["chosen", "default"])
def test_the_folder_is_the_users_cache(monkeypatch, tmp_path, chosen):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv(native_build.CACHE_VARIABLE, str(tmp_path / "mine") if chosen else "")
    expected = tmp_path / "mine" / "native" if chosen else tmp_path / "xdg" / "softvq" / "native"
    assert native_build.native_folder() == expected


@needs_compiler
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_forked_process_computes_as_its_parent(threads, monkeypatch):
    monkeypatch.setattr(native, "WORK_A_THREAD", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        z, codebook = torch.randn(300, 8), torch.randn(400, 8)
        expected = nearest_code(z, codebook, backend="native")
        with multiprocessing.get_context("fork").Pool(1) as pool:
            found = pool.apply(_find_in_child, (threads, z, codebook))
    finally:
        torch.set_num_threads(before)
    assert found == expected.tolist()


def _find_in_child(threads, z, codebook):
    """In the child, which has its parent's number of threads and none of the threads."""
    assert torch.get_num_threads() == threads
    return native.nearest_code(z, codebook).tolist()
