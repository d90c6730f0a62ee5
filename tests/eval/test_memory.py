import math
import mmap

from eval import memory
from eval.memory import read_memory, reset_peak


def test_what_is_taken_shows_in_the_peak_and_a_reset_forgets_it():
    reset_peak()
    before = read_memory("VmHWM")
    # Asked of the system itself and touched page by page: an allocator hands out pages that were
    # resident before, and keeps those that it was given back.
    with mmap.mmap(-1, 64 * 2**20) as held:
        for start in range(0, len(held), mmap.PAGESIZE):
            held[start] = 1
        assert read_memory("VmHWM") - before > 60
    reset_peak()
    assert read_memory("VmHWM") < before + 32


def test_where_the_system_does_not_tell_there_is_no_figure(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_PROCESS", tmp_path)
    assert math.isnan(read_memory("VmRSS"))
    monkeypatch.setattr(memory, "_PROCESS", tmp_path / "none")
    reset_peak()
