"""The page in a browser: sorting, what the pointer and the keys read, the slider, both themes."""

import io
import json

import pytest
import torch
from PIL import Image, ImageColor

from eval.pictures import load_pictures
from eval.style import DARK, LIGHT
from eval.tiles import find_psnr
from tests.eval.browser import Browser, find_chromium
from tests.eval.stored import EVIL

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="Chromium is not installed")
METHODS = "[...document.querySelectorAll('table.results tbody th')].map((each) => each.textContent)"
SAID = "document.getElementById('said').textContent"
TIP = "document.querySelector('.tip')?.innerText"
CARD = "document.querySelector('.card').innerText"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(find_chromium(), tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def page(browser, report_folder):
    browser.open(report_folder / "report.html")
    yield browser
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []


def focus(page, selector):
    page.ask(f"document.querySelector({json.dumps(selector)}).focus()")


def read_pixel(page, selector, x, y):
    """Colour in the window at shares of an element's width and height."""
    spot = page.point(selector, x, y)
    with Image.open(io.BytesIO(page.picture())) as image:
        return image.getpixel((int(spot["x"]), int(spot["y"])))[:3]


def test_a_heading_sorts_and_sorts_back(page):
    assert page.ask(METHODS) == ["SoftVQ", EVIL, "STE"]
    page.click("thead button[data-name='hard PSNR dB']")
    page.click("thead button[data-name='hard PSNR dB']")
    assert page.ask(METHODS) == ["STE", EVIL, "SoftVQ"]
    assert page.ask("document.querySelectorAll('[aria-sort=ascending]').length") == 1
    assert page.ask(SAID) == "Sorted by hard PSNR dB, ascending."


def test_a_heading_sorts_by_the_keyboard_and_a_missing_value_goes_last(page):
    focus(page, "thead button[data-name='soft PSNR dB']")
    for order in ("descending", "ascending"):
        page.press("Enter")
        assert page.ask(METHODS)[0] == "SoftVQ"
        assert page.ask(SAID) == f"Sorted by soft PSNR dB, {order}."


def test_markup_in_a_name_stays_text(page):
    assert page.ask("document.querySelectorAll('script').length") == 1
    assert page.ask(METHODS)[1] == EVIL


def test_the_pointer_reads_the_nearest_stop(page):
    assert page.ask(TIP) is None
    page.point(".chart", 0.95, 0.2)
    text = list(filter(None, page.ask(TIP).split("\n")))
    assert text[:2] == ["Training images seen: 100", "PSNR on the test set (dB)"]
    assert text[text.index("SoftVQ, hard") + 1] == "25.20"
    assert text[text.index(f"{EVIL}, hard") + 1] == "25.10"
    page.point(".chart", 0.16, 0.2)
    assert page.ask(TIP).startswith("Training images seen: 0\n")
    page.point("h1", 0.5, 0.5)
    assert page.ask(TIP) is None


def test_the_dots_sit_on_the_curves(page):
    page.point(".chart", 0.95, 0.2)
    spots = page.ask(
        "[...document.querySelectorAll('.dot')].map((dot) => {"
        " const b = dot.getBoundingClientRect();"
        " return [dot.style.color, (b.left + b.right) / 2, (b.top + b.bottom) / 2]; })"
    )
    # The last marker of each curve, as matplotlib drew it into the SVG.
    markers = page.ask(
        "[...document.querySelectorAll('#psnr-axes_1 g[id*=line2d] use')].map((each) => {"
        " const b = each.getBoundingClientRect();"
        " return [each.style.fill, (b.left + b.right) / 2, (b.top + b.bottom) / 2]; })"
    )
    for colour, x, y in spots:
        near = [
            m for m in markers if m[0] == colour and abs(m[1] - x) < 1.5 and abs(m[2] - y) < 1.5
        ]
        assert near, (colour, x, y)
    assert len(spots) == 4


def test_the_keys_walk_through_a_chart(page):
    focus(page, ".chart")
    page.press("ArrowRight")
    assert page.ask(TIP).startswith("Training images seen: 100\n")
    page.press("ArrowLeft")
    assert page.ask(SAID).startswith("PSNR on the test set (dB). Training images seen: 0. SoftVQ, ")
    page.press("ArrowDown")
    page.press("End")
    assert "SoftVQ, hard 25.20" in page.ask(SAID)
    page.press("Escape")
    assert page.ask(TIP) is None


def test_the_slider_wipes_from_input_to_hard_to_soft(page, report_folder):
    stored = load_pictures(report_folder)
    # A point in the middle of the top left pixel of the 4 x 4 pictures.
    spot = (".stack", 0.125, 0.125)
    shown = {}
    for key, steps in (("Home", 0), ("End", 0), ("ArrowLeft", 100)):
        focus(page, "#wipe")
        for _ in range(max(steps, 1)):
            page.press(key)
        shown[page.ask("document.getElementById('wipe').getAttribute('aria-valuetext')")] = (
            read_pixel(page, *spot)
        )
    for value, name in (("input", "inputs"), ("soft", "softvq/soft"), ("hard", "softvq/hard")):
        assert shown[value] == tuple(stored[name][0, :, 0, 0].tolist()), value


def test_half_way_the_left_is_hard_and_the_right_is_input(page, report_folder):
    stored = load_pictures(report_folder)
    page.ask("document.getElementById('wipe').value = 0.5")
    page.ask("document.getElementById('wipe').dispatchEvent(new Event('input'))")
    left = read_pixel(page, ".stack", 0.125, 0.125)
    right = read_pixel(page, ".stack", 0.875, 0.125)
    assert left == tuple(stored["softvq/hard"][0, :, 0, 0].tolist())
    assert right == tuple(stored["inputs"][0, :, 0, 3].tolist())
    said = page.ask("document.getElementById('wipe').getAttribute('aria-valuetext')")
    assert said == "50 % hard, the rest input"


def test_the_next_picture_is_shown_with_its_psnr(page, report_folder):
    stored = load_pictures(report_folder)
    page.click("[data-wipe='0']")
    page.click("[data-turn='1']")
    assert page.ask("document.getElementById('which').textContent") == "Picture 2 of 2"
    expected = find_psnr(stored["inputs"], stored["softvq/hard"])[1]
    assert page.ask("document.querySelector('.psnr-hard').textContent") == f"{expected:.2f}"
    assert read_pixel(page, ".stack", 0.125, 0.125) == tuple(stored["inputs"][1, :, 0, 0].tolist())
    page.click("[data-turn='1']")
    assert page.ask("document.getElementById('which').textContent") == "Picture 1 of 2"


def test_the_conditions_stand_below_the_results_and_stay_as_they_are(page):
    """Sorting moves the rows of the results alone; what is not available says why."""
    lines = "[...document.querySelectorAll('table.words tbody th')].map((each) => each.textContent)"
    before = page.ask(lines)
    assert before == ["PSNR dB (hard)", "Use % (hard)", "LPIPS alex (hard)", "rFID (hard)"]
    page.click("thead button[data-name='hard PSNR dB']")
    assert page.ask(lines) == before
    assert page.ask("document.querySelector('.missing').innerText") == (
        "not available: no <network>"
    )
    above, below = (
        page.ask(f"document.getElementById('{name}').getBoundingClientRect().top")
        for name in ("table", "conditions")
    )
    assert above < below


def test_cells_after_the_last_code_are_not_hatched_as_if_never_chosen(page):
    page.prefer("light")
    ground = ImageColor.getrgb(LIGHT.ground)
    assert {read_pixel(page, ".map", x, 0.75) for x in (0.6, 0.75, 0.9)} == {ground}
    hatched = {read_pixel(page, ".map", 0.75 + x / 100, 0.25) for x in range(9)}
    assert hatched != {ground}  # the second of three codes was never chosen


def test_the_pointer_and_the_keys_read_the_atlas(page):
    page.point(".map", 0.25, 0.25)
    said = "Code 2: 5 tokens, 62.50 %. Mean of 4 patches. Nearest: 1, 0."
    assert page.ask(CARD).strip() == said
    assert page.ask("document.querySelector('.map').querySelectorAll('.near').length") == 2
    focus(page, ".map")
    page.press("ArrowRight")
    assert page.ask(SAID).startswith("Code 1: 0 tokens, 0.00 %. Never chosen on the pictures")
    page.press("ArrowDown")  # the last cell is empty
    assert page.ask(SAID).startswith("Code 1: ")
    page.press("ArrowLeft")
    page.press("ArrowDown")
    assert page.ask(SAID).startswith("Code 0: 3 tokens, 37.50 %.")


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_both_themes_reach_page_and_charts(page, theme):
    page.prefer("dark" if theme is DARK else "light")
    ground = ImageColor.getrgb(theme.ground)
    assert read_pixel(page, "header", 0.001, 0.05) == ground
    assert read_pixel(page, ".chart", 0.005, 0.005) == ground
    # Letters of the chart follow the theme.
    style = page.ask("getComputedStyle(document.querySelector('.chart text')).fill")
    assert style == "rgb({}, {}, {})".format(*ImageColor.getrgb(theme.ink))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(page, scheme):
    """Contrast as WCAG 2 computes it: 4.5 at least for text."""
    page.prefer(scheme)
    names = ("ground", "card", "ink", "soft-ink", "link", "best", "best-ink", "note")
    style = "getComputedStyle(document.documentElement).getPropertyValue"
    found = {name: page.ask(f"{style}('--{name}').trim()") for name in names}

    def find_light(name):
        channels = torch.tensor(ImageColor.getrgb(found[name])).double() / 255
        linear = torch.where(
            channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4
        )
        return float(linear @ torch.tensor([0.2126, 0.7152, 0.0722]).double())

    for ink, ground in (
        ("ink", "ground"),
        ("ink", "card"),
        ("ink", "note"),
        ("soft-ink", "ground"),
        ("soft-ink", "card"),
        ("link", "ground"),
        ("best-ink", "best"),
    ):
        low, high = sorted((find_light(ink), find_light(ground)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (ink, ground)


@pytest.mark.parametrize("width", [320, 420, 1400])
def test_the_page_is_as_wide_as_the_window(page, width):
    page.resize(width, 900)
    page.point(".chart", 0.9, 0.2)
    page.point(".map", 0.5, 0.2)
    assert page.ask("document.documentElement.scrollWidth") == width
