"""VGG16 as the net of a Frechet distance, where the Inception network of FID cannot be had.

`softvq.measures.frechet.FrechetDistance` takes these features and calls the distance FD-VGG16.
"""

from collections.abc import Mapping
from typing import final

import lpips
import torch.nn.functional as F
from einops import reduce
from jaxtyping import Float
from torch import Tensor

from softvq.checks import check_count
from softvq.measures.frechet import Features
from softvq.measures.inputs import to_net_range
from softvq.measures.perceptual import build_lpips


@final
class VggFeatures(Features):
    """The 512 channels of VGG16's last convolution, pooled as the net does (pool5), then averaged.

    Args:
        module: Of `softvq.measures.perceptual.build_lpips` with the net "vgg".
        resize: Side that the net sees.

    Raises:
        ValueError: If ``resize`` is under 32, where pool5 has nothing left.

    Example:
        >>> VggFeatures.name, VggFeatures.dim
        ('FD-VGG16', 512)
    """

    name = "FD-VGG16"
    net = "VGG16, pool5, mean over places"
    dim = 512

    def __init__(self, module: lpips.LPIPS, *, resize: int = 64) -> None:
        self.module = module
        self.resize = check_count("resize", resize, least=32)

    def extract(
        self, images: Float[Tensor, "b c h w"], *, low: float, high: float
    ) -> Float[Tensor, "b d"]:
        """Features; see `Features.extract`."""
        self.module.to(images.device)
        prepared = to_net_range(images, low=low, high=high, resize=self.resize)
        # The package's scaling is ImageNet's mean and deviation, for pictures in [-1, 1].
        last = self.module.net(self.module.scaling_layer(prepared)).relu5_3
        return reduce(F.max_pool2d(last, 2), "b d h w -> b d", "mean")


def make_vgg_features(
    weights: Mapping[str, Float[Tensor, "..."]], *, resize: int = 64
) -> VggFeatures:
    """`VggFeatures` of weights alone.

    Args:
        weights: Of VGG16, as `softvq.data.weights.load_weights` gives them.
        resize: Side that the net sees.

    Raises:
        ValueError: For weights that lack a convolution.

    Example:
        >>> make_vgg_features({})
        Traceback (most recent call last):
        ValueError: weights must have features.0.weight for the net 'vgg'; they hold 0 tensors.
    """
    return VggFeatures(build_lpips(weights, net="vgg"), resize=resize)
