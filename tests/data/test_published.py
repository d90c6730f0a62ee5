import hashlib
import io
import re

import pytest
import torch

from softvq.data import published
from softvq.data.fetch import DigestError, FetchError, SourceError
from softvq.data.published import load_published, read_file, read_hub_file


class Code:
    def __reduce__(self):
        return print, ("run",)


def file_of(held):
    written = io.BytesIO()
    torch.save(held, written)
    contents = written.getvalue()
    return contents, f"net-{hashlib.sha256(contents).hexdigest()[:8]}.pth"


@pytest.fixture
def home(monkeypatch):
    """An address that answers with what it is told to."""
    answers = {}

    def answer(url, *, most_bytes):
        if url not in answers:
            raise SourceError("no network")
        return answers[url]

    monkeypatch.setattr(published, "download", answer)
    return answers


def test_a_file_is_fetched_once_and_kept(home, tmp_path):
    contents, name = file_of({"a": torch.ones(2), "version": 3})
    url = f"https://example.org/{name}"
    home[url] = contents
    found = load_published(url, cache=tmp_path)
    assert list(found) == ["a"]
    assert found["a"].tolist() == [1.0, 1.0]
    home.clear()
    assert load_published(url, cache=tmp_path)["a"].tolist() == [1.0, 1.0]
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_a_damaged_file_is_fetched_again(home, tmp_path):
    contents, name = file_of({"a": torch.ones(2)})
    url = f"https://example.org/{name}"
    home[url] = contents
    (tmp_path / name).write_bytes(contents[:-1])
    load_published(url, cache=tmp_path)
    assert (tmp_path / name).read_bytes() == contents


def test_no_source_says_what_was_tried(home, tmp_path):
    with pytest.raises(FetchError) as caught:
        load_published("https://example.org/net-00000000.pth", cache=tmp_path)
    assert str(caught.value).splitlines() == [
        "net-00000000.pth could not be had. Tried, in this order:",
        f"- cache file {tmp_path / 'net-00000000.pth'}: not there",
        "- https://example.org/net-00000000.pth: no network",
        f"Put net-00000000.pth from its home into {tmp_path}.",
    ]


def test_nothing_that_a_file_names_is_run(capsys):
    contents, name = file_of({"a": Code()})
    with pytest.raises(SourceError, match="cannot be read"):
        read_hub_file(contents, name)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["net-00000000.pth", "net.pth", "net-.pth"])
def test_another_digest_or_none_is_refused(name):
    contents, _ = file_of({"a": torch.ones(2)})
    with pytest.raises(DigestError, match=f"{re.escape(name)} has sha256"):
        read_hub_file(contents, name)


def test_what_is_no_mapping_is_refused():
    with pytest.raises(SourceError, match="holds a list; tensors by name were expected"):
        read_hub_file(*file_of([torch.ones(2)]))


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(SourceError, match="cannot be read"):
        read_file(tmp_path)
