import io
import os
import pickle

import pytest
import torch
from PIL import Image
from torch.testing import assert_close
from torch.utils.data import DataLoader

from softvq.data import open_folder, to_model_range
from softvq.data.decoding import _crop
from softvq.data.folder import _place

WIDE = (7, 5)


def palette_picture(index):
    picture = Image.new("P", WIDE, index)
    picture.putpalette([10, 20, 30, 40, 50, 60])
    return picture


# Name, picture, further arguments of its saving, and the RGB bytes that it should give.
MODES = [
    ("1.png", Image.new("1", WIDE, 1), {}, (255, 255, 255)),
    ("L.png", Image.new("L", WIDE, 128), {}, (128, 128, 128)),
    ("L with a transparent grey.png", Image.new("L", WIDE, 9), {"transparency": 9}, (255,) * 3),
    ("LA opaque.png", Image.new("LA", WIDE, (128, 255)), {}, (128, 128, 128)),
    ("LA transparent.png", Image.new("LA", WIDE, (128, 0)), {}, (255, 255, 255)),
    ("P.png", palette_picture(1), {}, (40, 50, 60)),
    ("P transparent.png", palette_picture(0), {"transparency": 0}, (255, 255, 255)),
    ("P opaque entry.png", palette_picture(1), {"transparency": 0}, (40, 50, 60)),
    ("P entry half seen.png", palette_picture(0), {"transparency": b"\x80"}, (132, 137, 142)),
    ("P.gif", palette_picture(1), {}, (40, 50, 60)),
    ("RGB.png", Image.new("RGB", WIDE, (10, 20, 30)), {}, (10, 20, 30)),
    ("RGB.bmp", Image.new("RGB", WIDE, (10, 20, 30)), {}, (10, 20, 30)),
    (
        "RGB with a transparent colour.png",
        Image.new("RGB", WIDE, (1, 2, 3)),
        {"transparency": (1, 2, 3)},
        (255, 255, 255),
    ),
    ("RGB.JPG", Image.new("RGB", WIDE, (128, 128, 128)), {}, (128, 128, 128)),
    ("RGBA transparent red.png", Image.new("RGBA", WIDE, (255, 0, 0, 0)), {}, (255, 255, 255)),
    ("RGBA half red.png", Image.new("RGBA", WIDE, (255, 0, 0, 128)), {}, (255, 127, 127)),
    ("RGBA red.png", Image.new("RGBA", WIDE, (255, 0, 0, 255)), {}, (255, 0, 0)),
    ("CMYK.tif", Image.new("CMYK", WIDE, (0, 255, 255, 0)), {}, (255, 0, 0)),
    ("CMYK.jpg", Image.new("CMYK", WIDE, (0, 0, 0, 0)), {}, (255, 255, 255)),
    ("16 bit.png", Image.new("I;16", WIDE, 128 * 257), {}, (128, 128, 128)),
    ("16 bit rounded.png", Image.new("I;16", WIDE, 128 * 257 + 129), {}, (129, 129, 129)),
    ("16 bit big-endian.tif", Image.new("I;16B", WIDE, 128 * 257), {}, (128, 128, 128)),
    ("16 bit white.tif", Image.new("I;16", WIDE, 65535), {}, (255, 255, 255)),
]
MODE_NAMES = [mode[0] for mode in MODES]


def read_one(path, **arguments):
    return open_folder(path, **{"size": 5, **arguments}).batch(torch.tensor([0]))[0]


def picture_bytes(kind="PNG", size=WIDE, color=(10, 20, 30)):
    held = io.BytesIO()
    Image.new("RGB", size, color).save(held, kind)
    return held.getvalue()


def rough(count):
    """Bytes without a visible pattern, the same in each run."""
    return bytes(i * i * 31 % 251 for i in range(count))


def half_jpeg():
    held = io.BytesIO()
    Image.frombytes("L", (64, 64), rough(64 * 64)).save(held, "JPEG")
    return held.getvalue()[: len(held.getvalue()) // 2]


def put(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(picture_bytes())


@pytest.fixture
def damaged(tmp_path):
    """Ten good files among everything that is wrong with people's folders."""
    for i in range(10):
        Image.new("L", WIDE, i).save(tmp_path / f"good{i}.png")
    (tmp_path / "good3 half.jpg").write_bytes(half_jpeg())
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "words.png").write_text("no picture")
    (tmp_path / ".hidden.png").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(("name", "picture", "saving", "rgb"), MODES, ids=MODE_NAMES)
def test_every_mode_becomes_rgb(tmp_path, name, picture, saving, rgb):
    picture.save(tmp_path / name, **saving)
    got = read_one(tmp_path)
    assert_close(got, torch.tensor(rgb, dtype=torch.uint8)[:, None, None].expand(3, 5, 5))


@pytest.mark.parametrize(("name", "picture", "saving", "rgb"), MODES, ids=MODE_NAMES)
def test_every_mode_becomes_grey(tmp_path, name, picture, saving, rgb):
    picture.save(tmp_path / name, **saving)
    got = read_one(tmp_path, channels=1)
    luma = round(0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2])
    assert_close(got, torch.full((1, 5, 5), luma, dtype=torch.uint8))


def test_all_modes_in_one_folder_are_one_batch_in_the_declared_range(tmp_path):
    for name, picture, saving, _ in MODES:
        picture.save(tmp_path / name, **saving)
    images = open_folder(tmp_path, size=5)
    assert (images.channels, images.size, images.labels) == (3, (5, 5), None)
    batch = to_model_range(images.batch(torch.arange(len(images))))
    assert (batch.shape, batch.dtype) == ((len(MODES), 3, 5, 5), torch.float32)
    assert (batch.min(), batch.max()) == (-1, 1)
    grey = batch[images.keys.index("L.png")]
    assert_close((grey + 1) / 2, torch.full((3, 5, 5), 128 / 255), rtol=0, atol=1e-6)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_modes_without_a_known_range_are_refused(tmp_path, mode):
    Image.new(mode, WIDE, 1).save(tmp_path / "a.tif")
    with pytest.raises(ValueError, match=rf"a\.tif has pixels of mode '{mode}'"):
        open_folder(tmp_path, size=5)


@pytest.mark.parametrize(
    ("orientation", "top", "left"), [(1, (1, 0), (1, 1)), (6, (1, 1), (1, 0)), (8, (0, 0), (0, 1))]
)
def test_exif_rotation_is_applied(tmp_path, orientation, top, left):
    # Stored wide: the left half white, the right half black. Orientation 6 turns the left side up.
    picture = Image.new("L", (16, 8), 0)
    picture.paste(255, (0, 0, 8, 8))
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture.save(tmp_path / "a.jpg", exif=exif, quality=100)
    got = read_one(tmp_path, size=8, channels=1)[0]
    assert got.shape == (8, 8)
    white = (got > 127).int()
    assert (tuple(white[0, [0, -1]].tolist()), tuple(white[[0, -1], 0].tolist())) == (top, left)


def test_a_short_side_of_the_right_size_is_only_cropped(tmp_path):
    picture = Image.new("L", (8, 3))
    picture.putdata(list(range(24)))
    picture.save(tmp_path / "a.png")
    # Columns (8 - 3) // 2 = 2 to 4.
    expected = torch.tensor([[2, 3, 4], [10, 11, 12], [18, 19, 20]], dtype=torch.uint8)
    assert_close(read_one(tmp_path, size=3, channels=1)[0], expected)


@pytest.mark.parametrize("shape", [(64, 48), (48, 64), (37, 101), (9, 13), (50, 50)], ids=str)
@pytest.mark.parametrize("size", [8, 17, 32])
def test_scaling_and_cropping_at_once_is_doing_one_after_the_other(shape, size):
    picture = Image.frombytes("RGB", shape, rough(3 * shape[0] * shape[1]))
    scaled = tuple(round(side * size / min(shape)) for side in shape)
    left, top = ((side - size) // 2 for side in scaled)
    expected = picture.resize(scaled, Image.Resampling.BICUBIC)
    expected = expected.crop((left, top, left + size, top + size))
    got = [list(done.tobytes()) for done in (_crop(picture, size=size), expected)]
    # Pillow's weights are fixed-point numbers: rounding may differ by one level.
    assert_close(*map(torch.tensor, got), rtol=0, atol=1)


def test_a_very_long_picture_is_read(tmp_path):
    Image.new("L", (100_000, 1), 7).save(tmp_path / "a.png")
    assert_close(read_one(tmp_path, size=64), torch.full((3, 64, 64), 7, dtype=torch.uint8))


def test_files_are_found_and_sorted_by_relative_path(tmp_path):
    put(tmp_path, "b/c.png", "a.png", "b.png", "B.PNG", "b/a/z.jpeg", ".hidden/a.png", "b/.a.png")
    (tmp_path / "notes.txt").write_text("no picture")
    images = open_folder(tmp_path, size=5)
    assert images.keys == ("B.PNG", "a.png", "b.png", "b/a/z.jpeg", "b/c.png")
    assert images.name == f"folder {tmp_path.name} all"
    assert images.skipped == ()


def test_batch_is_in_the_asked_order(tmp_path):
    for i in range(40):
        Image.new("L", WIDE, i).save(tmp_path / f"{i:02d}.png")
    images = open_folder(tmp_path, size=5, channels=1)
    order = torch.tensor([39, 0, 7, 7, 21])
    assert_close(images.batch(order)[:, 0, 0, 0], order.to(torch.uint8))
    assert images.batch(order[:0]).shape == (0, 1, 5, 5)
    with pytest.raises(ValueError, match=r"indices must be in \[0, 40\)"):
        images.batch(torch.tensor([40]))


def test_error_policy_names_the_file(damaged):
    (damaged / "empty.png").unlink()
    with pytest.raises(ValueError, match=r"good3 half\.jpg cannot be read.*on_error=\"skip\""):
        open_folder(damaged, size=5)


def test_skip_policy_lists_the_files_and_warns_once(damaged):
    with pytest.warns(UserWarning, match="Skipped 3 of 13 files") as warned:
        images = open_folder(damaged, size=5, on_error="skip")
    assert len(warned) == 1
    assert str(damaged / "good3 half.jpg") in str(warned[0].message)
    assert images.skipped == ("empty.png", "good3 half.jpg", "words.png")
    assert images.keys == tuple(f"good{i}.png" for i in range(10))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on a machine of one core
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_order_is_the_same_for_any_number_of_workers(damaged, num_workers):
    with pytest.warns(UserWarning, match="Skipped 3"):
        images = open_folder(damaged, size=5, channels=1, on_error="skip")
    loader = DataLoader(
        torch.arange(10).split(4),
        batch_size=None,
        collate_fn=images.batch,
        num_workers=num_workers,
        # A forked copy of a process with threads may hang.
        multiprocessing_context="spawn" if num_workers else None,
    )
    got = torch.cat(list(loader))
    assert got[:, 0, 0, 0].tolist() == list(range(10))


def test_a_pickled_set_is_the_same_set(tmp_path):
    put(tmp_path, "a.png", "b.png")
    images = open_folder(tmp_path, size=5)
    copied = pickle.loads(pickle.dumps(images))
    assert copied.keys == images.keys
    assert_close(copied.batch(torch.arange(2)), images.batch(torch.arange(2)))


def test_a_file_that_breaks_later_is_named(tmp_path):
    put(tmp_path, "a.png", "b.png")
    images = open_folder(tmp_path, size=5)
    (tmp_path / "b.png").write_bytes(picture_bytes()[:40])
    with pytest.raises(ValueError, match=r"b\.png cannot be read"):
        images.batch(torch.tensor([0, 1]))


@pytest.mark.parametrize("limit", [30, 10], ids=["Pillow warns", "Pillow raises"])
def test_picture_bombs_are_refused(tmp_path, monkeypatch, limit):
    put(tmp_path, "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with pytest.raises(ValueError, match=r"a\.png .*35 pixels"):
        open_folder(tmp_path, size=5)


def test_without_pillows_limit_there_is_none(tmp_path, monkeypatch):
    put(tmp_path, "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert len(open_folder(tmp_path, size=5)) == 1


def test_pipes_and_broken_links_are_no_pictures(tmp_path):
    put(tmp_path, "good.png")
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "link.png").symlink_to(tmp_path / "none.png")
    with pytest.warns(UserWarning, match="Skipped 2"):
        images = open_folder(tmp_path, size=5, on_error="skip")
    assert images.skipped == ("link.png", "pipe.png")


@pytest.mark.parametrize("on_error", ["error", "skip"])
@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({}, "holds no pictures"),
        ({"notes.txt": b"words", ".hidden.png": b""}, "holds no pictures"),
    ],
    ids=["empty", "no pictures"],
)
def test_a_folder_without_pictures_is_refused(tmp_path, contents, message, on_error):
    for name, held in contents.items():
        (tmp_path / name).write_bytes(held)
    with pytest.raises(ValueError, match=message) as caught:
        open_folder(tmp_path, size=5, on_error=on_error)
    assert str(tmp_path) in str(caught.value)


def test_a_folder_of_bad_files_only_is_refused(tmp_path):
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "b.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match="has no readable picture: all 2 failed") as caught:
        open_folder(tmp_path, size=5, on_error="skip")
    assert repr(str(tmp_path)) in str(caught.value)


@pytest.mark.parametrize("name", ["missing", "file.png"])
def test_a_path_that_is_no_folder_is_refused(tmp_path, name):
    put(tmp_path, "file.png")
    with pytest.raises(ValueError, match=rf"{name}' is not a folder"):
        open_folder(tmp_path / name, size=5)


def test_train_and_test_part_the_folder(tmp_path):
    names = [f"class{i % 3}/{i:03d}.png" for i in range(200)]
    put(tmp_path, *names)
    parts = {split: open_folder(tmp_path, size=4, split=split).keys for split in ("train", "test")}
    assert sorted(parts["train"] + parts["test"]) == sorted(names)
    # Twenty expected, deviation 4.2: four of them.
    assert 3 <= len(parts["test"]) <= 37


def test_the_split_of_a_file_is_fixed():
    # What sha256sum says of "a.png" starts with these 16 digits.
    assert _place("a.png") == pytest.approx(0x7F071235805FBF58 / 2**64, abs=1e-15)


def test_files_keep_their_side_when_others_are_added(tmp_path):
    put(tmp_path, *(f"{i}.png" for i in range(60)))
    before = open_folder(tmp_path, size=4, split="test").keys
    put(tmp_path, *(f"new/{i}.png" for i in range(60)), "0a.png")
    after = open_folder(tmp_path, size=4, split="test").keys
    assert [key for key in after if "/" not in key and key != "0a.png"] == list(before)


@pytest.mark.parametrize(("split", "share"), [("test", 0.0), ("train", 1.0)])
def test_an_empty_split_is_refused(tmp_path, split, share):
    put(tmp_path, "a.png")
    with pytest.raises(ValueError, match=f"split '{split}' is empty: with test_share={share:g}"):
        open_folder(tmp_path, size=4, split=split, test_share=share)


def test_a_bad_file_of_the_other_split_does_no_harm(tmp_path):
    put(tmp_path, *(f"{i}.png" for i in range(60)))
    (tmp_path / open_folder(tmp_path, size=4, split="test").keys[0]).write_bytes(b"")
    assert open_folder(tmp_path, size=4, split="train").skipped == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, "size must be a whole number of at least 1; got 0"),
        ({"channels": 4}, r"channels must be 1 \(grey\) or 3 \(RGB\); got 4"),
        ({"split": "val"}, "split is 'val'; valid are: train, test, all"),
        ({"test_share": 1.5}, "test_share must be a finite number >= 0 and <= 1; got 1.5"),
        ({"on_error": "ignore"}, "on_error is 'ignore'; valid are: error, skip"),
    ],
    ids=str,
)
def test_arguments_out_of_range_are_refused(tmp_path, arguments, message):
    put(tmp_path, "a.png")
    with pytest.raises(ValueError, match=message):
        open_folder(tmp_path, **{"size": 5, **arguments})
