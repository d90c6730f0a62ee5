"""Pictures: real photographs, folders of files, and drawn ones where no others can be had."""

from pathlib import Path

from softvq.checks import check_count, choose
from softvq.data.cifar10 import CIFAR10_CLASSES, load_cifar10
from softvq.data.folder import FolderImages, open_folder
from softvq.data.images import (
    FirstImages,
    ImageSet,
    TensorImages,
    from_model_range,
    to_model_range,
)
from softvq.data.textures import draw_textures

__all__ = [
    "CIFAR10_CLASSES",
    "FirstImages",
    "FolderImages",
    "ImageSet",
    "TensorImages",
    "draw_textures",
    "from_model_range",
    "load_cifar10",
    "load_images",
    "open_folder",
    "to_model_range",
]


def load_images(
    source: str,
    split: str,
    *,
    path: Path | str | None = None,
    size: int = 32,
    channels: int = 3,
    num_images: int | None = None,
) -> ImageSet:
    """Return pictures by the name of their source.

    Args:
        source: "cifar10", "folder" or "textures".
        split: "train" or "test"; for a folder also "all".
        path: The folder, for the source "folder" and for no other.
        size: Height and width in pixels; CIFAR-10 is 32.
        channels: 1 (grey) or 3 (RGB); CIFAR-10 is 3.
        num_images: At most this many, the first ones; None means all, and 2,000 textures.

    Raises:
        ValueError: If an argument does not fit, or the source has no such pictures.
        softvq.data.fetch.FetchError: If CIFAR-10 cannot be had.

    Example:
        >>> images = load_images("textures", "test", num_images=20)
        >>> len(images), images.channels, images.size
        (20, 3, (32, 32))
    """
    choose("source", source, ("cifar10", "folder", "textures"))
    if num_images is not None:
        check_count("num_images", num_images)
    if path is not None and source != "folder":
        raise ValueError(f'path is for the source "folder"; got {str(path)!r} with {source!r}.')
    if source == "textures":
        return draw_textures(split, num_images=num_images or 2000, size=size, channels=channels)
    if source == "folder":
        if path is None:
            raise ValueError('path is None; the source "folder" needs the folder of pictures.')
        images: ImageSet = open_folder(path, size=size, channels=channels, split=split)
    else:
        if (size, channels) != (32, 3):
            raise ValueError(
                "size and channels must be 32 and 3 for the source 'cifar10'; "
                f"got {size!r} and {channels!r}. "
                'Save its pictures to a folder and use the source "folder" for another form.'
            )
        images = load_cifar10(split)
    if num_images is not None and num_images < len(images):
        return FirstImages(images, count=num_images)
    return images
