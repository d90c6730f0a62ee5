import json

import pytest
import torch

from eval import bench_readout


def test_the_files_hold_both_at_every_length(tmp_path, capsys):
    timings = bench_readout.run(repeats=1, folder=tmp_path, lengths=(64, 128, 256))
    written = json.loads((tmp_path / "readout.json").read_text())
    assert [(each["name"], each["length"]) for each in written["timings"]] == [
        (name, length) for length in (64, 128, 256) for name in ("ddcl", "self-attention")
    ]
    assert all(each.seconds > 0 for each in timings)
    assert (tmp_path / "readout.png").read_bytes()[:4] == b"\x89PNG"
    shown = capsys.readouterr().out
    assert "time grows as N^" in shown
    assert "256" in shown


def test_self_attention_stops_where_it_takes_too_long(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench_readout, "PATIENCE", 0.0)
    timings = bench_readout.run(repeats=1, folder=tmp_path, lengths=(32, 64))
    assert [(t.name, t.length) for t in timings] == [
        ("ddcl", 32),
        ("self-attention", 32),
        ("ddcl", 64),
    ]
    assert "too long" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["ddcl", "self-attention"])
def test_each_step_sends_gradient_to_its_tokens(name):
    tokens = bench_readout.make_tokens(16).requires_grad_()
    bench_readout.make_steps()[name](tokens).backward()
    assert tokens.grad.abs().sum() > 0
    assert torch.isfinite(tokens.grad).all()
