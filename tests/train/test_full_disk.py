"""A disk that is full, or may not be written to: one line that names the place."""

import errno
import os
import runpy
import sys

import pytest
import torch

from softvq.models import io
from train.board import Board
from train.checkpoint import read_state
from train.loop import CHECKPOINT, Run

FEW = ("optim.steps=4", "data.num_train=64", "data.num_test=24", "checkpoint_every=2")


def train_here(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["train", "smoke", *FEW, *map(str, words)])
    monkeypatch.delitem(sys.modules, "train.__main__", raising=False)
    runpy.run_module("train", run_name="__main__")


def refuse(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_keeps_the_last_checkpoint_and_names_it(monkeypatch, tmp_path):
    save, saved = io.save_file, []

    def fill(tensors, path, metadata):
        if saved:
            path.write_bytes(b"half")
            refuse()
        saved.append(path)
        save(tensors, path, metadata=metadata)

    monkeypatch.setattr(io, "save_file", fill)
    path = tmp_path / CHECKPOINT
    with pytest.raises(SystemExit, match="No space left") as caught:
        train_here(monkeypatch, "--out", tmp_path)
    message = str(caught.value)
    assert message.startswith("error: ")
    assert repr(str(path)) in message
    assert read_state(path)["step"] == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == [CHECKPOINT, "tensorboard"]


@pytest.mark.parametrize("call", ["scalars", "pictures", "close"])
def test_curves_that_cannot_be_written_name_their_folder(monkeypatch, tmp_path, call):
    board = Board(tmp_path / "curves", settings={"seed": 0})
    for name in ("add_scalar", "add_image"):
        monkeypatch.setattr(board._writer, name, refuse)
    close = board._writer.close
    monkeypatch.setattr(board._writer, "close", refuse)
    calls = {
        "scalars": lambda: board.scalars(1, {"a": 1.0}),
        "pictures": lambda: board.pictures(1, [torch.zeros(1, 3, 4, 4, dtype=torch.uint8)]),
        "close": lambda: board.close(finished=True),
    }
    with pytest.raises(OSError, match="curves cannot be written") as caught:
        calls[call]()
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "curves"))
    close()


def test_a_file_where_the_folder_should_be_is_one_line(monkeypatch, tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(SystemExit, match=r"error: .*out"):
        train_here(monkeypatch, "--out", tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


def test_a_run_that_cannot_save_says_so_before_ten_minutes_are_lost(monkeypatch, tmp_path):
    """The folder is written to as the run begins: its curves come first."""
    monkeypatch.setattr(Run, "_step", lambda *_: pytest.fail("it trained"))
    (tmp_path / "out").write_text("")
    with pytest.raises(SystemExit, match="error: "):
        train_here(monkeypatch, "--out", tmp_path / "out" / "deep")
