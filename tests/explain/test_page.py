import html.parser
import itertools

import pytest
import torch

from softvq.explain.page import (
    PictureExample,
    PrototypeCard,
    TextExample,
    find_colour,
    write_page,
)

EVIL = "<script>alert(1)</script>\"'&"
CARDS = [PrototypeCard(share=0.75, tokens=[EVIL], inputs=[EVIL], note=EVIL)] * 2


class Reader(html.parser.HTMLParser):
    """Elements in order with attributes, and all text."""

    def __init__(self):
        super().__init__()
        self.elements, self.words = [], []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)


def read(path):
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader


def test_text_is_coloured_by_the_owner_and_escaped(tmp_path):
    shares = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.0, 0.0]])
    text = TextExample(title=EVIL, words=[EVIL, " good", "[PAD]"], shares=shares)
    reader = read(write_page(tmp_path / "a.html", [text], prototypes=CARDS, title=EVIL, note=EVIL))
    words = [attrs for tag, attrs in reader.elements if attrs.get("class") == "word"]
    colours = [find_colour(0, 0.9), find_colour(1, 0.8), "transparent"]
    assert [attrs["style"] for attrs in words] == [f"background:{colour}" for colour in colours]
    assert [attrs["title"] for attrs in words] == ["0: 90%, 1: 10%", "1: 80%, 0: 20%", "not read"]
    assert not [tag for tag, _ in reader.elements if tag == "script"]
    assert sum(EVIL in word for word in reader.words) >= 7
    words = reader.words
    assert words[words.index("good") - 1] == " "  # the space before a word has no colour


def test_a_picture_has_a_cell_for_each_patch(tmp_path):
    shares = torch.eye(2).repeat(3, 1)
    picture = torch.arange(3 * 4 * 6, dtype=torch.uint8).reshape(3, 4, 6)
    example = PictureExample(title="p", picture=picture, grid=(2, 3), shares=shares)
    reader = read(write_page(tmp_path / "a.html", [example], prototypes=CARDS, title="t"))
    cells = [attrs["style"] for tag, attrs in reader.elements if tag == "td"]
    assert cells == [f"background:{find_colour(k, 1.0)}" for k in (0, 1, 0, 1, 0, 1)]
    images = [attrs["src"] for tag, attrs in reader.elements if tag == "img"]
    assert all(source.startswith("data:image/png;base64,") for source in images)


def test_the_bar_shows_the_total(tmp_path):
    text = TextExample(title="t", words=["a", "b"], shares=torch.tensor([[1.0, 0.0], [0.5, 0.5]]))
    page = write_page(tmp_path / "a.html", [text], prototypes=CARDS, title="t").read_text()
    assert "width:75.00%" in page
    assert "width:25.00%" in page


def test_neighbouring_prototypes_have_hues_far_apart():
    hues = [float(find_colour(k).split("(")[1].split()[0]) for k in range(8)]
    gaps = [min(abs(a - b), 360 - abs(a - b)) for a, b in itertools.pairwise(hues)]
    assert min(gaps) > 90


def test_hues_that_meet_differ_in_lightness():
    """Of 24 prototypes no two are alike in both."""
    parts = [find_colour(k).split("(")[1].split() for k in range(24)]
    for (hue, _, light, *_), (other, _, shade, *_) in itertools.combinations(parts, 2):
        gap = abs(float(hue) - float(other))
        assert min(gap, 360 - gap) > 25 or light != shade


def test_a_card_shows_its_patches(tmp_path):
    text = TextExample(title="t", words=["a"], shares=torch.tensor([[1.0, 0.0]]))
    patch = torch.arange(3 * 4 * 4, dtype=torch.uint8).reshape(3, 4, 4)
    cards = [PrototypeCard(share=0.5, patches=[patch, patch[:1]]), PrototypeCard(share=0.5)]
    reader = read(write_page(tmp_path / "a.html", [text], prototypes=cards, title="t"))
    images = [attrs["src"] for tag, attrs in reader.elements if tag == "img"]
    assert len(images) == 2
    assert all(source.startswith("data:image/png;base64,") for source in images)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "example",
    [
        TextExample(title="t", words=["a"], shares=torch.ones(2, 2)),
        TextExample(title="t", words=["a"], shares=torch.ones(1, 3)),
        PictureExample(
            title="t",
            picture=torch.zeros(3, 4, 4, dtype=torch.uint8),
            grid=(2, 2),
            shares=torch.ones(3, 2),
        ),
    ],
    ids=["words", "prototypes", "patches"],
)
def test_shares_that_do_not_fit_are_refused_and_nothing_is_written(example, tmp_path):
    with pytest.raises(ValueError, match="shares of 't' must be"):
        write_page(tmp_path / "a.html", [example], prototypes=CARDS, title="t")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.bad_input
def test_pictures_of_two_channels_are_refused(tmp_path):
    picture = torch.zeros(2, 4, 4, dtype=torch.uint8)
    example = PictureExample(title="t", picture=picture, grid=(1, 1), shares=torch.ones(1, 2))
    with pytest.raises(ValueError, match=r"picture must be \(1 or 3, H, W\)"):
        write_page(tmp_path / "a.html", [example], prototypes=CARDS, title="t")


def test_the_page_allows_no_address_outside_of_itself(tmp_path):
    text = TextExample(title="t", words=["one"], shares=torch.tensor([[0.5, 0.5]]))
    page = write_page(tmp_path / "a.html", [text], prototypes=CARDS, title="t").read_text()
    assert "default-src 'none'; img-src data:" in page
