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
