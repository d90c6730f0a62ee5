"""What tokens are made of: the pictures of any data set, in a fixed order, each time the same."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.utils.data import IterableDataset

from softvq.export.digests import digest_items

PROBED = 16
"""Items that are read twice: a flip by chance stays hidden in one of 65,536 tries."""


class Batch(NamedTuple):
    """Pictures in the model's range, and their classes where there are any."""

    images: Tensor
    labels: Tensor | None
    digests: Tensor
    """Of each picture as the data set gave it, see `softvq.export.digests.digest_items`."""


class Pictures:
    """A data set as `export_tokens` reads it.

    Args:
        dataset: A `softvq.data.ImageSet`, or a map-style torch data set of images (uint8, or float
            in [-1, 1]) or of pairs (image, class).

    Attributes:
        name: Of the set.
        keys: One stable name an item.

    Raises:
        ValueError: If it has no length, no items, or gives another picture at a second reading.

    Example:
        >>> pictures = Pictures(torch.zeros(3, 1, 4, 4, dtype=torch.uint8))
        >>> pictures.keys, pictures.read(1, 3).images.shape
        (('0', '1', '2'), torch.Size([2, 1, 4, 4]))
    """

    def __init__(self, dataset: Any) -> None:  # noqa: ANN401 - any data set
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise ValueError(
                f"dataset must have a length and items by number; got {type(dataset).__name__}. "
                "A stream has no order to name tokens by: collect it first."
            )
        if len(dataset) == 0:
            raise ValueError(f"dataset ({type(dataset).__name__}) is empty.")
        self._dataset = dataset
        self.name = str(getattr(dataset, "name", type(dataset).__name__))
        keys: Sequence[str] | None = getattr(dataset, "keys", None)
        if keys is None or callable(keys):
            keys = [str(i) for i in range(len(dataset))]
        self.keys = tuple(keys)
        if len(self.keys) != len(dataset) or len(set(self.keys)) != len(self.keys):
            raise ValueError(
                f"dataset.keys must be {len(dataset)} different names; got {len(self.keys)}, of "
                f"which {len(set(self.keys))} differ."
            )
        _refuse_random(dataset)
        self._probe()

    def __len__(self) -> int:
        return len(self.keys)

    def read(self, first: int, end: int) -> Batch:
        """Pictures ``first`` to ``end - 1``.

        Args:
            first: Number of the first.
            end: Number behind the last.

        Raises:
            ValueError: If one cannot be read or is in no known form.
        """
        if hasattr(self._dataset, "batch"):
            images = self._dataset.batch(torch.arange(first, end))
            classes = getattr(self._dataset, "labels", None)
            chosen = None if classes is None else torch.as_tensor(classes[first:end])
        else:
            images, chosen = _stack([self._dataset[i] for i in range(first, end)])
        labels = None if chosen is None else chosen.to(torch.int64)
        return Batch(_to_range(images), labels, digest_items(images))

    def _probe(self) -> None:
        num = min(PROBED, len(self))
        once, again = self.read(0, num).images, self.read(0, num).images
        if not torch.equal(once, again):
            raise ValueError(
                f"dataset {self.name!r} gives another picture at a second reading: its "
                "augmentation would be frozen into the tokens. Give it without random transforms."
            )


def _refuse_random(dataset: Any) -> None:  # noqa: ANN401
    inner = dataset
    while inner is not None:
        for name in ("transform", "transforms"):
            told = repr(getattr(inner, name, None))
            if "Random" in told:
                raise ValueError(
                    f"dataset.{name} augments at random ({' '.join(told.split())[:80]}): tokens "
                    "would freeze one draw of it. Give the data set without it."
                )
        inner = getattr(inner, "dataset", None)


def _stack(items: list[Any]) -> tuple[Tensor, Tensor | None]:
    paired = isinstance(items[0], tuple | list)
    images = [item[0] if paired else item for item in items]
    for each in images:
        if not isinstance(each, Tensor):
            raise ValueError(
                f"dataset must give tensors; got {type(each).__name__}. Convert it, for example "
                "with torchvision.transforms.PILToTensor()."
            )
    labels = torch.tensor([int(item[1]) for item in items]) if paired else None
    return torch.stack(images), labels


def _to_range(images: Shaped[Tensor, "b ..."]) -> Float[Tensor, "b ..."]:
    """As `softvq.data.to_model_range`, which would bring Pillow along; floats stay."""
    if images.dtype == torch.uint8:
        return images.to(torch.float32) / 127.5 - 1
    if not images.is_floating_point():
        raise ValueError(f"images must be uint8, or float in [-1, 1]; got {images.dtype}.")
    low, high = (float(end) for end in images.aminmax())
    if not (low >= -1 and high <= 1):  # also where one is NaN
        raise ValueError(f"float images must lie in [-1, 1]; got {low:g} to {high:g}.")
    return images
