"""How reconstructions look: LPIPS as a loss, and what image nets say of a trained model.

The nets' weights are fetched on first use (`softvq.data.weights`, `softvq.data.published`).
Measures whose weights cannot be had are None, with the reason beside them; a loss whose weights
cannot be had is an error.
"""

import functools
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import lpips
import torch
from jaxtyping import Float
from torch import Tensor

from softvq import quantize_mode
from softvq.data import ImageSet, to_model_range
from softvq.data.fetch import FetchError
from softvq.data.published import load_published
from softvq.data.weights import load_weights
from softvq.measures import Conditions
from softvq.measures.frechet import Features, FeatureSums, FrechetDistance
from softvq.measures.inception import INCEPTION_URL, InceptionFeatures
from softvq.measures.inputs import to_net_range
from softvq.measures.perceptual import Lpips, build_lpips
from softvq.measures.vgg import VggFeatures
from softvq.models import VQVAE
from train.evaluate import PERCEPTUAL, Evaluation, has_soft_measures, split_rows

NETS = ("alex", "vgg")
FEATURES: dict[str, type[Features]] = {"FD-VGG16": VggFeatures, "FID": InceptionFeatures}

# Sums of a set's own features, by net and how many of it: the runs of a comparison share them.
_REFERENCES: "WeakKeyDictionary[ImageSet, dict[tuple[str, int], FeatureSums]]" = WeakKeyDictionary()


class NotAvailableError(RuntimeError):
    """A net that cannot be had; the message is the reason."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """The first how many pictures image nets look at; 0 for none.

    Attributes:
        lpips: For LPIPS, in their own size.
        frechet: For FD-VGG16, at 64 x 64; it wants more than 512.
        fid: For FID and rFID, at 299 x 299; they want more than 2,048.
    """

    lpips: int = 0
    frechet: int = 0
    fid: int = 0


@dataclass
class Perceived:
    """Measures by name, None where not asked for or not to be had; conditions; and reasons."""

    measures: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(PERCEPTUAL))
    conditions: dict[str, dict[str, Any]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


@functools.cache
def _try_net(net: str) -> "lpips.LPIPS | InceptionFeatures | str":
    """The net, or why there is none: what failed once is not asked for again by every run."""
    try:
        if net == "inception":
            return InceptionFeatures(load_published(INCEPTION_URL))
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
    assert isinstance(found, lpips.LPIPS), "the name of another net is refused where it is built"
    return found


def get_features(name: str) -> Features:
    """The net of a Frechet distance, fetched once a process.

    Args:
        name: "FD-VGG16" or "FID".

    Raises:
        NotAvailableError: If its weights cannot be had; says what was tried.
    """
    if name == VggFeatures.name:
        return VggFeatures(get_net("vgg"))
    found = _try_net("inception")
    if isinstance(found, str):
        raise NotAvailableError(found)
    assert isinstance(found, InceptionFeatures), "this name stands for no other net"
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


def add_perceptual(
    found: Evaluation,
    model: VQVAE,
    *,
    images: ImageSet,
    training_images: ImageSet,
    counts: Counts,
    device: torch.device | str = "cpu",
) -> Evaluation:
    """An evaluation with the measures of `measure_perceptual` in it.

    Warns:
        UserWarning: Of measures that cannot be had, once a reason.
    """
    seen = measure_perceptual(
        model, images, counts=counts, training_images=training_images, device=device
    )
    for reason in dict.fromkeys(seen.missing.values()):
        names = [name for name, each in seen.missing.items() if each == reason]
        warnings.warn(f"not available: {', '.join(names)}: {reason}", stacklevel=2)
    return Evaluation(
        {**found.measures, **seen.measures},
        found.counts,
        conditions={**found.conditions, **seen.conditions},
        missing={**found.missing, **seen.missing},
    )


def measure_perceptual(
    model: VQVAE,
    images: ImageSet,
    *,
    counts: Counts,
    training_images: ImageSet | None = None,
    device: torch.device | str = "cpu",
) -> Perceived:
    """What image nets say of a model's hard and soft reconstructions.

    LPIPS and the distances FD-VGG16 and rFID hold reconstructions against their own inputs; FID
    holds them against as many training pictures.

    Args:
        model: Unwrapped; put in eval mode for the time.
        images: The set, at best one that training never saw.
        counts: How many of it each net looks at.
        training_images: The reference of FID; without it there is none.
        device: Where the model is.

    Returns:
        The `PERCEPTUAL` measures.
    """
    found = Perceived()
    training = model.training
    model.eval()
    for mode in ("hard", "soft") if has_soft_measures(model.quantizer) else ("hard",):
        work = _Work(model, images, mode, torch.device(device))
        for net in NETS if counts.lpips else ():
            _measure_lpips(found, work, net=net, count=counts.lpips)
        if counts.frechet:
            _measure_frechet(found, work, name="FD-VGG16", count=counts.frechet)
        if counts.fid:
            _measure_frechet(found, work, name="FID", count=counts.fid, training=training_images)
    model.train(training)
    return found


@dataclass(frozen=True)
class _Work:
    """Reconstructions of one kind: which model's, of which images, hard or soft."""

    model: VQVAE
    images: ImageSet
    mode: str
    device: torch.device

    @torch.no_grad()
    def reconstructions(self, count: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of the first pictures and of what the model makes of them."""
        for inputs in _batches(self.images, count, self.device):
            with quantize_mode(self.model, "soft") if self.mode == "soft" else nullcontext():
                made = self.model(inputs).reconstruction.float()
            yield inputs, made

    def note(self, conditions: Conditions, **more: object) -> dict[str, Any]:
        return conditions._asdict() | {"crop": self.images.crop} | more


def _batches(images: ImageSet, count: int, device: torch.device) -> Iterator[Tensor]:
    for rows in split_rows(images, count=count):
        yield to_model_range(images.batch(rows)).to(device)


def _measure_lpips(found: Perceived, work: _Work, *, net: str, count: int) -> None:
    key = f"lpips_{net}_{work.mode}"
    try:
        measure = Lpips(get_net(net), net=net)
        for inputs, made in work.reconstructions(count):
            measure.update(inputs, made)
    except (NotAvailableError, ValueError) as reason:
        found.missing[key] = str(reason)
        return
    report = measure.compute()
    found.measures[key] = report.mean_over_images
    found.conditions[key] = work.note(report.conditions)


def _measure_frechet(
    found: Perceived, work: _Work, *, name: str, count: int, training: ImageSet | None = None
) -> None:
    """A distance between inputs and reconstructions; of FID's net also one from training images."""
    own, other = ("rfid", "fid") if name == "FID" else ("fd_vgg16", None)
    keys = [f"{each}_{work.mode}" for each in (own, other) if each is not None]
    try:
        dim = FEATURES[name].dim
        if (there := min(count, len(work.images))) <= dim:
            raise ValueError(f"{there} pictures are too few for {dim} features; more are needed")
        features = get_features(name)
        known = _REFERENCES.setdefault(work.images, {}).get((name, count))
        measure = FrechetDistance(features, reference=known)
        for inputs, made in work.reconstructions(count):
            if known is None:
                measure.update(inputs, side="reference")
            measure.update(made, side="made")
    except (NotAvailableError, ValueError) as reason:
        found.missing |= dict.fromkeys(keys, str(reason))
        return
    _REFERENCES[work.images][name, count] = measure.reference
    report = measure.compute()
    found.measures[f"{own}_{work.mode}"] = report.distance
    found.conditions[f"{own}_{work.mode}"] = work.note(report.conditions, against="their inputs")
    if other is None or training is None:
        return
    _measure_against(found, measure, work, training, key=f"{other}_{work.mode}", count=count)


def _measure_against(
    found: Perceived,
    measure: FrechetDistance,
    work: _Work,
    training: ImageSet,
    *,
    key: str,
    count: int,
) -> None:
    """The distance of pictures that are measured already from those that training saw."""
    held = _REFERENCES.setdefault(training, {})
    place = (measure.features.name, count)
    try:
        if place not in held:
            seen = FrechetDistance(measure.features)
            for inputs in _batches(training, count, work.device):
                seen.update(inputs, side="reference")
            held[place] = seen.reference
        report = measure.compute(against=held[place])
    except ValueError as reason:  # too few of them
        found.missing[key] = str(reason)
        return
    found.measures[key] = report.distance
    against = f"{report.references} training pictures"
    found.conditions[key] = work.note(report.conditions, against=against)
