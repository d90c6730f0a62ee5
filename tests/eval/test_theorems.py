import json
import math

import pytest
import torch

from eval import theorems as module
from eval.theorems import Toy, find_alarms, follow, make_literal, repel, theorems
from softvq import Temperature


def test_repulsion_parts_close_codes_and_leaves_far_ones():
    codes = torch.tensor([[0.0], [0.1], [10.0]], dtype=torch.float64, requires_grad=True)
    value = repel(codes)
    mean = (0.1**2 + 10.0**2 + 9.9**2) / 3
    pairs = (0.1**2, 10.0**2, 9.9**2)
    expected = -sum(math.log(d / mean + 1e-3) for d in pairs) / 6
    assert value.item() == pytest.approx(expected, rel=1e-9)
    value.backward()
    # Descent moves the close ones apart, and the far one hardly.
    assert codes.grad[0] > 0.1
    assert codes.grad[1] < -0.1
    assert codes.grad[2].abs() < 0.1


def test_signs_are_told_where_they_begin_for_good():
    quiet = {"separation": 1.0, "entropy": 0.1, "error": 0.5}
    passing = {**quiet, "separation": 0.5}
    course = [quiet, passing, quiet, {**quiet, "entropy": 0.3}, {**quiet, "entropy": 1, "error": 1}]
    assert find_alarms(course) == {"S(P)": None, "H(Q)": 3, "hard error": 4}


def test_a_toy_learns_and_is_measured_at_even_steps():
    course = follow(Toy(temperature=Temperature(anneal_steps=120)), steps=120)
    assert len(course) == 31
    assert course[-1]["error"] < 0.6 * course[0]["error"]
    assert course[-1]["use_hard_batch"] > 0.5
    again = follow(Toy(temperature=Temperature(anneal_steps=120)), steps=120)
    assert again == course


def test_the_literal_toy_is_the_literal_method():
    toy = make_literal(60, ratio=0.3)
    assert (toy.temperature.unit, toy.temperature.prototypes) == ("variance", None)
    assert (toy.loss.assignment_grad, toy.forward_value, toy.revive) == ("full", "soft", False)
    assert toy.ratio == 0.3


def test_the_command_writes_all_courses(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "RATIOS", (0.1,))
    monkeypatch.setattr(module, "SHARES", {"even": 0.5})
    theorems(out=tmp_path, steps=30)
    written = json.loads((tmp_path / "theorems.json").read_text())
    assert list(written["ratios"]) == ["literal 0.1", "default 0.1"]
    assert list(written["schedules"]) == ["even, none", "even, repulsion"]
    assert written["collapse"]["alarms"].keys() == {"S(P)", "H(Q)", "hard error"}
    assert "T / T_c" in capsys.readouterr().out
