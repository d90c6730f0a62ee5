"""Files as people have them, made byte by byte where Pillow cannot write them."""

import os
import struct
import sys
import warnings
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile
from torch.testing import assert_close

from softvq.data import open_folder


def chunk(kind, content):
    body = kind + content
    return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))


def png(width, height, *, bits, colour, rows, extra=b""):
    """A PNG by its specification; ``rows`` are the packed bytes of each."""
    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    content = zlib.compress(b"".join(b"\0" + row for row in rows))
    parts = chunk(b"IHDR", head) + extra + chunk(b"IDAT", content) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def read_pixels(path, **options):
    return open_folder(path, **options).batch(torch.tensor([0]))[0]


# Two by two pixels, all of one colour; bytes of a row, and the RGB that it stands for.
GREY, RGB, PALETTE, GREY_ALPHA, RGBA = 0, 2, 3, 4, 6
DEPTHS = {
    "1 bit": (1, GREY, bytes([0b11000000]), (255, 255, 255)),
    "2 bits": (2, GREY, bytes([0b01010000]), (85, 85, 85)),
    "4 bits": (4, GREY, bytes([0x77]), (119, 119, 119)),
    "16 bits": (16, GREY, struct.pack(">2H", *[128 * 257] * 2), (128, 128, 128)),
    "RGB of 16 bits": (16, RGB, struct.pack(">6H", *[2570, 5140, 7710] * 2), (10, 20, 30)),
    "grey and alpha": (8, GREY_ALPHA, bytes([100, 255] * 2), (100, 100, 100)),
    "grey and alpha of 16 bits": (
        16,
        GREY_ALPHA,
        struct.pack(">4H", *[100 * 257, 0] * 2),
        (255, 255, 255),
    ),
    "RGBA of 16 bits": (
        16,
        RGBA,
        struct.pack(">8H", *[2570, 5140, 7710, 65535] * 2),
        (10, 20, 30),
    ),
}


@pytest.mark.parametrize("name", list(DEPTHS))
def test_every_depth_has_its_known_value(tmp_path, name):
    bits, colour, row, rgb = DEPTHS[name]
    (tmp_path / "a.png").write_bytes(png(2, 2, bits=bits, colour=colour, rows=[row] * 2))
    expected = torch.tensor(rgb, dtype=torch.uint8)[:, None, None].expand(3, 2, 2)
    assert_close(read_pixels(tmp_path, size=2), expected)


def test_a_palette_with_transparency_pixel_by_pixel(tmp_path):
    extra = chunk(b"PLTE", bytes([10, 20, 30, 200, 100, 0])) + chunk(b"tRNS", bytes([255, 0]))
    (tmp_path / "a.png").write_bytes(
        png(2, 2, bits=8, colour=PALETTE, rows=[bytes([0, 1]), bytes([1, 0])], extra=extra)
    )
    seen, white = torch.tensor([10, 20, 30]), torch.tensor([255] * 3)
    expected = torch.stack([seen, white, white, seen]).reshape(2, 2, 3).permute(2, 0, 1)
    assert_close(read_pixels(tmp_path, size=2), expected.to(torch.uint8))


TURNS = {
    1: lambda pixels: pixels,
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.T,
    6: lambda pixels: np.rot90(pixels, -1),
    7: lambda pixels: np.rot90(pixels, 2).T,
    8: lambda pixels: np.rot90(pixels, 1),
}


@pytest.mark.parametrize("kind", ["png", "tif", "webp"])
@pytest.mark.parametrize("orientation", [*TURNS, 0, 9])
def test_each_orientation_turns_each_pixel(tmp_path, kind, orientation):
    pixels = np.arange(0, 160, 10, dtype=np.uint8).reshape(4, 4)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "webp" else {}
    Image.fromarray(pixels).convert("RGB").save(tmp_path / f"a.{kind}", exif=exif, **options)
    expected = TURNS.get(orientation, TURNS[1])(pixels)
    got = read_pixels(tmp_path, size=4, channels=1)[0]
    assert_close(got, torch.tensor(expected.copy()))


@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (300, 1), (2, 3), (31, 33), (257, 5)], ids=str)
@pytest.mark.parametrize("size", [1, 8, 33])
def test_odd_sizes_of_one_colour_stay_of_that_colour(tmp_path, shape, size):
    Image.new("RGB", shape, (9, 99, 199)).save(tmp_path / "a.png")
    expected = torch.tensor([9, 99, 199], dtype=torch.uint8)[:, None, None]
    assert_close(read_pixels(tmp_path, size=size), expected.expand(3, size, size))


def test_of_an_animation_the_first_frame_is_taken(tmp_path):
    frames = [Image.new("RGB", (4, 4), colour) for colour in ((255, 0, 0), (0, 0, 255))]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:], duration=100)
    assert read_pixels(tmp_path, size=4)[:, 0, 0].tolist() == [255, 0, 0]


KINDS = ["png", "jpg", "gif", "bmp", "tif", "webp", "ppm"]


def rough_picture():
    pixels = np.arange(40 * 40 * 3, dtype=np.int64)
    return Image.fromarray((pixels * pixels * 31 % 251).astype(np.uint8).reshape(40, 40, 3))


@pytest.mark.parametrize("everywhere", [False, True], ids=["Pillow's default", "switched on"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.9])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_cut_anywhere_is_named_or_counted(tmp_path, monkeypatch, kind, share, everywhere):
    """Whatever other packages have told Pillow about files that are cut short."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", everywhere)
    rough_picture().save(tmp_path / f"cut.{kind}")
    content = (tmp_path / f"cut.{kind}").read_bytes()
    (tmp_path / f"cut.{kind}").write_bytes(content[: int(len(content) * share)])
    rough_picture().save(tmp_path / "good.png")
    with pytest.raises(ValueError, match=rf"cut\.{kind} cannot be read as a picture"):
        open_folder(tmp_path, size=8)
    for _ in range(2):
        with pytest.warns(UserWarning, match="Skipped 1 of 2 files"):
            images = open_folder(tmp_path, size=8, on_error="skip")
        assert images.skipped == (f"cut.{kind}",)
        assert images.keys == ("good.png",)


def bombs():
    """Small files that claim, or would need, very much memory."""
    wide = 50_000
    row = bytes(wide // 8)
    held = zlib.compress(bytes(5_000_000))  # Pillow's limit is one million
    text = chunk(b"zTXt", b"words\0\0" + held)
    return {
        "png.png": png(wide, 20_000, bits=1, colour=GREY, rows=[row]),
        "gif.gif": b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0),
        "bmp.bmp": b"BM"
        + struct.pack("<IHHI", 100, 0, 0, 54)
        + struct.pack("<IiiHHIIiiII", 40, wide, wide, 1, 24, 0, 0, 0, 0, 0, 0),
        "pgm.pgm": b"P5 60000 60000 255 ",
        "text.png": png(2, 2, bits=8, colour=GREY, rows=[b"\0\0"] * 2, extra=text),
    }


@pytest.mark.parametrize("name", list(bombs()))
def test_a_bomb_is_refused_by_name_and_in_little_memory(tmp_path, name):
    resource = pytest.importorskip("resource", reason="not on Windows")
    (tmp_path / name).write_bytes(bombs()[name])
    assert (tmp_path / name).stat().st_size < 200_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=rf"{name}"):
        open_folder(tmp_path, size=8)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024


def test_one_picture_of_many_frames_is_read_once(tmp_path):
    """A thousand frames of which one is wanted."""
    frames = [Image.new("P", (64, 64), i % 2) for i in range(1000)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert read_pixels(tmp_path, size=4).shape == (3, 4, 4)


NAMES = [
    "with spaces .png",
    "naïve 文件 🙂.png",
    "<script>alert(1)<.png",
    "new\nline.png",
    "quote\"'`$(x).png",
    "[a-z]*?.png",
    "-o.png",
    "nul.PNG",
]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_a_key_and_is_told(tmp_path, name):
    folder = tmp_path / name.removesuffix(".png")
    folder.mkdir()
    Image.new("L", (4, 4), 7).save(folder / name)
    images = open_folder(tmp_path, size=4)
    assert images.keys == (f"{folder.name}/{name}",)
    (folder / name).write_bytes(b"broken")
    with pytest.raises(ValueError, match="cannot be read") as caught:
        images.batch(torch.tensor([0]))
    assert str(folder / name) in str(caught.value)


@pytest.mark.skipif(sys.platform != "linux", reason="names there are text")
def test_a_name_that_is_no_text_is_told_in_text(tmp_path):
    name = os.fsdecode(b"caf\xe9.png")
    Image.new("L", (4, 4), 7).save(tmp_path / name)
    (tmp_path / os.fsdecode(b"bad\xff.png")).write_bytes(b"")
    with pytest.warns(UserWarning, match="Skipped 1 of 2") as warned:
        images = open_folder(tmp_path, size=4, on_error="skip")
    assert images.keys == (name,)
    assert r"bad\udcff.png" in str(warned[0].message).encode("utf-8").decode()  # prints anywhere


def test_a_link_to_a_file_is_read_and_a_link_to_a_folder_is_not_entered(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    Image.new("L", (4, 4), 7).save(tmp_path / "out" / "a.png")
    (tmp_path / "in" / "link.png").symlink_to(tmp_path / "out" / "a.png")
    (tmp_path / "in" / "folder").symlink_to(tmp_path / "out", target_is_directory=True)
    (tmp_path / "in" / "round").symlink_to(tmp_path / "in", target_is_directory=True)
    assert open_folder(tmp_path / "in", size=4).keys == ("link.png",)


@pytest.mark.skipif(sys.platform != "linux", reason="what files the system allows")
def test_what_is_half_written_by_us_is_no_picture(tmp_path):
    folder = tmp_path / ".000001.png.ab12cd34.partial"
    folder.mkdir()
    (folder / "content.partial").write_bytes(b"half")
    Image.new("L", (4, 4), 7).save(tmp_path / "000000.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_folder(tmp_path, size=4).keys == ("000000.png",)
