import io

import pytest
from rich.console import Console

from train.terminal import Terminal


def draw(terminal):
    console = Console(file=io.StringIO(), width=120)
    console.print(terminal.draw())
    return console.file.getvalue()


def test_a_run_of_another_kind_has_columns_of_its_own():
    terminal = Terminal("x", total=10, columns=("nats", "rate", "left"))
    terminal.show({"nats": "5.25"})
    terminal.step(5, rate=2.0)
    shown = draw(terminal)
    assert "5.25" in shown
    assert "2.0 steps/s" in shown
    assert "0:02" in shown
    assert "PSNR" not in shown


@pytest.mark.bad_input
def test_a_value_of_no_column_is_refused():
    terminal = Terminal("x", total=10, columns=("nats", "rate", "left"))
    with pytest.raises(ValueError, match="column is 'loss'; valid are: nats, rate, left"):
        terminal.show({"loss": "1"})


def test_a_run_without_a_table_says_now_and_then_where_it_is(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr("train.terminal.time.monotonic", lambda: now[0])
    with Terminal("ema seed 0", total=400) as terminal:
        for step in range(1, 101):
            now[0] += 1
            terminal.step(step, rate=1.0)
            if step == 40:
                terminal.say("measured")
    told = [line.split()[3:] for line in capsys.readouterr().out.splitlines()]
    assert [line[1] for line in told if line[0] == "step"] == ["31", "71"]
