"""The quantizers of the comparison, by name: how each is built, and the rate it was tuned to."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from softvq import HardVQ, Revival, SoftVQ, Temperature
from softvq.checks import choose
from softvq.nn.soft import Loss
from train import peers

Options = dict[str, Any]  # checked by the quantizer that gets them


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a run tells every method.

    Attributes:
        num_codes: K.
        dim: D.
        steps: Optimizer steps of the run.
        rows: Vectors a batch, over all processes.
        seed: Of the run.
    """

    num_codes: int
    dim: int
    steps: int
    rows: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Method:
    """A quantizer in the comparison.

    Attributes:
        label: For tables.
        how: One line on how it is set.
        lr: The rate it was tuned to on the quick preset.
        build: Makes the quantizer for (B, D, h, w).
        codebook_lr: The codes' rate, as `softvq.attach` takes it.
    """

    label: str
    how: str
    lr: float
    build: Callable[[Setting, Options], nn.Module]
    codebook_lr: float | str = "1x"


def _softvq(setting: Setting, options: Options, **fixed: object) -> nn.Module:
    parts = {**fixed, **options}
    temperature = {
        name: parts.pop(name)
        for name in ("gradient", "anneal_share", "warmup_share", "unit")
        if name in parts
    }
    noise = parts.pop("noise_start", 6.0), parts.pop("noise_end", 0.5)
    start, end = parts.pop("prototypes_start", 0.3), parts.pop("prototypes_end", 0.1)
    loss = {name: parts.pop(name) for name in ("weight", "beta", "use_entropy") if name in parts}
    revival = {name: parts.pop(name) for name in ("threshold", "until", "noise") if name in parts}
    return SoftVQ(
        setting.num_codes,
        setting.dim,
        temperature=Temperature(
            prototypes=(start, end), noise=noise, anneal_steps=setting.steps, **temperature
        ),
        revival=Revival(**revival),
        loss=Loss(**loss),
        layout="channels_first",
        seed=setting.seed,
        **parts,
    )


def _hard(**fixed: object) -> Callable[[Setting, Options], nn.Module]:
    def build(setting: Setting, options: Options) -> nn.Module:
        parts = {**fixed, **options}
        if "threshold" in parts:
            parts["revival"] = Revival(threshold=parts.pop("threshold"))
        return HardVQ(
            setting.num_codes, setting.dim, layout="channels_first", seed=setting.seed, **parts
        )

    return build


def _peer(make: Callable[..., nn.Module]) -> Callable[[Setting, Options], nn.Module]:
    def build(setting: Setting, options: Options) -> nn.Module:
        return make(num_codes=setting.num_codes, dim=setting.dim, rows=setting.rows, **options)

    return build


METHODS: dict[str, Method] = {
    "softvq": Method(
        label="SoftVQ",
        how="SoftVQ with its defaults: rows pass as they are for a tenth of the run, then the code "
        "is seen through noise that fades; codes at 10x the rate",
        lr=4e-3,
        codebook_lr="10x",
        build=_softvq,
    ),
    "softvq-hard": Method(
        label="SoftVQ, hard forward",
        how="SoftVQ(forward_value='hard', temperature=Temperature(warmup_share=0)): the code with "
        "the exact gradient of the soft mean, from the first step; codes at 20x the rate",
        lr=4e-3,
        codebook_lr="20x",
        build=partial(_softvq, forward_value="hard", warmup_share=0.0),
    ),
    "ste": Method(
        label="VQ, straight-through",
        how="HardVQ(estimator='ste', codebook='gradient'), uniform start, no reset: the plain VQ "
        "that papers take as baseline",
        lr=4e-3,
        build=_hard(codebook="gradient", start="uniform", revival=None),
    ),
    "ema": Method(
        label="VQ, EMA (ours)",
        how="HardVQ(codebook='ema', decay=0.8, commitment=0.25), k-means start, reset under 0.2 of "
        "the mean hits",
        lr=4e-3,
        build=_hard(decay=0.8),
    ),
    "rotation": Method(
        label="VQ, rotation (ours)",
        how="HardVQ(estimator='rotation', codebook='ema', decay=0.8, commitment=0.05), k-means "
        "start, reset",
        lr=4e-3,
        build=_hard(estimator="rotation", decay=0.8, commitment=0.05),
    ),
    "lucid-ema": Method(
        label="vector-quantize-pytorch, EMA",
        how="VectorQuantize, k-means, commitment 0.25, dead-code threshold 0.25 of the mean hits, "
        "rotation trick off",
        lr=4e-3,
        build=_peer(peers.lucid_ema),
    ),
    "lucid-rotation": Method(
        label="vector-quantize-pytorch, rotation",
        how="VectorQuantize, k-means, commitment 0.05, dead-code threshold 0.25 of the mean hits, "
        "rotation trick on",
        lr=4e-3,
        build=_peer(peers.lucid_rotation),
    ),
    "lucid-simvq": Method(
        label="vector-quantize-pytorch, SimVQ",
        how="SimVQ as published",
        lr=2e-3,
        build=_peer(peers.lucid_simvq),
    ),
    "lucid-fsq": Method(
        label="vector-quantize-pytorch, FSQ",
        how="FSQ, levels [8, 8, 8] at K = 512",
        lr=4e-3,
        build=_peer(peers.lucid_fsq),
    ),
    "lucid-diveq": Method(
        label="vector-quantize-pytorch, DiVeQ",
        how="VectorQuantize with directional_reparam, learned codebook, k-means, dead-code "
        "threshold 0.25 of the mean hits",
        lr=4e-3,
        build=_peer(peers.lucid_diveq),
    ),
}


def get_method(name: str) -> Method:
    """A method by name.

    Raises:
        ValueError: For an unknown name; lists the valid ones.

    Example:
        >>> get_method("softvq").label
        'SoftVQ'
    """
    return METHODS[choose("method", name, METHODS)]
