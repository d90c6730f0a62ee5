import math

import torch

from eval import memory
from eval.memory import read_memory, reset_peak


def test_what_is_taken_shows_in_the_peak_and_a_reset_forgets_it():
    reset_peak()
    before = read_memory("VmHWM")
    held = torch.ones(2**24)  # 64 MiB, written
    assert read_memory("VmHWM") - before > 60
    del held
    reset_peak()
    assert read_memory("VmHWM") < before + 60


def test_where_the_system_does_not_tell_there_is_no_figure(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_PROCESS", tmp_path)
    assert math.isnan(read_memory("VmRSS"))
    monkeypatch.setattr(memory, "_PROCESS", tmp_path / "none")
    reset_peak()
