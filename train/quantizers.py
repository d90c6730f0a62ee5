"""How a run's quantizer is made of its setting and of options, for each kind in the comparison."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from softvq import HardVQ, Revival, SoftVQ, Temperature
from softvq.nn import Learning, Loss, ResidualVQ, Scaled

STAGES = 4  # of the residual methods
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


Build = Callable[[Setting, Options], nn.Module]


def build_softvq(setting: Setting, options: Options, **fixed: object) -> SoftVQ:
    """A SoftVQ for (B, D, h, w), of options that lie side by side as a config has them.

    Args:
        setting: Of the run.
        options: Of `SoftVQ`, `Temperature`, `Revival` and `Loss`, but for paths, which are two
            numbers such as ``noise_start`` and ``noise_end``. ``one_temperature=True`` gives the
            prototypes none of their own, ``revive=False`` revives nothing.
        fixed: The same, of the method; ``options`` go before them.
    """
    parts: Options = {"layout": "channels_first", "seed": setting.seed, **fixed, **options}
    temperature = {
        name: parts.pop(name)
        for name in ("gradient", "anneal_share", "warmup_share", "unit")
        if name in parts
    }
    noise, prototypes = _pop_path(parts, "noise"), _pop_path(parts, "prototypes")
    one, revive = parts.pop("one_temperature", False), parts.pop("revive", True)
    revival = {name: parts.pop(name) for name in ("threshold", "until", "noise") if name in parts}
    loss_names = ("weight", "beta", "use_entropy", "orthogonality", "assignment_grad")
    loss = {name: parts.pop(name) for name in loss_names if name in parts}
    if "loss_unit" in parts:
        loss["unit"] = parts.pop("loss_unit")
    return SoftVQ(
        setting.num_codes,
        setting.dim,
        temperature=Temperature(
            prototypes=None if one else prototypes,
            noise=noise,
            anneal_steps=setting.steps,
            **temperature,
        ),
        revival=Revival(**revival) if revive else None,
        loss=Loss(**loss),
        **parts,
    )


def _pop_path(parts: Options, name: str) -> tuple[float, float]:
    """Start and end of a path, those of `Temperature` where the options have none."""
    start, end = getattr(Temperature(), name)
    return parts.pop(f"{name}_start", start), parts.pop(f"{name}_end", end)


def build_residual(setting: Setting, options: Options) -> nn.Module:
    """A `ResidualVQ` of scaled SoftVQ, each of the same options."""
    stages = [
        Scaled(
            build_softvq(
                setting, options, layout="channels_last", seed=STAGES * setting.seed + stage
            )
        )
        for stage in range(STAGES)
    ]
    return ResidualVQ(stages, layout="channels_first", seed=setting.seed)


def hard(**fixed: object) -> Build:
    """How a `HardVQ` of these options is built, those of `Learning` and `Revival` among them."""

    def build(setting: Setting, options: Options) -> nn.Module:
        parts = {**fixed, **options}
        learning = {key: parts.pop(key) for key in ("commitment", "decay", "start") if key in parts}
        parts["learning"] = Learning(**learning)
        if "threshold" in parts:
            parts["revival"] = Revival(threshold=parts.pop("threshold"))
        return HardVQ(
            setting.num_codes, setting.dim, layout="channels_first", seed=setting.seed, **parts
        )

    return build


def peer(make: Callable[..., nn.Module]) -> Build:
    """How a quantizer of `train.peers` is built, which is told the rows of a batch."""

    def build(setting: Setting, options: Options) -> nn.Module:
        return make(num_codes=setting.num_codes, dim=setting.dim, rows=setting.rows, **options)

    return build


def rival(make: Callable[..., nn.Module]) -> Build:
    """How a quantizer of `train.rivals` is built, which is told the steps of the run."""

    def build(setting: Setting, options: Options) -> nn.Module:
        return make(setting.num_codes, setting.dim, steps=setting.steps, **options)

    return build
