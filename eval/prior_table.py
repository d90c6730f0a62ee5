"""What a study of priors shows: a table, and a picture with a row for each class."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from einops import rearrange
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from eval.terminal import open_console
from train.prior.pictures import WHITE, lay_out, write_png

COLUMNS = {
    "tokenizer": "{label}",
    "PSNR hard": "{psnr_hard:.2f} dB",
    "nats/token": "{nats_per_token:.3f}",
    "unigram, test / train": "{unigram_entropy:.3f} / {unigram_cross_entropy:.3f}",
    "margin": "{margin:.3f}",
    "nats/image": "{nats_per_image:.1f}",
    "codes emitted / test": "{codes_emitted:.1%} / {codes_of_test:.1%}",
    "FD-VGG16, samples / reconstr.": "{fd} / {fd_floor}",
}
NOTE = (
    "Nats of two tokenizers are of two texts: what keeps less of the picture is easier to predict. "
    "Read them beside the PSNR."
)
NAMES, TITLE, SPACE = 74, 20, 14
TEXT = 12


class Block(NamedTuple):
    """Samples of one tokenizer: its label and uint8 pictures, class by class."""

    label: str
    pictures: Tensor


def make_row(found: Mapping[str, Any]) -> list[str]:
    """The cells of one method.

    Args:
        found: As in ``prior.json``, under ``methods``.

    Example:
        >>> facts = dict.fromkeys(["psnr_hard", "nats_per_token", "unigram_entropy"], 2.0)
        >>> facts |= {"unigram_cross_entropy": 3.0, "nats_per_image": 128.0, "codes_emitted": 0.5}
        >>> facts |= {"codes_of_test": 1.0, "fd_vgg16": None, "fd_vgg16_reconstructions": 7.5}
        >>> make_row({"label": "SoftVQ", **facts})[4:]
        ['1.000', '128.0', '50.0% / 100.0%', '- / 7.5']
    """
    shown = {
        **found,
        "margin": found["unigram_cross_entropy"] - found["nats_per_token"],
        "fd": _tell(found["fd_vgg16"]),
        "fd_floor": _tell(found["fd_vgg16_reconstructions"]),
    }
    return [form.format(**shown) for form in COLUMNS.values()]


def print_study(results: Mapping[str, Any], *, console: Console | None = None) -> None:
    """Print the table of a study.

    Args:
        results: As ``prior.json`` holds them.
        console: To write on; standard output by default.
    """
    console = console or open_console()
    table = Table(box=box.SIMPLE_HEAD)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "tokenizer" else "right")
    for found in results["methods"].values():
        table.add_row(*make_row(found))
    console.print(table)
    console.print(NOTE, soft_wrap=True)
    real = results.get("fd_vgg16_real")
    if real is not None:
        count = results["study"]["samples"]
        console.print(f"FD-VGG16 of {count} training pictures, for scale: {real:.1f}.")


def draw_blocks(blocks: Sequence[Block], *, classes: Sequence[str]) -> UInt8[Tensor, "y x 3"]:
    """A picture: a row for each class, a block of columns for each tokenizer.

    Args:
        blocks: Each with as many pictures for every class, in the order of classes.
        classes: Names for the left margin.

    Example:
        >>> pictures = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
        >>> draw_blocks([Block("SoftVQ", pictures)], classes=["cat", "dog"]).shape
        torch.Size([54, 108, 3])
    """
    columns = len(blocks[0].pictures) // len(classes)
    grids = [lay_out(block.pictures, columns=columns) for block in blocks]
    height, width = grids[0].shape[:2]
    page = torch.full(
        (TITLE + height, NAMES + len(grids) * (width + SPACE) - SPACE, 3), WHITE, dtype=torch.uint8
    )
    for i, grid in enumerate(grids):
        left = NAMES + i * (width + SPACE)
        page[TITLE:, left : left + width] = grid
    image = Image.fromarray(page.numpy())
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(TEXT)
    for i, block in enumerate(blocks):
        pen.text((NAMES + i * (width + SPACE), 3), block.label, fill="black", font=font)
    for i, name in enumerate(classes):
        middle = TITLE + (2 * i + 1) * height // (2 * len(classes))
        pen.text((4, middle), name, fill="black", font=font, anchor="lm")
    return rearrange(
        torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8),
        "(y x c) -> y x c",
        y=image.height,
        c=3,
    )


def write_blocks(blocks: Sequence[Block], *, classes: Sequence[str], path: Path) -> Path:
    """`draw_blocks` as a PNG file, whole or not at all."""
    return write_png(draw_blocks(blocks, classes=classes), path)


def _tell(distance: float | None) -> str:
    return "-" if distance is None else f"{distance:.1f}"
