"""The quantizers of the comparison, by name: how each is set, and the rate it was tuned to."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from softvq.checks import choose
from softvq.nn import Loss
from train import peers, rivals
from train.quantizers import (
    STAGES,
    Build,
    Options,
    build_residual,
    build_softvq,
    hard,
    peer,
    rival,
)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What tuning found best at one size of the codebook.

    Attributes:
        lr: Learning rate.
        options: Of the quantizer, in place of the method's own.
    """

    lr: float
    options: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Method:
    """A quantizer in the comparison.

    Attributes:
        label: For tables.
        how: One line on how it is set.
        lr: The rate it was tuned to on the quick preset.
        build: Makes the quantizer for (B, D, h, w).
        codebook_lr: The codes' rate, as `softvq.attach` takes it.
        tuned: Options that `python -m eval tune` tries beside the rate, the method's own value
            first.
        sizes: What tuning found at other sizes of the codebook, by K and D.
    """

    label: str
    how: str
    lr: float
    build: Build
    codebook_lr: float | str = "1x"
    tuned: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    sizes: Mapping[tuple[int, int], Tuned] = field(default_factory=dict)

    def at(self, num_codes: int, dim: int) -> "Method":
        """The method as it is tuned at K codes of D features: itself where nothing else was found.

        Example:
            >>> METHODS["ema"].at(8192, 8).how[-47:]
            'K = 8192, D = 8: commitment=0.05, threshold=0.1'
        """
        if (num_codes, dim) not in self.sizes:
            return self
        found = self.sizes[num_codes, dim]
        values = ", ".join(f"{name}={value:g}" for name, value in found.options.items())
        return replace(
            self,
            lr=found.lr,
            how=f"{self.how}; tuned at K = {num_codes}, D = {dim}: {values}",
            build=lambda setting, options: self.build(setting, {**found.options, **options}),
            tuned={
                name: (value, *(each for each in self.tuned[name] if each != value))
                for name, value in found.options.items()
            },
            sizes={},
        )


SOFTVQ_LR, LITERAL_LR = 4e-3, 1e-3

# DDCL as its papers have it (arXiv 2604.01740): one temperature on a fixed scale, the soft mean
# decoded, the loss differentiated through the weights, nothing revived, codes at 10x the rate.
LITERAL: Options = {
    "gradient": (0.5, 0.02),
    "unit": "variance",
    "one_temperature": True,
    "forward_value": "soft",
    "assignment_grad": "full",
    "use_entropy": 0.0,
    "revive": False,
    "warmup_share": 0.0,
    "loss_unit": "absolute",
    "weight": 0.25,
}
_TWO: Options = {"gradient": 2.5, "one_temperature": False, "forward_value": "hard"}
ADDITIONS: dict[str, tuple[str, Options]] = {
    "ddcl-literal": ("DDCL as written", {}),
    "ddcl-entropy": ("+ target entropy 1.0 to 0.1 nat", {"gradient": (1.0, 0.1), "unit": "nats"}),
    "ddcl-revival": ("+ revival", {"revive": True}),
    "ddcl-energy": ("+ free energy", {"assignment_grad": "fixed"}),
    "ddcl-usage": ("+ usage entropy", {"use_entropy": Loss().use_entropy}),
    "ddcl-two": ("+ two temperatures, hard code forward", _TWO),
    "ddcl-rate": ("+ codes at 20x the rate", {}),
    "ddcl-blurred": ("+ code seen through noise, codes at 10x", {"forward_value": "blurred"}),
    "ddcl-one": ("+ the lower temperature alone", {"gradient": None}),
    "ddcl-unit": ("+ loss in units of the variance", {"loss_unit": "variance", "weight": 0.04}),
}
"""What each step of the ablation adds to the one before; `softvq` adds the warm-up."""


def _ddcl() -> dict[str, Method]:
    """The ablation's steps, each with all additions up to its own."""
    found: dict[str, Method] = {}
    parts = LITERAL
    for name, (label, added) in ADDITIONS.items():
        parts = {**parts, **added}
        codes = "20x" if name == "ddcl-rate" else "10x"
        how = ", ".join(f"{key}={value}" for key, value in parts.items())
        weight = float(parts["weight"])
        found[name] = Method(
            label=label,
            how=f"SoftVQ with {how}; codes at {codes} the rate",
            lr=LITERAL_LR if name == "ddcl-literal" else SOFTVQ_LR,
            codebook_lr=codes,
            build=partial(build_softvq, **parts),
            tuned={"weight": (weight, 0.4 * weight, 2.4 * weight)},
        )
    return found


COMMITMENTS = (0.25, 0.05, 1.0)
SHARES = (0.25, 0.1, 0.5)

METHODS: dict[str, Method] = {
    "softvq": Method(
        label="SoftVQ",
        how="SoftVQ with its defaults: rows pass as they are for two fifths of the run, then "
        "the code is seen through noise that fades; codes at 10x the rate",
        lr=SOFTVQ_LR,
        codebook_lr="10x",
        build=build_softvq,
        tuned={"weight": (0.04, 0.016, 0.1), "threshold": (0.2, 0.1, 0.4)},
    ),
    "softvq-hard": Method(
        label="SoftVQ, hard forward",
        how="SoftVQ(forward_value='hard', temperature=Temperature(warmup_share=0)): the code with "
        "the exact gradient of the soft mean, from the first step; codes at 20x the rate",
        lr=SOFTVQ_LR,
        codebook_lr="20x",
        build=partial(build_softvq, forward_value="hard", warmup_share=0.0),
        tuned={"weight": (0.04, 0.016, 0.1), "threshold": (0.2, 0.1, 0.4)},
    ),
    "ste": Method(
        label="VQ, straight-through",
        how="HardVQ(estimator='ste', codebook='gradient'), uniform start, no reset: the plain VQ "
        "that papers take as baseline",
        lr=4e-3,
        build=hard(codebook="gradient", start="uniform", revival=None),
        tuned={"commitment": COMMITMENTS},
    ),
    "ema": Method(
        label="VQ, EMA (ours)",
        how="HardVQ(codebook='ema'), decay 0.8, commitment 0.25, k-means start, reset under 0.2 of "
        "the mean hits",
        lr=4e-3,
        build=hard(decay=0.8),
        tuned={"commitment": COMMITMENTS, "threshold": (0.2, 0.1, 0.4)},
        sizes={
            (512, 64): Tuned(lr=2e-3, options={"commitment": 1.0, "threshold": 0.4}),
            (8192, 8): Tuned(lr=4e-3, options={"commitment": 0.05, "threshold": 0.1}),
            (16384, 8): Tuned(lr=4e-3, options={"commitment": 0.05, "threshold": 0.1}),
        },
    ),
    "rotation": Method(
        label="VQ, rotation (ours)",
        how="HardVQ(estimator='rotation', codebook='ema'), decay 0.8, commitment 1, k-means start, "
        "reset under 0.1 of the mean hits",
        lr=4e-3,
        build=hard(estimator="rotation", decay=0.8, commitment=1.0, threshold=0.1),
        tuned={"commitment": (1.0, 0.25, 0.05), "threshold": (0.1, 0.2, 0.4)},
    ),
    "lucid-ema": Method(
        label="vector-quantize-pytorch, EMA",
        how="VectorQuantize, k-means, commitment 1, dead-code threshold 0.25 of the mean hits, "
        "rotation trick off",
        lr=4e-3,
        build=peer(peers.lucid_ema),
        tuned={"commitment_weight": (1.0, 0.25, 0.05), "dead_share": SHARES},
    ),
    "lucid-rotation": Method(
        label="vector-quantize-pytorch, rotation",
        how="VectorQuantize, k-means, commitment 0.05, dead-code threshold 0.25 of the mean hits, "
        "rotation trick on",
        lr=4e-3,
        build=peer(peers.lucid_rotation),
        tuned={"commitment_weight": (0.05, 0.25, 1.0), "dead_share": SHARES},
    ),
    "lucid-simvq": Method(
        label="vector-quantize-pytorch, SimVQ",
        how="SimVQ as published",
        lr=4e-3,
        build=peer(peers.lucid_simvq),
        tuned={"input_to_quantize_commit_loss_weight": COMMITMENTS},
    ),
    "lucid-fsq": Method(
        label="vector-quantize-pytorch, FSQ",
        how="FSQ, levels [8, 8, 8] at K = 512",
        lr=4e-3,
        build=peer(peers.lucid_fsq),
    ),
    "lucid-lfq": Method(
        label="vector-quantize-pytorch, LFQ",
        how="LFQ as published: signs of log2 K projected features, entropy losses",
        lr=1e-3,
        build=peer(peers.lucid_lfq),
        tuned={"entropy_loss_weight": (0.1, 0.02, 0.5)},
    ),
    "lucid-diveq": Method(
        label="vector-quantize-pytorch, DiVeQ",
        how="VectorQuantize with directional_reparam, learned codebook, k-means, dead-code "
        "threshold 0.25 of the mean hits",
        lr=4e-3,
        build=peer(peers.lucid_diveq),
        tuned={"dead_share": SHARES},
    ),
    "lucid-cosine": Method(
        label="vector-quantize-pytorch, cosine",
        how="VectorQuantize with use_cosine_sim, k-means, commitment 1, dead-code threshold 0.25 "
        "of the mean hits, rotation trick off",
        lr=8e-3,
        build=peer(peers.lucid_cosine),
        tuned={"commitment_weight": (1.0, 0.25, 0.05), "dead_share": SHARES},
    ),
    "lucid-lowdim": Method(
        label="vector-quantize-pytorch, low-dimensional",
        how="VectorQuantize with codebook_dim=8, k-means, commitment 0.05, dead-code threshold "
        "0.25 of the mean hits, rotation trick off",
        lr=2e-3,
        build=peer(peers.lucid_lowdim),
        tuned={"commitment_weight": (0.05, 0.25, 1.0), "dead_share": SHARES},
    ),
    "gumbel": Method(
        label="Gumbel-softmax",
        how="straight-through, temperature 1 to 1/16 over the run, KL weight 5e-4",
        lr=1e-3,
        build=rival(rivals.GumbelVQ),
        tuned={"kl_weight": (5e-4, 5e-5, 5e-3), "temperature_end": (1 / 16, 0.25, 0.5)},
    ),
    "sq-vae": Method(
        label="SQ-VAE",
        how="Gaussian with one learned variance, k-means start, temperature 1 to 0.5 over the run, "
        "latent part at 3e-4; nearest code in evaluation",
        lr=4e-3,
        build=rival(partial(rivals.StochasticVQ, weight=3e-4, temperature_end=0.5)),
        tuned={"weight": (3e-4, 1e-4, 1e-3), "temperature_end": (0.5, 0.2, 1.0)},
    ),
    "ibq": Method(
        label="IBQ",
        how="index backpropagation: straight-through on the whole one-hot vector, commitment 0.25, "
        "entropy weight 0.05 at temperature 0.01",
        lr=4e-3,
        build=rival(rivals.IndexVQ),
        tuned={"commitment": COMMITMENTS, "entropy_weight": (0.05, 0.0, 0.2)},
    ),
    **_ddcl(),
    "softvq-residual": Method(
        label="SoftVQ, residual",
        how=f"ResidualVQ of {STAGES} stages, each Scaled(SoftVQ); codes at 10x the rate",
        lr=4e-3,
        codebook_lr="10x",
        build=build_residual,
    ),
    "lucid-residual": Method(
        label="vector-quantize-pytorch, residual",
        how=f"ResidualVQ of {STAGES} stages, k-means, commitment 0.25, dead-code threshold 0.25 of "
        "the mean hits, rotation trick off",
        lr=4e-3,
        build=peer(partial(peers.lucid_residual, num_stages=STAGES)),
        tuned={"commitment_weight": COMMITMENTS, "dead_share": SHARES},
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
