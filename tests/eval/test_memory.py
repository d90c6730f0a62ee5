import math
import mmap
import time

from eval import memory
from eval.memory import read_memory, reset_peak


def test_what_is_taken_shows_in_the_peak_and_a_reset_forgets_it():
    reset_peak()
    before = read_memory("VmHWM")
    # Asked of the system itself: an allocator may hand out pages that were resident before.
    with mmap.mmap(-1, 64 * 2**20) as held:
        held.write(b"1" * len(held))
        assert read_memory("VmHWM") - before > 60
    # The kernel may be late with pages that were given back, where it has much to do.
    for _ in range(50):
        reset_peak()
        if read_memory("VmHWM") < before + 60:
            return
        time.sleep(0.1)
    raise AssertionError(f"the peak stays at {read_memory('VmHWM')} MiB, {before} before")


def test_where_the_system_does_not_tell_there_is_no_figure(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_PROCESS", tmp_path)
    assert math.isnan(read_memory("VmRSS"))
    monkeypatch.setattr(memory, "_PROCESS", tmp_path / "none")
    reset_peak()
