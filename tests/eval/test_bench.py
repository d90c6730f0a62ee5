import json

import pytest
import torch

from eval import bench
from eval.contenders import CONTENDERS, RESIDUAL, make_rows
from softvq.functional.backends import blocks, chunked


@pytest.mark.parametrize("name", bench.ALL)
def test_a_contender_quantizes_and_sends_gradient_to_its_rows(name):
    torch.manual_seed(0)
    made = bench.ALL[name](32, 4, 128).train()
    rows = make_rows(128, 4).requires_grad_()
    quantized, loss = made(rows)
    (quantized.sum() + loss).backward()
    assert quantized.shape == rows.shape
    assert loss.ndim == 0
    assert rows.grad is not None
    assert rows.grad.abs().sum() > 0
    made.update()


def test_a_wrong_back_end_is_not_timed(monkeypatch, tmp_path):
    right = chunked.first_maximum

    def wrong(scores):
        top, indices = right(scores)
        return top + 1, indices

    monkeypatch.setattr(chunked, "first_maximum", wrong)
    monkeypatch.setattr(blocks, "LOG_FLOOR", -1.0)
    with pytest.raises(RuntimeError, match="chunked differs from reference"):
        bench.run("smoke", names=[], repeats=1, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_files_hold_every_contender(tmp_path, capsys):
    names = ["softvq", "lucid-ema"]
    timings = bench.run("smoke", names=names, repeats=2, folder=tmp_path)
    written = json.loads((tmp_path / "bench.json").read_text())
    assert [each["name"] for each in written["timings"]] == names
    assert (tmp_path / "bench.png").read_bytes()[:4] == b"\x89PNG"
    assert timings[1].ratio == 1.0
    assert timings[0].ratio == pytest.approx(timings[0].step / timings[1].step)
    assert "bare products" in capsys.readouterr().out


def test_stacks_are_timed_against_the_published_one(tmp_path, capsys, monkeypatch):
    small = [bench.Problem(num_rows=128, num_codes=16, dim=4)]
    monkeypatch.setitem(bench.PROBLEMS, "residual", small)
    monkeypatch.setattr(bench, "measure_growth", lambda name, problem: 0.0)
    timings = bench.run("residual", names=[], repeats=1, folder=tmp_path)
    assert [each.name for each in timings] == list(RESIDUAL)
    assert {each.name: each.ratio for each in timings}["lucid-residual"] == 1.0
    assert "softvq-residual" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["softvq", "softvq-hard"])
def test_what_is_timed_trains_its_codes(name):
    made = CONTENDERS[name](32, 4, 128).train()
    bench.step(made, make_rows(128, 4))  # starts, at the end of which the codes are placed
    bench.step(made, make_rows(128, 4, seed=1))
    assert made.inner.codebook.grad.abs().sum() > 0


def test_a_step_ends_after_its_parts():
    torch.manual_seed(0)
    made = CONTENDERS["softvq"](32, 4, 128).train()
    forward, backward, whole = bench.step(made, make_rows(128, 4))
    assert 0 < forward < backward < whole
    assert made.inner.updates == 1


def test_dense_contenders_that_would_not_fit_are_left_out():
    large = bench.Problem(num_rows=16384, num_codes=65536, dim=4)
    fitting = [name for name in CONTENDERS if bench._fits(name, large)]
    assert fitting == ["softvq", "softvq-hard", "hardvq-ema"]


def test_growth_counts_the_matrix_of_a_dense_contender():
    problem = bench.Problem(num_rows=4096, num_codes=4096, dim=4)
    assert bench.measure_growth("dense-soft", problem) > 100  # one N x K buffer is 64 MiB


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("problems", "names"), [("quickk", []), ("smoke", ["softvqq"])], ids=["problems", "name"]
)
def test_unknown_names_are_refused_with_the_valid_ones(problems, names, tmp_path):
    with pytest.raises(ValueError, match="valid are"):
        bench.run(problems, names=names, repeats=1, folder=tmp_path)
