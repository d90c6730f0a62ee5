"""Measures of a model on a set of images: hard codes first, the soft figures beside them."""

import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from softvq import CodebookWarning, SoftVQ, quantize_mode
from softvq.data import ImageSet, from_model_range, to_model_range
from softvq.functional.assign import soft_assign_and_use
from softvq.functional.decompose import decompose
from softvq.measures import (
    CodebookUse,
    Conditions,
    DistinctCodes,
    MsSsim,
    Psnr,
    PsnrReport,
    Ssim,
    UseReport,
    rate_point,
)
from softvq.measures.similarity import SMALLEST, WINDOW
from softvq.models import VQVAE
from softvq.nn.layout import from_rows, to_rows
from train.indices import codes_per_index, first_codebook, split_indices

EVAL_BATCH = 250
"""Pictures at once, of 32 x 32; of larger ones so many fewer that the pixels stay the same."""
MOST_GAP = 0.1
PERCEPTUAL = tuple(
    f"{name}_{mode}"
    for name in ("lpips_alex", "lpips_vgg", "fd_vgg16", "rfid", "fid")
    for mode in ("hard", "soft")
)
"""Measures that image nets make, at the end of a run alone (`train.perceptual`)."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Evaluation(NamedTuple):
    """What a model does on a set of images.

    Attributes:
        measures: By name; None where a method has no such thing, or it could not be taken.
        counts: Hard tokens of each code.
        conditions: By measure, what it was taken under: the fields of
            `softvq.measures.Conditions`, or the numbers of images and tokens.
        missing: By measure, why it could not be taken.
    """

    measures: Mapping[str, float | None]
    counts: Tensor
    conditions: Mapping[str, Mapping[str, Any]] = _NOTHING
    missing: Mapping[str, str] = _NOTHING


class Pictures(NamedTuple):
    """uint8 pictures (P, C, H, W): inputs, hard reconstructions, soft ones where there are any."""

    inputs: UInt8[Tensor, "p c h w"]
    hard: UInt8[Tensor, "p c h w"]
    soft: UInt8[Tensor, "p c h w"] | None


@torch.no_grad()
def evaluate(model: VQVAE, images: ImageSet, *, device: torch.device | str = "cpu") -> Evaluation:
    """Measure a model on every image of a set.

    Args:
        model: Unwrapped; put in eval mode for the time.
        images: The set, at best one that training never saw.
        device: Where the model is.

    Returns:
        ``psnr_hard``, ``psnr_soft`` (mean over images, dB, clamped to the range),
        ``psnr_hard_of_mean``, ``psnr_soft_of_mean``, ``not_finite_hard``, ``not_finite_soft``
        (images whose reconstruction is no number), ``ssim_hard``, ``ssim_soft``,
        ``ms_ssim_hard``, ``ms_ssim_soft``, ``use_hard``, ``perplexity_hard``, ``use_soft``,
        ``perplexity_soft``, ``distinct_codes``, ``entropy`` (nats), ``spread_share`` (V / L_q),
        ``temperature``, ``temperature_ratio``, ``bits_per_token`` (log2 K),
        ``entropy_bits_hard`` (bits a token at the frequencies of the codes), ``bits_per_pixel``,
        ``entropy_bits_per_pixel``; and the `PERCEPTUAL` ones, None here. Where a vector has several
        indices, use and perplexity are those of the worst, and each has its own beside it:
        ``use_hard_stage0``, ``perplexity_hard_stage0``; bits are sums; distinct codes and counts
        are those of the first. The measures of a soft assignment are made for `SoftVQ` alone.
    """
    training = model.training
    model.eval()
    tracker = _Tracker(model)
    for rows in split_rows(images, count=len(images)):
        tracker.update(to_model_range(images.batch(rows)).to(device))
    model.train(training)
    return tracker.compute(images)


def split_rows(images: ImageSet, *, count: int) -> list[Tensor]:
    """Indices of the first images of a set, in batches of about as many pixels each.

    Args:
        images: The set.
        count: How many of it, at most all.

    Example:
        >>> from softvq.data import TensorImages
        >>> images = TensorImages(torch.zeros(5, 1, 256, 256, dtype=torch.uint8), name="black")
        >>> [rows.tolist() for rows in split_rows(images, count=5)]
        [[0, 1, 2], [3, 4]]
    """
    height, width = images.size
    most = max(1, EVAL_BATCH * 32 * 32 // (height * width))
    return list(torch.arange(min(count, len(images))).split(most))


def has_soft_measures(quantizer: nn.Module) -> bool:
    """Whether the soft figures are made: for one codebook with a soft assignment.

    Example:
        >>> from softvq import HardVQ
        >>> has_soft_measures(HardVQ(8, 4))
        False
    """
    return isinstance(quantizer, SoftVQ)


class _Quality:
    """PSNR and, of pictures that hold their window, SSIM at one scale and at five."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.psnr, self.ssim, self.ms_ssim = Psnr(), Ssim(), MsSsim()

    def update(self, images: Tensor, reconstructions: Tensor) -> None:
        self.psnr.update(images, reconstructions)
        for measure, least in ((self.ssim, WINDOW), (self.ms_ssim, SMALLEST)):
            if min(images.shape[-2:]) >= least:
                measure.update(images, reconstructions)

    def compute(self) -> tuple[dict[str, float | None], dict[str, Conditions], dict[str, str]]:
        """Measures, conditions and reasons; without any picture all are None."""
        found = self.psnr.compute()
        measures: dict[str, float | None] = {
            f"psnr_{self.mode}": found.mean_over_images,
            f"psnr_{self.mode}_of_mean": found.of_mean,
            f"not_finite_{self.mode}": float(found.not_finite),
        }
        conditions = dict.fromkeys(measures, found.conditions)
        missing = {}
        for name, measure, least in (
            ("ssim", self.ssim, WINDOW),
            ("ms_ssim", self.ms_ssim, SMALLEST),
        ):
            seen = measure.compute()
            key = f"{name}_{self.mode}"
            measures[key] = seen.mean_over_images if seen.images else None
            if seen.images:
                conditions[key] = seen.conditions
            else:
                missing[key] = f"it wants sides of at least {least} pixels"
        if found.images:
            return measures, conditions, missing
        return dict.fromkeys(measures), {}, {}


class _Tracker:
    """Sums over batches of what `evaluate` reports."""

    def __init__(self, model: VQVAE) -> None:
        self.model = model
        quantizer: Any = model.quantizer
        self.quantizer = quantizer
        self.has_soft = has_soft_measures(quantizer)
        self.uses = [CodebookUse(num) for num in codes_per_index(quantizer)]
        self.hard, self.soft = _Quality("hard"), _Quality("soft")
        self.distinct = DistinctCodes(model.config.dim)
        self.rows = 0
        self.entropy = self.spread = self.distortion = 0.0

    def update(self, images: Tensor) -> None:
        latents = self.model.latents(images)
        out = self.quantizer(latents)
        height, width = images.shape[-2:]
        decode = self.model.decoder
        self.hard.update(images, decode(out.quantized)[..., :height, :width].float())
        weights = None
        rows = to_rows(latents, layout="channels_first")
        self.distinct.update(rows)
        if self.has_soft:
            mean, weights = self._soft(latents)
            self.soft.update(images, decode(mean)[..., :height, :width].float())
        for use, indices in zip(self.uses, split_indices(out.indices), strict=True):
            use.update(indices, weights)
        self.rows += len(rows)

    def _soft(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        rows = to_rows(latents, layout="channels_first")
        codes, weights = soft_assign_and_use(
            rows, self.quantizer.codebook, temperature=self.quantizer.temperature
        )
        split = decompose(rows, codes)
        self.entropy += codes.entropy.double().sum().item()
        self.spread += split.spread.double().sum().item()
        self.distortion += split.distortion.double().sum().item()
        mean = from_rows(codes.mean.to(latents.dtype), like=latents, layout="channels_first")
        return mean, weights

    def compute(self, images: ImageSet) -> Evaluation:
        uses = [use.compute() for use in self.uses]
        use = _join_uses(uses)
        measures, conditions, missing = self.hard.compute()
        soft, soft_conditions, soft_missing = self.soft.compute()
        tokens = self._codes(use)
        if len(uses) > 1:
            for i, each in enumerate(uses):
                tokens[f"use_hard_stage{i}"] = each.use_hard
                tokens[f"perplexity_hard_stage{i}"] = each.perplexity_hard
        tokens |= self._rate(use, self.hard.psnr.compute(), images)
        tokens |= self._weights()
        taken = {
            name: each._asdict() | {"crop": images.crop}
            for name, each in (conditions | soft_conditions).items()
        }
        counted = {"images": len(images), "tokens": self.rows}
        taken |= {name: counted for name, value in tokens.items() if value is not None}
        return Evaluation(
            measures | soft | tokens | dict.fromkeys(PERCEPTUAL),
            use.counts,
            conditions=taken,
            missing=missing | soft_missing,
        )

    def _codes(self, use: UseReport) -> dict[str, float | None]:
        return {
            "use_hard": use.use_hard,
            "perplexity_hard": use.perplexity_hard,
            "use_soft": use.use_soft,
            "perplexity_soft": use.perplexity_soft,
            "distinct_codes": float(self.distinct.compute(first_codebook(self.quantizer))),
            "bits_per_token": use.bits_per_token,
            "entropy_bits_hard": use.entropy_bits_hard,
        }

    def _rate(
        self, use: UseReport, quality: PsnrReport, images: ImageSet
    ) -> dict[str, float | None]:
        height, width = images.size
        tokens = max(self.rows // max(len(images), 1), 1)
        point = rate_point(use, quality, tokens_per_image=tokens, pixels_per_image=height * width)
        return {
            "bits_per_pixel": point.bits_per_pixel,
            "entropy_bits_per_pixel": point.entropy_bits_per_pixel,
        }

    def _weights(self) -> dict[str, float | None]:
        """Measures of the soft weights, None without any."""
        names = ("entropy", "spread_share", "temperature", "temperature_ratio")
        if not self.has_soft:
            return dict.fromkeys(names)
        temperature = self.quantizer.temperature
        ratio = temperature / self.quantizer.schedule.critical  # may be 0, which floats refuse
        return {
            "entropy": self.entropy / max(self.rows, 1),
            "spread_share": self.spread / max(self.distortion, 1e-30),
            "temperature": temperature.item(),
            "temperature_ratio": ratio.item(),
        }


def _join_uses(uses: list[UseReport]) -> UseReport:
    """The report of the first index, with the use of the worst and the bits of all."""
    return uses[0]._replace(
        use_hard=min(use.use_hard for use in uses),
        perplexity_hard=min(use.perplexity_hard for use in uses),
        bits_per_token=sum(use.bits_per_token for use in uses),
        entropy_bits_hard=sum(use.entropy_bits_hard for use in uses),
    )


def warn_of_gap(model: VQVAE, evaluation: Evaluation) -> None:
    """Warn where training decoded soft means and hard codes, which ship, decode them worse.

    Args:
        model: Unwrapped.
        evaluation: Of the end of a run: while T falls, a gap is no fault.
    """
    soft, hard = (evaluation.measures[name] for name in ("psnr_soft", "psnr_hard"))
    if soft is None or hard is None or getattr(model.quantizer, "forward_value", "") != "soft":
        return
    if soft - hard > MOST_GAP:
        warnings.warn(
            f"Hard codes decode {soft - hard:.2f} dB worse than the soft means that the decoder "
            "was trained on, because the temperature ended too high: end lower by "
            "Temperature(gradient=(start, end)), or train with forward_value='hard'.",
            CodebookWarning,
            stacklevel=2,
        )


@torch.no_grad()
def reconstruct(model: VQVAE, images: Float[Tensor, "p c h w"]) -> Pictures:
    """Pictures of a model's work, for grids and reports.

    Args:
        model: Unwrapped; put in eval mode for the time.
        images: In [-1, 1].

    Returns:
        uint8 pictures on the CPU; grey where a model that has diverged gives no number.
    """
    training = model.training
    model.eval()
    hard = _to_bytes(model(images).reconstruction)
    soft = None
    if has_soft_measures(model.quantizer):
        with quantize_mode(model, "soft"):
            soft = _to_bytes(model(images).reconstruction)
    model.train(training)
    return Pictures(from_model_range(images.cpu()), hard, soft)


def _to_bytes(reconstruction: Tensor) -> Tensor:
    return from_model_range(reconstruction.float().cpu().nan_to_num(nan=0.0))
