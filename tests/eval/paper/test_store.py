import json

import pytest

from eval.paper.sizes import choose_sizes
from eval.paper.store import Store, draw_bars, make_table


def test_rows_are_written_at_once_and_found_again(tmp_path):
    store = Store(tmp_path, "a", sizes={"epochs": 1})
    store.row({"method": "m", "seed": 0}, lambda: {"x": 1.0})
    written = json.loads((tmp_path / "a.json").read_text())
    assert written["rows"][0]["x"] == 1.0
    with pytest.raises(KeyError):
        store.row({"method": "m", "seed": 1}, lambda: {}["missing"])
    again = Store(tmp_path, "a", sizes={"epochs": 1})
    assert again.row({"method": "m", "seed": 0}, lambda: {"x": 2.0})["x"] == 1.0
    assert again.row({"method": "m", "seed": 1}, lambda: {"x": 3.0})["x"] == 3.0


def test_rows_of_other_sizes_are_not_taken(tmp_path):
    Store(tmp_path, "a", sizes={"epochs": 1}).row({"seed": 0}, lambda: {"x": 1.0})
    other = Store(tmp_path, "a", sizes={"epochs": 6})
    assert other.row({"seed": 0}, lambda: {"x": 2.0})["x"] == 2.0


def test_a_table_has_mean_and_deviation_over_seeds():
    rows = [{"set": "s", "m": "|a|", "x": value, "y": 1.0} for value in (1.0, 2.0, 3.0)]
    table = make_table(rows, title="T", by=["set", "m"], measures={"x": ".1f", "z_z": ".1f"})
    assert table.splitlines()[2:] == [
        "| set | m | x | z z |",
        "|---|---|---|---|",
        "| s | /a/ | 2.0 ± 1.0 |  |",
    ]


def test_bars_stand_at_the_means():
    rows = [{"g": "a", "m": "one", "x": 1.0}, {"g": "a", "m": "one", "x": 3.0}]
    rows.append({"g": "a", "m": "two", "x": 5.0})
    axes = draw_bars(rows, group="g", by="m", measure="x").axes[0]
    assert [bar.get_height() for bar in axes.patches] == [2.0, 5.0]


@pytest.mark.bad_input
def test_unknown_sizes_are_refused():
    with pytest.raises(ValueError, match="sizes is 'ful'"):
        choose_sizes("ful")
