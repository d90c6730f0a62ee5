import json

import pytest

from eval import assignment as module
from eval.assignment import RATIOS, assignment, fit_exponent
from softvq.functional.backends import blocks, chunked


def test_the_figures_are_printed_and_written(tmp_path, capsys):
    figures = assignment(smoke=True, repeats=1, out=tmp_path)
    written = json.loads((tmp_path / "assignment.json").read_text())
    assert set(figures.by_ratio) == set(RATIOS)
    assert all(seconds > 0 for seconds in figures.by_codes.values())
    assert written["backend"] == figures.backend
    printed = capsys.readouterr().out
    assert "Slowest temperature over T = variance" in printed
    assert "Exponent of time over K" in printed
    assert "memory grows by" in printed


def test_an_exponent_is_the_slope_of_logarithms():
    assert fit_exponent({10: 3.0, 100: 300.0}) == pytest.approx(2.0)


def test_a_wrong_back_end_is_not_timed(monkeypatch, tmp_path):
    right = chunked.first_maximum
    monkeypatch.setattr(chunked, "first_maximum", lambda scores: (right(scores)[0] + 1, 0))
    monkeypatch.setattr(blocks, "LOG_FLOOR", -1.0)
    monkeypatch.setattr(module, "step", lambda *_, **__: pytest.fail("timed"))
    with pytest.raises(RuntimeError, match="chunked differs"):
        assignment(smoke=True, out=tmp_path)
