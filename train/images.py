"""The pictures of a run: those that it trains on, and those that it is measured on."""

from typing import Any

import torch

from softvq.data import load_images
from softvq.data.images import FirstImages, TensorImages
from train.config import RunConfig


class ImagePair:
    """Training and test images of a run; give one to several runs to read them once.

    With ``data.held_out`` the last training images stand in for the test set, which is not read.
    """

    def __init__(self, config: RunConfig) -> None:
        data = config.data
        options: dict[str, Any] = {
            "path": data.path,
            "size": data.size,
            "channels": data.channels,
        }
        whole = load_images(data.source, "train", num_images=data.num_train, **options)
        if not data.held_out:
            self.train = whole
            self.test = load_images(data.source, "test", num_images=data.num_test, **options)
            return
        count = min(data.held_out, len(whole) // 5)
        if count == 0:
            raise ValueError(
                f"data.held_out is {data.held_out}, of which a fifth of the training images at "
                f"most is taken; there are {len(whole)}. Give 5 or more."
            )
        kept = len(whole) - count
        self.train = FirstImages(whole, count=kept)
        self.test = TensorImages(
            whole.batch(torch.arange(kept, len(whole))),
            name=f"{whole.name} (last {count} of {len(whole)})",
        )
