import math

import pytest
import torch
from matplotlib.colors import to_hex
from PIL import Image

from eval.figures import (
    draw_figures,
    draw_histogram,
    draw_perplexity,
    draw_pictures,
    draw_psnr,
    draw_spread,
    draw_temperature,
    draw_use,
    join_strip,
    save_figures,
    sort_counts,
)
from eval.results import HARD_MEASURES, SOFT_MEASURES
from eval.style import COLOURS, DARK, MARKERS, tint

MATHS = r"$\ste$"  # no formula: an error where a label is read as one


def make_method(label, *, soft, seeds=2):
    runs = []
    for seed in range(seeds):
        evals = []
        for images in (0, 50, 100):
            record = dict.fromkeys(HARD_MEASURES, 0.5) | dict.fromkeys(SOFT_MEASURES)
            record |= {"psnr_hard": 20 + images / 50 + seed, "use_hard": images / 100}
            if soft:
                record |= dict.fromkeys(SOFT_MEASURES, 1.0)
                record |= {"psnr_soft": 21 + images / 50 + seed, "temperature_ratio": 0.1}
            evals.append({"images": images, "step": images // 10, **record})
        runs.append({"seed": seed, "evals": evals, "final": evals[-1], "warnings": []})
    return {"seeds": runs, "label": label, "how": ""}


@pytest.fixture
def results():
    methods = {
        "softvq": make_method("SoftVQ", soft=True),
        "ste": make_method(MATHS, soft=False, seeds=1),
    }
    return {"methods": methods, "data": "textures"}


@pytest.fixture
def pictures():
    inputs = torch.arange(12 * 3 * 4 * 4, dtype=torch.int64).remainder(256).byte()
    inputs = inputs.reshape(12, 3, 4, 4)
    counts = torch.tensor([0, 30, 10, 60])
    return {
        "inputs": inputs,
        "softvq/hard": inputs,
        "softvq/soft": inputs,
        "softvq/counts": counts,
        "ste/hard": inputs,
        "ste/counts": torch.tensor([100, 0, 0, 0]),
    }


def list_lines(axes):
    return {
        (to_hex(line.get_color()).upper(), line.get_linestyle()): (
            list(line.get_xdata()),
            list(line.get_ydata()),
        )
        for line in axes.get_lines()
        if len(line.get_xdata())
    }


def list_labels(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_psnr_is_the_mean_over_seeds_hard_solid_soft_dashed(results):
    figure = draw_psnr(results)
    assert list_lines(figure.axes[0]) == {
        (COLOURS[0], "-"): ([0, 50, 100], [20.5, 21.5, 22.5]),
        (COLOURS[0], "--"): ([0, 50, 100], [21.5, 22.5, 23.5]),
        (COLOURS[1], "-"): ([0, 50, 100], [20.0, 21.0, 22.0]),
    }
    assert list_labels(figure) == ["SoftVQ", MATHS, "hard codes", "soft weights"]
    figure.draw_without_rendering()


def test_a_band_of_one_deviation_is_drawn_where_there_are_seeds(results):
    bands = draw_psnr(results).axes[0].collections
    assert len(bands) == 2
    heights = bands[0].get_paths()[0].vertices[:, 1]
    assert heights.min() == pytest.approx(20.5 - math.sqrt(0.5))
    assert heights.max() == pytest.approx(22.5 + math.sqrt(0.5))


def test_the_magnified_psnr_shows_the_end_near_the_best_hard_one(results):
    for run in results["methods"]["ste"]["seeds"]:
        run["evals"][-1]["psnr_hard"] = 5.0
    axes = draw_psnr(results).axes[1]
    assert axes.get_xlim() == pytest.approx((48, 102))
    low, high = axes.get_ylim()
    assert 21.2 < low < 21.5
    assert 23.5 < high < 23.8


def test_a_diverged_run_is_a_gap(results):
    for run in results["methods"]["ste"]["seeds"]:
        run["evals"][-1]["psnr_hard"] = math.inf
    figure = draw_psnr(results)
    _, heights = list_lines(figure.axes[0])[COLOURS[1], "-"]
    assert heights[:2] == [20.0, 21.0]
    assert math.isnan(heights[2])
    figure.draw_without_rendering()


def test_use_is_in_percent(results):
    lines = list_lines(draw_use(results).axes[0])
    assert lines[COLOURS[1], "-"] == ([0, 50, 100], [0, 50, 100])
    assert lines[COLOURS[0], "--"] == ([0, 50, 100], [100, 100, 100])


def test_perplexity_has_one_line_a_method(results):
    assert len(list_lines(draw_perplexity(results).axes[0])) == 2


def test_temperature_shows_soft_methods_alone(results):
    figure = draw_temperature(results)
    ratio, entropy = figure.axes
    assert ratio.get_yscale() == "log"
    assert list_lines(ratio)[COLOURS[0], "-"] == ([0, 50, 100], pytest.approx([0.1] * 3))
    assert list_lines(entropy) == {(COLOURS[0], "-"): ([0, 50, 100], [1, 1, 1])}
    assert list_labels(figure) == ["SoftVQ"]


def test_spread_shows_soft_methods_alone_on_the_whole_scale(results):
    figure = draw_spread(results)
    [axes] = figure.axes
    assert list_lines(axes) == {(COLOURS[0], "-"): ([0, 50, 100], [1, 1, 1])}
    assert axes.get_ylim() == (0, 1.03)
    assert list_labels(figure) == ["SoftVQ"]


def test_no_marker_is_cut_off_at_the_top(results):
    for axes in (draw_perplexity(results).axes[0], draw_temperature(results).axes[1]):
        top = max(max(line.get_ydata()) for line in axes.get_lines() if len(line.get_ydata()))
        assert axes.get_ylim()[1] > 1.03 * top


def test_histogram_is_sorted_ends_at_the_last_used_code_and_marks_the_mean(results, pictures):
    axes = draw_histogram(results, pictures).axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    lines = list_lines(axes)
    assert lines[COLOURS[0], "-"] == ([1, 2, 3], [60, 30, 10])
    assert lines[COLOURS[1], "-"] == ([1], [100])
    assert lines["#7F7F7F", ":"][1] == [25, 25]
    assert sort_counts(torch.tensor([1, 5, 0])) == [5, 1, 0]


def test_picture_rows_are_input_then_hard_then_soft(results, pictures):
    figure = draw_pictures(results, pictures)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["Input", "SoftVQ, hard", "SoftVQ, soft", f"{MATHS}, hard"]
    figure.draw_without_rendering()


def test_a_strip_keeps_every_pixel_and_grey_becomes_colour():
    pictures = torch.arange(2 * 1 * 2 * 3, dtype=torch.uint8).reshape(2, 1, 2, 3)
    strip = torch.from_numpy(join_strip(pictures).copy())
    assert strip.shape == (2, 7, 4)
    for channel in range(3):
        torch.testing.assert_close(strip[:, :3, channel], pictures[0, 0])
        torch.testing.assert_close(strip[:, 4:, channel], pictures[1, 0])
    assert strip[..., 3].tolist() == [[255, 255, 255, 0, 255, 255, 255]] * 2


def test_without_soft_methods_there_is_no_temperature_figure(results, pictures):
    del results["methods"]["softvq"]
    names = list(draw_figures(results, pictures))
    assert names == ["psnr", "use", "perplexity", "histogram", "pictures"]


def test_files_are_whole_pictures_and_nothing_else_is_left(tmp_path, results, pictures):
    paths = save_figures(tmp_path / "new", results, pictures)
    names = ["psnr", "use", "perplexity", "temperature", "spread", "histogram", "pictures"]
    assert [path.name for path in paths] == [f"{name}.png" for name in names]
    assert sorted(paths) == sorted((tmp_path / "new").iterdir())
    for path in paths:
        with Image.open(path) as image:
            assert image.format == "PNG"
            assert image.getpixel((0, 0)) == (255, 255, 255, 255)


def test_dark_changes_ground_and_letters_but_no_data(results):
    figure = draw_psnr(results)
    before = list_lines(figure.axes[0])
    tint(figure, DARK)
    axes = figure.axes[0]
    assert to_hex(figure.get_facecolor()) == DARK.ground
    assert to_hex(axes.xaxis.label.get_color()) == DARK.ink
    assert to_hex(figure.legends[0].get_texts()[0].get_color()) == DARK.ink
    assert axes.get_title(loc="left") == "The whole run"
    assert list_lines(axes) == before


def test_nine_methods_differ_in_colour_and_in_marker():
    assert len(set(COLOURS)) == 9
    assert len(set(MARKERS[:9])) == 9
