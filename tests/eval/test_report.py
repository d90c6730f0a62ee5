import base64
import io
import json
import math
import re
import statistics
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image, ImageColor

from eval.atlas import draw_atlas
from eval.conditions import HEADINGS
from eval.embedded import describe_atlas
from eval.pictures import ATLAS_PARTS, load_pictures
from eval.report import render_page, write_report
from eval.results import HARD_MEASURES, SOFT_MEASURES, save_results
from eval.style import DARK
from eval.words import describe_outcome, describe_plot
from tests.eval.stored import EVIL, fill_folder, make_results

VOID = {"meta", "source", "img", "br", "link", "input"}


class Page(HTMLParser):
    """Reads what the tests ask of the page: tags with attributes, table cells, visible text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.rows, self.words, self.open = [], [], [], []
        self.feed(text)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append([dict(attrs).get("class", ""), ""])

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag, f"</{tag}> closes another tag"

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)
            if "td" in self.open or "th" in self.open:
                self.rows[-1][-1][1] += data

    def find_all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def read_data(address):
    start, _, data = address.partition(",")
    assert start == "data:image/png;base64"
    return base64.b64decode(data)


@pytest.fixture(scope="module")
def page(report_folder):
    return Page((report_folder / "report.html").read_text(encoding="utf-8"))


def test_the_table_shows_mean_deviation_and_the_best(page):
    head, (names, *rows) = page.rows[0], page.rows[1:5]
    assert [text for _, text in head] == ["", "Hard codes", "Soft weights (beside, never instead)"]
    assert [text for _, text in names[:3]] == ["Method", "PSNR dB", "PSNR of mean error dB"]
    assert [row[0][1] for row in rows] == ["SoftVQ", EVIL, "STE"]
    assert rows[0][1] == ["best", "25.20 ± 0.20 (best)"]
    assert rows[1][1] == ["", "25.10 ± 0.20"]
    assert rows[2][1] == ["", "23.20 ± 0.26"]
    assert [text for kind, row in enumerate(rows) for mark, text in row if "best" in mark] == [
        "25.20 ± 0.20 (best)"
    ]


def test_a_hard_quantizer_has_dashes_and_a_soft_one_figures(page):
    soft, hard = page.rows[2][7:], page.rows[3][7:]
    assert [text for _, text in soft][:3] == ["30.00 ± 0.00", "0.88 ± 0.00", "87.5 ± 0.0"]
    assert {text for _, text in hard} == {"\N{EN DASH}"}
    assert len(hard) == len(soft) == 6


def test_every_figure_says_what_it_was_taken_under(page):
    place = next(n for n, row in enumerate(page.rows) if row[0][1] == HEADINGS[0])
    heading, *rows = ([text for _, text in row] for row in page.rows[place:])
    assert heading == list(HEADINGS)
    pixels, tokens, seen, lost = rows
    assert pixels == [
        "PSNR dB (hard)",
        *("pixels", "-1 to 1", "float32", "4 x 4", "none", "none", "20", "\N{EN DASH}"),
    ]
    assert tokens == ["Use % (hard)", "tokens", *5 * ["\N{EN DASH}"], "20", "1,280"]
    assert seen[:2] == ["LPIPS alex (hard)", "<i>alex</i>"]
    assert seen[7] == "8"
    assert lost == ["rFID (hard)", "not available: no <network>"]


def test_reconstructions_that_are_no_number_are_a_column_of_their_own(report_folder):
    results = make_results()
    for method in results["methods"].values():
        for run in method["seeds"]:
            run["final"] |= {"not_finite_hard": 0.0, "not_finite_soft": None}
    titles = [text for _, text in Page(render_page(results, load_pictures(report_folder))).rows[1]]
    assert "Not finite" not in titles
    results["methods"]["ste"]["seeds"][1]["final"]["not_finite_hard"] = 3.0
    page = Page(render_page(results, load_pictures(report_folder)))
    place = [text for _, text in page.rows[1]].index("Not finite")
    assert [row[place][1] for row in page.rows[2:5]] == [
        "0 ± 0 (best)",
        "0 ± 0 (best)",
        "1 ± 2",
    ]


def test_a_warning_of_many_runs_is_told_once(page):
    assert page.text.count("<b>dead</b>") == 1
    assert f"{EVIL}, seeds 0, 1, 2 : <b>dead</b>" in page.text


def test_differences_are_paired_and_claimed_only_outside_noise(page):
    assert (
        f"softvq minus {EVIL}: +0.100 dB, 95 % interval [+0.100, +0.100], 3 seeds: softvq is better"
        in page.text
    )
    # Differences 2.0, 1.7, 2.3: mean 2, deviation 0.3, half-width 4.3027 * 0.3 / sqrt(3) = 0.745.
    assert "softvq minus STE: +2.000 dB, 95 % interval [+1.255, +2.745], 3 seeds" in page.text
    assert page.text.count("A difference is claimed only where the interval excludes zero.") == 2


def test_the_strongest_rival_stands_at_the_top(page):
    sentence = describe_outcome(make_results())
    assert EVIL in sentence
    assert page.text.index(sentence) < page.text.index("Results on the test set")


def test_the_page_says_what_counts_and_how_it_came_about(page):
    for words in (
        "a fully collapsed codebook, all codes in one place, gives every token equal weights",
        "STE: seen as set & measured",
        "seeds 0, 1, 2",
        "<b>dead</b>",
        "two cores",
        "abc123",
        "2.5.1",
        "make compare PRESET=quick && true",
        "arXiv 2604.03850",
        "arXiv 2604.01740",
        "CIFAR-10 <real>",
        '"note": "</pre><b>"',
    ):
        assert words in page.text


@pytest.mark.parametrize(("data", "drawn"), [("textures train; test", True), ("CIFAR-10", False)])
def test_a_page_of_drawn_pictures_says_so(data, drawn):
    text = Page(
        render_page({**make_results(), "data": data}, {"inputs": torch.zeros(1, 3, 4, 4).byte()})
    ).text
    assert ("drawn by softvq's own code" in text) == drawn


def test_labels_are_text_and_never_markup(page):
    assert len(page.find_all("script")) == 1
    assert page.find_all("b") == []
    assert page.open == []


def test_nothing_is_asked_of_the_network(report_folder, page):
    text = (report_folder / "report.html").read_text(encoding="utf-8")
    for tag, attrs in page.tags:
        for name in ("src", "srcset", "href", "action", "data", "poster"):
            value = attrs.get(name, attrs.get(f"xlink:{name}", "#"))
            if tag == "a":
                assert value.startswith(("#", "https://arxiv.org/abs/"))
            else:
                assert value.startswith(("#", "data:image/png;base64,"))
    assert not page.find_all("link")
    assert not re.search(r"url\((?!#)", text)
    assert "@import" not in text
    assert not re.search(r"\b(fetch|XMLHttpRequest|import)\s*\(", text)
    [policy] = [meta["content"] for meta in page.find_all("meta") if "http-equiv" in meta]
    assert policy.startswith("default-src 'none'; img-src data:;")


def test_figures_are_drawn_once_for_both_themes_with_words_for_those_who_cannot_see(page):
    charts = [attrs for attrs in page.find_all("div") if attrs.get("class") == "chart"]
    assert len(charts) == len(page.find_all("svg")) == 6
    assert "hard PSNR dB: SoftVQ 25.20 ± 0.20" in charts[0]["aria-label"]
    assert all(len(chart["aria-label"]) > 20 for chart in charts)
    assert {chart["tabindex"] for chart in charts} == {"0"}


def test_what_the_pointer_reads_is_the_mean_over_seeds(page):
    charts = [attrs for attrs in page.find_all("div") if attrs.get("class") == "chart"]
    [*_, [_, title, readings]] = json.loads(charts[0]["data-panels"])[0][5]
    assert title == "Training images seen: 100"
    values = {label: text for label, text, *_ in readings}
    assert values == {
        "SoftVQ, hard": f"{statistics.mean((25.0, 25.2, 25.4)):.2f}",
        "SoftVQ, soft": "30.00",
        f"{EVIL}, hard": f"{statistics.mean((24.9, 25.1, 25.3)):.2f}",
        "STE, hard": f"{statistics.mean((23.0, 23.5, 23.1)):.2f}",
    }


def test_strips_of_pictures_are_embedded_light_and_dark(page):
    [source] = page.find_all("source")
    [strips] = [image for image in page.find_all("img") if image["alt"].startswith("Rows of")]
    with Image.open(io.BytesIO(read_data(source["srcset"]))) as image:
        assert image.getpixel((0, 0))[:3] == ImageColor.getrgb(DARK.ground)
    with Image.open(io.BytesIO(read_data(strips["src"]))) as image:
        assert image.getpixel((0, 0))[:3] == (255, 255, 255)
    assert "prefers-color-scheme: dark" in source["media"]


def test_tiles_hold_the_stored_pixels_and_their_psnr(report_folder, page):
    pictures = load_pictures(report_folder)
    images = {image["alt"]: image for image in page.find_all("img")}
    for alt, name in (
        ("Input of SoftVQ", "inputs"),
        ("SoftVQ, decoded from hard codes", "softvq/hard"),
        ("SoftVQ, decoded from soft weights", "softvq/soft"),
    ):
        with Image.open(io.BytesIO(read_data(images[alt]["src"]))) as image:
            strip = np.concatenate(pictures[name].numpy().transpose(0, 2, 3, 1), axis=1)
            np.testing.assert_array_equal(np.asarray(image), strip)
    assert f"{EVIL}, decoded from soft weights" not in images
    tiles = [attrs for attrs in page.find_all("figure") if attrs.get("class") == "tile"]
    # Every pixel is off by 9, or by 5: 20 log10(255 / 9) and 20 log10(255 / 5).
    assert json.loads(tiles[0]["data-hard"]) == ["29.05", "29.05"]
    assert json.loads(tiles[0]["data-soft"]) == ["34.15", "34.15"]
    assert json.loads(tiles[1]["data-soft"]) is None


def test_the_atlas_tells_of_each_code(page):
    maps = [attrs for attrs in page.find_all("div") if attrs.get("class") == "map"]
    assert [each["aria-label"] for each in maps] == ["Codes of SoftVQ", f"Codes of {EVIL}"]
    cells = json.loads(maps[0]["data-cells"])
    # Bright codes first: code, tokens of the test set, patches averaged, cells of the nearest.
    assert [cell[:3] for cell in cells] == [[2, 5, 4], [1, 0, 0], [0, 3, 2]]
    assert [cell[3] for cell in cells] == [[1, 2], [2, 0], [1, 0]]
    assert maps[0]["data-total"] == "8"
    assert "2 of 3 codes are hard codes of the test set." in page.text


def test_a_large_codebook_says_that_it_is_shown_in_part(report_folder):
    pictures = load_pictures(report_folder) | {"softvq/counts": torch.arange(8192)}
    shown = describe_atlas("SoftVQ", draw_atlas(pictures, "softvq"))
    assert shown["text"] == "the 3 most frequent of 8,192 codes."


def test_a_run_that_diverged_in_a_folder_without_an_atlas_has_a_page(report_folder):
    results, pictures = make_results(), load_pictures(report_folder)
    for run in results["methods"]["softvq"]["seeds"]:
        for record in [*run["evals"][1:], run["final"]]:
            record |= dict.fromkeys((*HARD_MEASURES, *SOFT_MEASURES), math.nan)
    kept = {n: each for n, each in pictures.items() if n.rpartition("/")[2] not in ATLAS_PARTS}
    page = Page(render_page(results, kept))
    assert page.rows[2][1] == ["", "nan"]
    charts = [attrs for attrs in page.find_all("div") if attrs.get("class") == "chart"]
    assert len(charts) == 6
    assert '"nan"' not in charts[0]["data-panels"]
    assert "None was stored in this folder." in page.text


def test_methods_without_pictures_are_named(page):
    assert page.text.count("None were stored for: STE.") == 1
    assert page.text.count("No pictures were stored for: STE.") == 1


def test_headings_sort_by_keyboard(page):
    sortable = [attrs for attrs in page.find_all("th") if "aria-sort" in attrs]
    buttons = page.find_all("button")
    assert len(sortable) == len([each for each in buttons if "data-first" in each]) == 13
    assert {attrs["aria-sort"] for attrs in sortable} == {"none"}
    values = [attrs["data-value"] for attrs in page.find_all("td") if "data-value" in attrs]
    assert float(values[0]) == pytest.approx(25.2)
    assert values[18] == ""  # the first soft measure of a hard quantizer: empty, so last


def test_no_soft_method_no_soft_column_and_no_warning(tmp_path):
    folder, results = fill_folder(tmp_path), make_results()
    del results["methods"]["softvq"], results["methods"]["evil"]
    save_results(folder, results)
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert "Soft weights" not in " ".join(text for row in page.rows for _, text in row)
    assert "No run gave a warning." in page.text
    assert "softvq is not among these methods" in page.text
    assert "for want of a run of softvq with the same seed: STE." in page.text


def test_a_truncated_file_is_a_clear_error_and_writes_nothing(tmp_path):
    folder = fill_folder(tmp_path)
    path = folder / "results.json"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"results\.json is cut short or damaged .*make compare"):
        write_report(folder)
    assert not list(folder.glob("*.png"))
    assert not (folder / "report.html").exists()


def test_outcome_without_a_shared_seed():
    results = make_results()
    for run in results["methods"]["softvq"]["seeds"]:
        run["seed"] += 10
    assert describe_outcome(results).startswith("No rival ran with a seed of softvq")


def test_a_zero_is_a_value_in_the_alternative_text():
    results = make_results()
    for run in results["methods"]["ste"]["seeds"]:
        run["final"]["use_hard"] = 0.0
    assert "STE 0.0 ± 0.0" in describe_plot("use", results)
