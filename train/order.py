"""Which images a step sees: a function of seed and step alone, as a resumed run needs it."""

import torch
from jaxtyping import Int
from torch import Tensor

from softvq.checks import check_count


class BatchOrder:
    """Epochs of shuffled images, cut in batches; the rest of an epoch that fills no batch is left.

    Args:
        num_images: In the set.
        batch_size: Images a step; no more than there are.
        seed: Of the shuffles.

    Raises:
        ValueError: If a batch is larger than the set.

    Example:
        >>> order = BatchOrder(10, 4, seed=0)
        >>> len(order.batch(0)), set(order.batch(0).tolist()) & set(order.batch(1).tolist())
        (4, set())
    """

    def __init__(self, num_images: int, batch_size: int, *, seed: int) -> None:
        self.num_images = check_count("num_images", num_images)
        self.batch_size = check_count("batch_size", batch_size)
        self.seed = seed
        if batch_size > num_images:
            raise ValueError(
                f"batch_size is {batch_size}, but there are only {num_images} training images."
            )
        self.per_epoch = num_images // batch_size
        self._epoch = -1
        self._shuffle = torch.empty(0, dtype=torch.int64)

    def batch(self, step: int) -> Int[Tensor, " b"]:
        """Indices of the images of a step, counted from 0."""
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            self._shuffle = torch.randperm(self.num_images, generator=generator)
            self._epoch = epoch
        return self._shuffle[place * self.batch_size : (place + 1) * self.batch_size]
