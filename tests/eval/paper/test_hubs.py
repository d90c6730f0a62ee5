"""The loaders with stand-ins for the network, and without one."""

import socket
import warnings
from types import SimpleNamespace

import pytest

from eval.paper import hubs, readout, texts
from eval.paper.sizes import Sizes
from eval.paper.store import Store
from softvq.data.fetch import FetchError


@pytest.fixture
def films(monkeypatch):
    """SST-2 as its loader gives it, six sentences long; one of them twice."""
    train = {"sentence": ["good", "bad", "good", "fine"], "label": [1, 0, 1, 1]}
    held = {"train": train, "validation": {"sentence": ["poor", "great"], "label": [0, 1]}}
    monkeypatch.setattr(hubs.datasets, "load_dataset", lambda name: held)


@pytest.fixture
def no_network(monkeypatch):
    """Both homes out of reach, as their loaders say it, with their lines on the way."""

    def refuse(*_, **__):
        warnings.warn("Retrying", stacklevel=1)
        raise ConnectionError("nobody\n answers")

    monkeypatch.setattr(hubs.datasets, "load_dataset", refuse)
    monkeypatch.setattr(hubs, "fetch_20newsgroups", refuse)


def test_sst2_keeps_its_own_split(films):
    held = texts.load_texts("sst-2", num_train=3, num_test=2)
    assert sorted(held.texts[:3]) == ["bad", "fine", "good"]
    assert sorted(held.texts[3:]) == ["great", "poor"]
    assert dict(zip(held.texts, held.labels, strict=True))["great"] == 1
    assert held.classes == ("negative", "positive")


def test_newsgroups_come_without_what_gives_the_group_away(monkeypatch):
    asked = []

    def fetch(*, subset, remove, **_):
        asked.append((subset, set(remove)))
        return {"data": [f"{subset} text"], "target": [1], "target_names": ["a", "b"]}

    monkeypatch.setattr(hubs, "fetch_20newsgroups", fetch)
    held = hubs.read_hub("20-newsgroups")
    assert held == ([("train text", 1)], [("test text", 1)], ("a", "b"))
    assert [subset for subset, _ in asked] == ["train", "test"]
    assert all(parts == {"headers", "footers", "quotes"} for _, parts in asked)


@pytest.mark.parametrize("name", hubs.READERS)
def test_without_a_network_the_reason_is_one_line(no_network, name):
    before = socket.getdefaulttimeout()
    with pytest.raises(FetchError, match=f"{name} could not be had from its home: nobody answers"):
        hubs.read_hub(name)
    assert socket.getdefaulttimeout() == before


def test_what_the_network_refuses_is_left_out_and_the_rest_goes_on(
    no_network, tmp_path, monkeypatch, capsys
):
    sets = {"sst-2": (4, 2, 8), "bbc": (4, 2, 8), "20-newsgroups": (4, 2, 8)}
    about = SimpleNamespace(labels=None)
    monkeypatch.setattr(
        readout, "load_texts", lambda name, **o: about if name == "bbc" else hubs.read_hub(name)
    )
    monkeypatch.setattr(readout, "load_features", lambda *_, **__: about)
    monkeypatch.setattr(readout, "regress", lambda _: {"accuracy": 0.5, "parameters": 1})
    monkeypatch.setattr(
        readout, "train", lambda *_, **__: {"accuracy": 0.5, "held_out": 0.5, "parameters": 1}
    )
    readout.run(Sizes(texts=sets, seeds=1), tmp_path)
    lines = [line for line in capsys.readouterr().out.splitlines() if "left out" in line]
    assert [line.split(" is")[0].strip() for line in lines] == ["SST-2", "20 Newsgroups"]
    rows = Store(tmp_path, "readout", sizes=Sizes().take("epochs")).rows
    assert {row["set"] for row in rows} == {"BBC News"}


def test_a_package_that_cannot_be_had_is_an_error(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise FetchError("no index")

    monkeypatch.setattr(readout, "load_texts", refuse)
    with pytest.raises(FetchError, match="no index"):
        readout.run(Sizes(texts={"bbc": (4, 2, 8)}, seeds=1), tmp_path)
