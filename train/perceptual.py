"""How reconstructions look: LPIPS as a loss, and LPIPS and FD-VGG16 of a trained model.

The nets' weights are fetched on first use (`softvq.data.weights`). Measures whose weights cannot be
had are None, with the reason beside them; a loss whose weights cannot be had is an error.
"""

import functools
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import lpips
import torch
from jaxtyping import Float
from torch import Tensor

from softvq import quantize_mode
from softvq.data import ImageSet, to_model_range
from softvq.data.fetch import FetchError
from softvq.data.weights import load_weights
from softvq.measures import Conditions
from softvq.measures.frechet import FeatureSums, FrechetDistance
from softvq.measures.inputs import to_net_range
from softvq.measures.perceptual import Lpips, build_lpips
from softvq.measures.vgg import VggFeatures
from softvq.models import VQVAE
from train.evaluate import PERCEPTUAL

BATCH = 250
NETS = ("alex", "vgg")

# Sums of a set's own features, by how many of it: the runs of a comparison share them.
_REFERENCES: "WeakKeyDictionary[ImageSet, dict[int, FeatureSums]]" = WeakKeyDictionary()


class NotAvailableError(RuntimeError):
    """A net that cannot be had; the message is the reason."""


class Perceived(NamedTuple):
    """Measures by name, None where not asked for or not to be had; conditions; and reasons."""

    measures: dict[str, float | None]
    conditions: dict[str, Conditions]
    missing: dict[str, str]


@functools.cache
def _try_net(net: str) -> "lpips.LPIPS | str":
    """The module, or why there is none: what failed once is not asked for again by every run."""
    try:
        return build_lpips(load_weights(net), net=net)
    except (FetchError, OSError) as error:
        return " ".join(str(error).split())


def get_net(net: str) -> lpips.LPIPS:
    """The LPIPS module of a net, fetched once a process.

    Args:
        net: "alex" or "vgg".

    Returns:
        Shared: leave it as it is.

    Raises:
        NotAvailableError: If its weights cannot be had; says what was tried.

    Example:
        >>> get_net("resnet")
        Traceback (most recent call last):
        ValueError: net is 'resnet'; valid are: alex, vgg.
    """
    found = _try_net(net)
    if isinstance(found, str):
        raise NotAvailableError(found)
    return found


class PerceptualLoss:
    """Mean LPIPS between pictures in [-1, 1], with its gradient.

    Args:
        net: "alex" or "vgg".
        device: Where the pictures will be.

    Raises:
        NotAvailableError: If the weights cannot be had.
    """

    def __init__(self, net: str, *, device: torch.device | str = "cpu") -> None:
        self.module = get_net(net).to(device)

    def __call__(
        self, reconstructions: Float[Tensor, "b c h w"], images: Float[Tensor, "b c h w"]
    ) -> Float[Tensor, ""]:
        """0-dim float32; nothing is clamped, so that what is out of range has a gradient too."""
        made = to_net_range(reconstructions, low=-1.0, high=1.0)
        return self.module(made, to_net_range(images, low=-1.0, high=1.0)).mean()


def measure_perceptual(
    model: VQVAE,
    images: ImageSet,
    *,
    num_lpips: int,
    num_frechet: int,
    device: torch.device | str = "cpu",
) -> Perceived:
    """LPIPS and FD-VGG16 of a model's hard and soft reconstructions.

    Args:
        model: Unwrapped; put in eval mode for the time.
        images: The set, at best one that training never saw.
        num_lpips: The first so many pictures of it for LPIPS, in their own size; 0 for none.
        num_frechet: The same for the Frechet distance between inputs and reconstructions, at
            64 x 64; it wants more than 512.
        device: Where the model is.

    Returns:
        The `PERCEPTUAL` measures.
    """
    found = Perceived(dict.fromkeys(PERCEPTUAL), {}, {})
    training = model.training
    model.eval()
    quantizer: Any = model.quantizer
    for mode in ("hard", "soft") if quantizer.has_soft else ("hard",):
        for net in NETS if num_lpips else ():
            _measure_lpips(found, model, images, names=(net, mode), count=num_lpips, device=device)
        if num_frechet:
            _measure_frechet(found, model, images, mode=mode, count=num_frechet, device=device)
    model.train(training)
    return found


def _measure_lpips(
    found: Perceived,
    model: VQVAE,
    images: ImageSet,
    *,
    names: tuple[str, str],
    count: int,
    device: torch.device | str,
) -> None:
    net, mode = names
    key = f"lpips_{net}_{mode}"
    try:
        measure = Lpips(get_net(net), net=net)
        for inputs, made in _reconstructions(model, images, mode=mode, count=count, device=device):
            measure.update(inputs, made)
    except (NotAvailableError, ValueError) as reason:
        found.missing[key] = str(reason)
        return
    report = measure.compute()
    found.measures[key] = report.mean_over_images
    found.conditions[key] = report.conditions


def _measure_frechet(
    found: Perceived,
    model: VQVAE,
    images: ImageSet,
    *,
    mode: str,
    count: int,
    device: torch.device | str,
) -> None:
    key = f"fd_vgg16_{mode}"
    held = _REFERENCES.setdefault(images, {})
    try:
        dim = VggFeatures.dim
        if (there := min(count, len(images))) <= dim:
            raise ValueError(f"{there} pictures are too few for {dim} features; more are needed")
        known = held.get(count)
        measure = FrechetDistance(VggFeatures(get_net("vgg")), reference=known)
        for inputs, made in _reconstructions(model, images, mode=mode, count=count, device=device):
            if known is None:
                measure.update(inputs, side="reference")
            measure.update(made, side="made")
    except (NotAvailableError, ValueError) as reason:
        found.missing[key] = str(reason)
        return
    held[count] = measure.reference
    report = measure.compute()
    found.measures[key] = report.distance
    found.conditions[key] = report.conditions


@torch.no_grad()
def _reconstructions(
    model: VQVAE, images: ImageSet, *, mode: str, count: int, device: torch.device | str
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of the first pictures and of what a model makes of them."""
    count = min(count, len(images))
    for begin in range(0, count, BATCH):
        inputs = to_model_range(images.batch(torch.arange(begin, min(begin + BATCH, count))))
        inputs = inputs.to(device)
        with quantize_mode(model, "soft") if mode == "soft" else nullcontext():
            made = model(inputs).reconstruction.float()
        yield inputs, made
