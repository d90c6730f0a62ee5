"""What a set of pictures is: bytes in memory or on disk, asked for by index, one batch at a time.

Shape letters: N pictures of the set, b of a batch, c channels, h height, w width.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float, Float32, Int, Shaped, UInt8
from torch import Tensor

from softvq.checks import check_count, check_finite, check_floating


class ImageSet(ABC):
    """Pictures of one size, in a fixed order, as bytes.

    A set never augments, shuffles or scales: two calls with the same indices give equal bytes.

    Attributes:
        name: What the pictures are, for every output that shows them: "cifar10 test".
        channels: 1 (grey) or 3 (RGB).
        size: Height and width in pixels.
        keys: One stable name a picture: "test/00017" or a path relative to the folder.
        labels: Class of each picture (int64, shape N), or None where there are no classes.
        crop: How larger pictures were brought to ``size``, for every figure that is taken of them.
    """

    name: str
    channels: int
    size: tuple[int, int]
    keys: Sequence[str]
    labels: Tensor | None
    crop: str = "none"

    def __len__(self) -> int:
        return len(self.keys)

    @abstractmethod
    def batch(self, indices: Int[Tensor, " b"]) -> UInt8[Tensor, "b c h w"]:
        """Return the pictures at ``indices``, in that order, as a copy.

        Args:
            indices: Whole numbers in [0, len); repeats are allowed.

        Returns:
            Bytes in [0, 255]; `to_model_range` turns them into what a model reads.

        Raises:
            ValueError: If an index is outside of the set, or is no whole number.
        """


@final
class TensorImages(ImageSet):
    """Pictures held in memory.

    Args:
        images: The pictures, bytes in [0, 255]. Not copied.
        name: What they are.
        keys: One name each; "00000", "00001", ... if not given.
        labels: Class of each, or None.

    Raises:
        ValueError: If ``images`` are not bytes of 1 or 3 channels, there are none, or ``keys`` or
            ``labels`` differ from them in number.

    Example:
        >>> images = TensorImages(torch.zeros(5, 3, 8, 8, dtype=torch.uint8), name="black")
        >>> images.batch(torch.tensor([4, 0])).shape, images.keys[4]
        (torch.Size([2, 3, 8, 8]), '00004')
    """

    def __init__(
        self,
        images: Shaped[Tensor, "..."],
        *,
        name: str,
        keys: Sequence[str] | None = None,
        labels: Tensor | None = None,
    ) -> None:
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
            raise ValueError(
                "images must be uint8 of shape (N, 1 or 3, H, W); "
                f"got {images.dtype} of shape {tuple(images.shape)}."
            )
        if images.numel() == 0:
            raise ValueError(f"images must hold a picture; got shape {tuple(images.shape)}.")
        count, channels, height, width = images.shape
        for argument, given in (("keys", keys), ("labels", labels)):
            if given is not None and len(given) != count:
                raise ValueError(f"{argument} must be {count}, one a picture; got {len(given)}.")
        self.images = images
        self.name = name
        self.channels = channels
        self.size = (height, width)
        self.keys = tuple(f"{i:05d}" for i in range(count)) if keys is None else tuple(keys)
        self.labels = labels

    def batch(self, indices: Int[Tensor, " b"]) -> UInt8[Tensor, "b c h w"]:
        """Return the pictures at ``indices``; see `ImageSet.batch`."""
        check_indices(indices, count=len(self))
        return self.images[indices.to(self.images.device, torch.int64)]


@final
class FirstImages(ImageSet):
    """The first pictures of another set; its name says so.

    Args:
        images: The whole set.
        count: How many to keep, at most ``len(images)``.

    Raises:
        ValueError: If ``count`` is no whole number from 1 to ``len(images)``.

    Example:
        >>> black = TensorImages(torch.zeros(5, 3, 8, 8, dtype=torch.uint8), name="black")
        >>> first = FirstImages(black, count=2)
        >>> len(first), first.name
        (2, 'black (first 2 of 5)')
    """

    def __init__(self, images: ImageSet, *, count: int) -> None:
        if check_count("count", count) > len(images):
            raise ValueError(f"count must be at most {len(images)}, the set's size; got {count}.")
        self.images = images
        self.name = f"{images.name} (first {count} of {len(images)})"
        self.channels = images.channels
        self.size = images.size
        self.crop = images.crop
        self.keys = images.keys[:count]
        self.labels = None if images.labels is None else images.labels[:count]

    def batch(self, indices: Int[Tensor, " b"]) -> UInt8[Tensor, "b c h w"]:
        """Return the pictures at ``indices``; see `ImageSet.batch`."""
        check_indices(indices, count=len(self))
        return self.images.batch(indices)


def check_indices(indices: Shaped[Tensor, "..."], *, count: int) -> None:
    """Raise unless ``indices`` is a list of whole numbers in [0, count).

    PyTorch itself would count negative numbers from the end and take bytes for a mask.

    Args:
        indices: What the caller gave.
        count: Size of the set.

    Raises:
        ValueError: With the dtype and shape, or the range, that came.

    Example:
        >>> check_indices(torch.tensor([0, 4]), count=5)
    """
    whole = (torch.int8, torch.int16, torch.int32, torch.int64)
    if indices.dtype not in whole or indices.ndim != 1:
        raise ValueError(
            "indices must be a one-dimensional tensor of signed whole numbers; "
            f"got {indices.dtype} of shape {tuple(indices.shape)}."
        )
    if indices.numel() and (int(indices.min()) < 0 or int(indices.max()) >= count):
        raise ValueError(
            f"indices must be in [0, {count}), the set's size; "
            f"got {int(indices.min())} to {int(indices.max())}."
        )


def to_model_range(images: Shaped[Tensor, "*shape"]) -> Float32[Tensor, "*shape"]:
    """Turn bytes into what every model of softvq reads: x / 127.5 - 1.

    Args:
        images: Bytes (uint8) in [0, 255], of any shape.

    Returns:
        float32 in [-1, 1]; `from_model_range` gives the same bytes back.

    Raises:
        ValueError: If ``images`` are not uint8: floats could be in [0, 1] or [0, 255] or scaled
            already, and a guess would be wrong for some.

    Example:
        >>> to_model_range(torch.tensor([0, 51, 255], dtype=torch.uint8))
        tensor([-1.0000, -0.6000,  1.0000])
    """
    if images.dtype != torch.uint8:
        raise ValueError(f"images must be uint8, bytes in [0, 255]; got {images.dtype}.")
    return images.to(torch.float32) / 127.5 - 1


def from_model_range(images: Float[Tensor, "*shape"]) -> UInt8[Tensor, "*shape"]:
    """Turn a model's output into bytes: (x + 1) * 127.5, rounded, clamped to [0, 255].

    Args:
        images: Numbers where [-1, 1] is black to white; what is outside is clamped. Low
            precision is widened to float32 first.

    Returns:
        Bytes in [0, 255].

    Raises:
        ValueError: If ``images`` are not floating point, or hold NaN or an infinity, which no
            byte stands for. The check synchronizes with the device.

    Example:
        >>> from_model_range(torch.tensor([-1.5, 0.0, 1.0]))
        tensor([  0, 128, 255], dtype=torch.uint8)
    """
    check_floating("images", images)
    check_finite("images", images, remedy="The model that made them has diverged.")
    return ((images.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
