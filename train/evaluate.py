"""Measures of a model on a set of images: hard codes first, the soft figures beside them."""

import warnings
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from softvq import CodebookWarning, quantize_mode
from softvq.data import ImageSet, from_model_range, to_model_range
from softvq.functional.assign import soft_assign_and_use
from softvq.functional.decompose import decompose
from softvq.measures import CodebookUse, DistinctCodes, Psnr, Ssim
from softvq.measures.similarity import WINDOW
from softvq.models import VQVAE
from softvq.nn.layout import from_rows, to_rows

EVAL_BATCH = 250
MOST_GAP = 0.1
PERCEPTUAL = (
    "lpips_alex_hard",
    "lpips_alex_soft",
    "lpips_vgg_hard",
    "lpips_vgg_soft",
    "fd_vgg16_hard",
    "fd_vgg16_soft",
)
"""Measures that image nets make, at the end of a run alone (`train.perceptual`)."""


class Evaluation(NamedTuple):
    """Measures by name (None where a method has no such thing), and hard counts per code."""

    measures: dict[str, float | None]
    counts: Tensor


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
        ``psnr_hard_of_mean``, ``psnr_soft_of_mean``, ``use_hard``, ``perplexity_hard``,
        ``use_soft``, ``perplexity_soft``, ``distinct_codes``, ``entropy`` (nats),
        ``spread_share`` (V / L_q), ``temperature``, ``temperature_ratio``, ``ssim_hard``,
        ``ssim_soft``, ``bits_per_token`` (log2 K), ``entropy_bits_hard`` (bits a token at the
        frequencies of the codes); and the `PERCEPTUAL` ones, None here.
    """
    training = model.training
    model.eval()
    tracker = _Tracker(model)
    for begin in range(0, len(images), EVAL_BATCH):
        rows = torch.arange(begin, min(begin + EVAL_BATCH, len(images)))
        tracker.update(to_model_range(images.batch(rows)).to(device))
    model.train(training)
    return tracker.compute()


class _Quality:
    """PSNR and, of pictures that hold its window, SSIM."""

    def __init__(self) -> None:
        self.psnr, self.ssim = Psnr(), Ssim()

    def update(self, images: Tensor, reconstructions: Tensor) -> None:
        self.psnr.update(images, reconstructions)
        if min(images.shape[-2:]) >= WINDOW:
            self.ssim.update(images, reconstructions)

    def similarity(self) -> float | None:
        found = self.ssim.compute()
        return found.mean_over_images if found.images else None


class _Tracker:
    """Sums over batches of what `evaluate` reports."""

    def __init__(self, model: VQVAE) -> None:
        self.model = model
        quantizer: Any = model.quantizer
        self.quantizer = quantizer
        self.use = CodebookUse(quantizer.num_codes)
        self.hard, self.soft = _Quality(), _Quality()
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
        if self.quantizer.has_soft:
            mean, weights = self._soft(latents)
            self.soft.update(images, decode(mean)[..., :height, :width].float())
        self.use.update(out.indices, weights)
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

    def compute(self) -> Evaluation:
        use, hard = self.use.compute(), self.hard.psnr.compute()
        soft = self.soft.psnr.compute() if self.quantizer.has_soft else None
        measures: dict[str, float | None] = {
            "psnr_hard": hard.mean_over_images,
            "psnr_hard_of_mean": hard.of_mean,
            "psnr_soft": None if soft is None else soft.mean_over_images,
            "psnr_soft_of_mean": None if soft is None else soft.of_mean,
            "use_hard": use.use_hard,
            "perplexity_hard": use.perplexity_hard,
            "use_soft": use.use_soft,
            "perplexity_soft": use.perplexity_soft,
            "distinct_codes": float(self.distinct.compute(self.quantizer.codebook)),
            "entropy": None,
            "spread_share": None,
            "temperature": None,
            "temperature_ratio": None,
            "ssim_hard": self.hard.similarity(),
            "ssim_soft": self.soft.similarity(),
            "bits_per_token": use.bits_per_token,
            "entropy_bits_hard": use.entropy_bits_hard,
        }
        measures |= dict.fromkeys(PERCEPTUAL)
        if soft is not None:
            temperature = self.quantizer.temperature
            ratio = temperature / self.quantizer.schedule.critical  # may be 0, which floats refuse
            measures["entropy"] = self.entropy / max(self.rows, 1)
            measures["spread_share"] = self.spread / max(self.distortion, 1e-30)
            measures["temperature"] = temperature.item()
            measures["temperature_ratio"] = ratio.item()
        return Evaluation(measures, use.counts)


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
    quantizer: Any = model.quantizer
    hard = _to_bytes(model(images).reconstruction)
    soft = None
    if quantizer.has_soft:
        with quantize_mode(model, "soft"):
            soft = _to_bytes(model(images).reconstruction)
    model.train(training)
    return Pictures(from_model_range(images.cpu()), hard, soft)


def _to_bytes(reconstruction: Tensor) -> Tensor:
    return from_model_range(reconstruction.float().cpu().nan_to_num(nan=0.0))
