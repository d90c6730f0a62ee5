import io

import pytest
import torch
from PIL import Image
from rich.console import Console

from eval.prior_table import Block, draw_blocks, make_row, print_study, write_blocks

FOUND = {
    "label": "SoftVQ",
    "psnr_hard": 23.331,
    "nats_per_token": 5.25,
    "nats_per_image": 336.0,
    "unigram_entropy": 6.1,
    "unigram_cross_entropy": 6.125,
    "codes_emitted": 0.995,
    "codes_of_test": 1.0,
    "fd_vgg16": 120.04,
    "fd_vgg16_reconstructions": None,
}


def test_a_row_has_every_figure():
    start, *rest = make_row(FOUND)
    assert start == "SoftVQ"
    assert rest[:3] == ["23.33 dB", "5.250", "6.100 / 6.125"]
    assert rest[3:] == ["0.875", "336.0", "99.5% / 100.0%", "120.0 / -"]


@pytest.mark.parametrize("real", [31.26, None])
def test_the_table_says_how_to_read_it(real):
    written = io.StringIO()
    results = {"methods": {"softvq": FOUND}, "fd_vgg16_real": real, "study": {"samples": 1000}}
    print_study(results, console=Console(file=written, width=200))
    text = written.getvalue()
    assert "SoftVQ" in text
    assert "Read them beside the PSNR." in text
    assert ("FD-VGG16 of 1000 training pictures, for scale: 31.3." in text) is (real is not None)


def test_blocks_stand_side_by_side_under_their_names(tmp_path):
    pictures = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
    blocks = [Block("one", pictures), Block("two", pictures + 90)]
    page = draw_blocks(blocks, classes=["cat", "dog"])
    assert page.shape == (20 + 34, 74 + 34 + 14 + 34, 3)
    assert page[20, 74].tolist() == [0, 0, 0]
    assert page[20, 74 + 34 + 14].tolist() == [90, 90, 90]
    assert bool((page[20:, 74 + 34 : 74 + 34 + 14] == 255).all())
    for top, left in ((0, 74), (0, 122), (20, 0), (38, 0)):  # two labels, two classes
        assert bool((page[top : top + 16, left : left + 30] < 128).any())
    path = write_blocks(blocks, classes=["cat", "dog"], path=tmp_path / "p.png")
    with Image.open(path) as image:
        assert image.size == (156, 54)
