import math
import statistics

import pytest
from matplotlib.colors import to_hex

from eval.rate import draw_rate, has_rate
from eval.style import COLOURS
from eval.vector import draw_vector


def make_method(label, *values):
    """One run a value of (entropy bits a pixel, PSNR), at 0.5625 bits a pixel."""
    runs = []
    for seed, (rate, quality) in enumerate(values):
        final = {"entropy_bits_per_pixel": rate, "bits_per_pixel": 0.5625}
        runs.append({"seed": seed, "final": {**final, "psnr_hard_of_mean": quality}})
    return {"seeds": runs, "label": label, "how": ""}


@pytest.fixture
def results():
    return {
        "methods": {
            "a": make_method("A", (0.5, 20.0), (0.51, 21.0), (0.54, 23.5)),
            "none": {"seeds": [{"seed": 0, "final": {}}], "label": "N", "how": ""},
            "b": make_method("B", (0.25, 18.0)),
        }
    }


def test_points_are_means_over_seeds_at_both_rates(results):
    axes = draw_rate(results).axes[0]
    lines = {line.get_label(): line for line in axes.get_lines() if len(line.get_xdata()) == 2}
    assert list(lines) == ["A", "B"]
    assert list(lines["A"].get_xdata()) == pytest.approx(
        [statistics.mean((0.5, 0.51, 0.54)), 0.5625]
    )
    assert list(lines["A"].get_ydata()) == [statistics.mean((20.0, 21.0, 23.5))] * 2
    assert list(lines["B"].get_xdata()) == [0.25, 0.5625]
    assert to_hex(lines["B"].get_color()).upper() == COLOURS[2]  # by its place among all


def test_bars_are_one_deviation_where_there_are_seeds(results):
    axes = draw_rate(results).axes[0]
    [bar] = axes.containers
    _, _, (across, up) = bar
    (left, _), (right, _) = across.get_segments()[0]
    (_, low), (_, high) = up.get_segments()[0]
    assert right - left == pytest.approx(2 * statistics.stdev((0.5, 0.51, 0.54)))
    assert high - low == pytest.approx(2 * statistics.stdev((20.0, 21.0, 23.5)))


def test_a_rate_is_read_with_its_digits(results):
    [panel] = draw_vector(draw_rate(results), "rate").panels
    assert [stop.title for stop in panel.stops] == [
        f"Bits a pixel: {text}" for text in ("0.2500", "0.5167", "0.5625")
    ]
    assert [reading.label for reading in panel.stops[-1].readings] == ["A", "B"]


def test_without_a_rate_there_is_none_and_a_diverged_run_is_no_error(results):
    assert has_rate(results)
    assert not has_rate({"methods": {"none": results["methods"]["none"]}})
    results["methods"]["b"] = make_method("B", (0.25, math.nan))
    draw_rate(results).draw_without_rendering()
