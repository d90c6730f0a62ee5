"""The page of explanations in a browser."""

import pytest
import torch

from softvq.explain.page import PictureExample, PrototypeCard, TextExample, write_page
from tests.eval.browser import Browser, find_chromium

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="Chromium is not installed")
EVIL = "<img src=x onerror=alert(1)>"
BOXES = "[...document.querySelectorAll({!r})].map((e) => {{ const b = e.getBoundingClientRect(); \
return [b.left, b.top, b.width, b.height]; }})"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(find_chromium(), tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    shares = torch.softmax(torch.sin(torch.arange(64 * 6.0).square()).reshape(64, 6), -1)
    picture = torch.arange(3 * 32 * 32).reshape(3, 32, 32).to(torch.uint8)
    examples = [
        TextExample(title=EVIL, words=[EVIL, *(f" word{n}" for n in range(63))], shares=shares),
        PictureExample(title="p", picture=picture, grid=(8, 8), shares=shares),
    ]
    cards = [PrototypeCard(share=1 / 6, tokens=[EVIL] * 3, inputs=["x" * 300])] * 6
    return write_page(
        tmp_path_factory.mktemp("page") / "a.html", examples, prototypes=cards, title=EVIL
    )


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_asks_for_nothing_and_runs_nothing(browser, path, scheme, width):
    browser.open(path, width=width, scheme=scheme)
    assert browser.complaints == []
    assert [url for url in browser.requests if not url.startswith(("file:", "data:"))] == []
    assert browser.ask("document.documentElement.scrollWidth") <= width
    assert browser.ask("document.querySelector('h1').textContent") == EVIL


def test_every_patch_lies_on_its_part_of_the_picture(browser, path):
    browser.open(path)
    left, top, wide, high = browser.ask(BOXES.format(".pair .picture:nth-child(2) img"))[0]
    cells = browser.ask(BOXES.format(".picture td"))
    assert len(cells) == 64
    for place, (x, y, w, h) in enumerate(cells):
        row, column = divmod(place, 8)
        assert x + w / 2 == pytest.approx(left + wide * (column + 0.5) / 8, abs=2)
        assert y + h / 2 == pytest.approx(top + high * (row + 0.5) / 8, abs=2)


def test_the_bar_is_as_long_as_its_parts(browser, path):
    browser.open(path)
    bars, parts = browser.ask(BOXES.format(".bar")), browser.ask(BOXES.format(".bar span"))
    assert len(parts) == 6 * len(bars)
    assert sum(part[2] for part in parts[:6]) == pytest.approx(bars[0][2], abs=4)
