"""The network of FID and rFID: torch-fidelity's copy of the original Inception, and its features.

`softvq.measures.frechet.FrechetDistance` takes them as it takes those of VGG16.
"""

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor
from torch_fidelity.feature_extractor_inceptionv3 import (
    URL_INCEPTION_V3,
    FeatureExtractorInceptionV3,
)

from softvq.measures.frechet import Features
from softvq.measures.inputs import to_net_range

INCEPTION_URL = URL_INCEPTION_V3
"""Home of the weights, for `softvq.data.published.load_published`."""


@final
class InceptionFeatures(Features):
    """The 2,048 features of FID, which therefore wants more than 2,048 pictures.

    Pictures are rounded to bytes, as there, and brought to 299 x 299 as TensorFlow 1 did it.

    Args:
        weights: All of the network's, as published at `INCEPTION_URL`.

    Raises:
        RuntimeError: If they are of another network; PyTorch lists what is amiss.

    Example:
        >>> InceptionFeatures.name, InceptionFeatures.dim
        ('FID', 2048)
    """

    name = "FID"
    net = "Inception v3 (2015-12-05), pool3"
    dim = 2048
    resize = 299

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        # torch-fidelity reads its file as a pickle, so it gets one that was written just now from
        # plain tensors, and never the file that came over the network.
        with tempfile.TemporaryDirectory(prefix="softvq-") as folder:
            path = Path(folder) / "weights.pth"
            torch.save(dict(weights), path)
            self.module = FeatureExtractorInceptionV3(
                "softvq", ["2048"], feature_extractor_weights_path=str(path)
            )
        # Not every version of torch-fidelity does so itself, and its norms would read the batch.
        self.module.requires_grad_(False).eval()

    def extract(
        self, images: Float[Tensor, "b c h w"], *, low: float, high: float
    ) -> Float[Tensor, "b d"]:
        """Features; see `Features.extract`."""
        self.module.to(images.device)
        prepared = to_net_range(images, low=low, high=high)
        whole = torch.isfinite(prepared).flatten(1).all(1)
        pixels = ((prepared.nan_to_num(nan=0.0) + 1) * 127.5).round().clamp(0, 255)
        (features,) = self.module(pixels.to(torch.uint8))
        return torch.where(whole[:, None], features, math.nan)
