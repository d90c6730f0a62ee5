import base64
import io
import re
from html.parser import HTMLParser

import pytest
import torch
from PIL import Image, ImageColor

from eval.figures import DARK
from eval.report import describe_outcome, describe_plot, write_report
from eval.results import HARD_MEASURES, SOFT_MEASURES, save_pictures, save_results

EVIL = "<script>alert('&')</script>"
VOID = {"meta", "source", "img", "br", "link"}


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


def make_method(label, values, *, soft, warnings=()):
    runs = []
    for seed, value in enumerate(values):
        evals = []
        for images, share in ((0, 0.5), (100, 1.0)):
            record = dict.fromkeys(HARD_MEASURES, 12.0) | dict.fromkeys(SOFT_MEASURES)
            record |= {"psnr_hard": share * value, "use_hard": 0.5}
            if soft:
                record |= dict.fromkeys(SOFT_MEASURES, 0.875) | {"psnr_soft": 30.0}
            evals.append({"images": images, "step": images, **record})
        run = {"seed": seed, "evals": evals, "final": evals[-1], "warnings": list(warnings)}
        runs.append(run)
    return {"seeds": runs, "label": label, "how": f"{label}: seen as set & measured"}


def make_results():
    return {
        "methods": {
            "softvq": make_method("SoftVQ", (25.0, 25.2, 25.4), soft=True),
            "evil": make_method(EVIL, (24.9, 25.1, 25.3), soft=False, warnings=["<b>dead</b>"]),
            "ste": make_method("STE", (23.0, 23.5, 23.1), soft=False),
        },
        "config": {"note": "</pre><b>"},
        "versions": {"torch": "2.5.1"},
        "device": "two cores",
        "commit": "abc123",
        "command": "make compare PRESET=quick && true",
        "data": "CIFAR-10 <real>",
    }


def fill_folder(folder):
    pictures = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    save_results(folder, make_results())
    named = {f"{name}/hard": pictures for name in ("softvq", "evil")}
    counts = {f"{name}/counts": torch.tensor([3, 0, 5]) for name in ("softvq", "evil")}
    save_pictures(folder, {"inputs": pictures, "softvq/soft": pictures, **named, **counts})
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One written page for all tests that only read it: drawing takes seconds."""
    folder = fill_folder(tmp_path_factory.mktemp("out"))
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def page(folder):
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def test_the_table_shows_mean_deviation_and_the_best(page):
    head, (names, *rows) = page.rows[0], page.rows[1:]
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


def test_labels_are_text_and_never_markup(page):
    assert len(page.find_all("script")) == 1
    assert page.find_all("b") == []
    assert page.open == []


def test_nothing_is_asked_of_the_network(folder, page):
    text = (folder / "report.html").read_text(encoding="utf-8")
    for tag, attrs in page.tags:
        for name in ("src", "srcset", "href", "action", "data", "poster"):
            value = attrs.get(name, "#")
            if tag == "a":
                assert value.startswith(("#", "https://arxiv.org/abs/"))
            else:
                assert value.startswith(("#", "data:image/png;base64,"))
    assert not page.find_all("link")
    assert "url(" not in text
    assert "@import" not in text
    assert not re.search(r"\b(fetch|XMLHttpRequest|import)\s*\(", text)
    [policy] = [meta["content"] for meta in page.find_all("meta") if "http-equiv" in meta]
    assert policy.startswith("default-src 'none'; img-src data:;")


def test_figures_are_embedded_light_and_dark_with_words_for_those_who_cannot_see(folder, page):
    images, sources = page.find_all("img"), page.find_all("source")
    assert len(images) == len(sources) == len(page.find_all("figcaption")) == 6
    written = {path.read_bytes() for path in folder.glob("*.png")}
    light = {base64.b64decode(image["src"].partition(",")[2]) for image in images}
    dark = {base64.b64decode(source["srcset"].partition(",")[2]) for source in sources}
    assert light == written
    for png in dark:
        with Image.open(io.BytesIO(png)) as image:
            assert image.getpixel((0, 0))[:3] == ImageColor.getrgb(DARK.ground)
    assert all("prefers-color-scheme: dark" in source["media"] for source in sources)
    assert "hard PSNR dB: SoftVQ 25.20 ± 0.20" in images[0]["alt"]
    assert all(len(image["alt"]) > 20 for image in images)


def test_methods_without_pictures_are_named(page):
    assert page.text.count("None were stored for: STE.") == 2


def test_headings_sort_by_keyboard(page):
    sortable = [attrs for attrs in page.find_all("th") if "aria-sort" in attrs]
    buttons = page.find_all("button")
    assert len(sortable) == len(buttons) == 13
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
