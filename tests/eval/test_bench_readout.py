import json

import pytest
import torch

from eval import bench_readout
from eval.bench_readout import Timing


def test_files_and_table_hold_all_that_was_run(tmp_path, monkeypatch, capsys):
    """Each memory figure costs a process: two lengths, and self-attention stops after one."""
    monkeypatch.setattr(bench_readout, "PATIENCE", 0.0)
    timings = bench_readout.run(repeats=1, folder=tmp_path, lengths=(32, 64))
    expected = [("ddcl", 32), ("self-attention", 32), ("ddcl", 64)]
    assert [(each.name, each.length) for each in timings] == expected
    written = json.loads((tmp_path / "readout.json").read_text())
    assert [(each["name"], each["length"]) for each in written["timings"]] == expected
    assert all(each.seconds > 0 for each in timings)
    assert (tmp_path / "readout.png").read_bytes()[:4] == b"\x89PNG"
    assert "too long" in capsys.readouterr().out


def test_the_table_tells_how_time_grows(capsys):
    timings = [
        Timing(name=name, length=length, seconds=length**power / 1e6, growth_mib=1.0)
        for length in (64, 128, 256)
        for name, power in (("ddcl", 1), ("self-attention", 2))
    ]
    bench_readout.print_timings(timings)
    shown = capsys.readouterr().out
    assert "ddcl: time grows as N^1.00" in shown
    assert "self-attention: time grows as N^2.00" in shown


@pytest.mark.parametrize("name", ["ddcl", "self-attention"])
def test_each_step_sends_gradient_to_its_tokens(name):
    tokens = bench_readout.make_tokens(16).requires_grad_()
    bench_readout.make_steps()[name](tokens).backward()
    assert tokens.grad.abs().sum() > 0
    assert torch.isfinite(tokens.grad).all()
