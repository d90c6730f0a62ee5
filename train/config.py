"""What a run is: frozen, checked, written beside its results."""

from dataclasses import asdict, field
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from softvq.checks import check_count, check_number
from softvq.models import VQVAEConfig
from train.values import read_config

STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DataConfig:
    """Images to train and test on.

    Attributes:
        source: "cifar10", "folder" (with ``path``), or "textures" (drawn, not photographs).
        path: The folder.
        size: Side of the images, for folder and textures.
        channels: 1 or 3.
        num_train: Use the first so many; None uses all.
        num_test: The same for the test set.
        held_out: Measure on the last so many training images instead, a fifth of them at most, and
            train on the others: for choosing, which the test set is not for. The test set is not
            read then, whatever num_test says; 0 takes it.
        num_lpips: At the end, measure LPIPS on the first so many test images; 0 does not.
        num_frechet: The same for FD-VGG16, which wants more than 512.
        num_fid: The same for FID and rFID, which want more than 2,048.
    """

    source: Literal["cifar10", "folder", "textures"] = "cifar10"
    path: Path | None = None
    size: int = 32
    channels: int = 3
    num_train: int | None = None
    num_test: int | None = None
    held_out: int = 0
    num_lpips: int = 0
    num_frechet: int = 0
    num_fid: int = 0

    def __post_init__(self) -> None:
        check_count("data.size", self.size, least=4)
        for name in ("num_train", "num_test"):
            if getattr(self, name) is not None:
                check_count(f"data.{name}", getattr(self, name))
        for name in ("held_out", "num_lpips", "num_frechet", "num_fid"):
            check_count(f"data.{name}", getattr(self, name), least=0)
        if (self.source == "folder") != (self.path is not None):
            raise ValueError(
                f"data.source is {self.source!r} and data.path is {self.path}: "
                "give a path with source=folder, and only there."
            )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class NetConfig:
    """Sizes of the VQ-VAE and of its codebook (`softvq.models.VQVAEConfig`)."""

    hidden: int = 128
    residual_hidden: int = 32
    blocks: int = 2
    dim: int = 64
    downsampling: int = 4
    num_codes: int = 512

    def __post_init__(self) -> None:
        check_count("net.num_codes", self.num_codes)
        self.vqvae(channels=3)

    def vqvae(self, *, channels: int) -> VQVAEConfig:
        """Sizes of the net alone."""
        sizes = asdict(self)
        del sizes["num_codes"]
        return VQVAEConfig(channels=channels, **sizes)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class MethodConfig:
    """Which quantizer, and what its registry entry is not told by the rest of the run.

    Attributes:
        name: A key of `train.methods.METHODS`.
        lr: Learning rate; None takes the one that the method was tuned to.
        codebook_lr: Of the codes, as `softvq.attach` takes it; None takes the method's.
        options: Arguments of the quantizer that differ from the method's own.
    """

    name: str = "softvq"
    lr: float | None = None
    codebook_lr: float | str | None = None
    options: dict[str, float | int | str | bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.lr is not None:
            check_number("method.lr", self.lr, above=0)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OptimConfig:
    """Budget, rate and what is minimised beside the quantizer's own loss.

    Adam; the rate climbs over ``warmup_steps``, stays, and falls as a cosine to 0 over the run's
    last part.

    Attributes:
        steps: Optimizer steps.
        batch_size: Images a step, over all processes.
        warmup_steps: Steps of the climb.
        decay_from: Share of the run at which the fall begins.
        beta1: Adam's memory of the gradient.
        beta2: Adam's memory of its square.
        loss: "mse" (mean squared error on [-1, 1]), or "mse+lpips".
        lpips_weight: Factor on LPIPS.
        lpips_net: Its net: "vgg", as tokenizers are trained, or "alex", a fraction of the time.
    """

    steps: int = 400
    batch_size: int = 64
    warmup_steps: int = 20
    decay_from: float = 0.6
    beta1: float = 0.9
    beta2: float = 0.99
    loss: Literal["mse", "mse+lpips"] = "mse"
    lpips_weight: float = 1.0
    lpips_net: Literal["alex", "vgg"] = "vgg"

    def __post_init__(self) -> None:
        check_count("optim.steps", self.steps)
        check_count("optim.batch_size", self.batch_size)
        check_count("optim.warmup_steps", self.warmup_steps, least=0)
        check_number("optim.decay_from", self.decay_from, least=0, most=1)
        check_number("optim.beta1", self.beta1, least=0, most=0.9999)
        check_number("optim.beta2", self.beta2, least=0, most=0.999999)
        check_number("optim.lpips_weight", self.lpips_weight, above=0)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RunConfig:
    """One training run.

    Attributes:
        preset: Name of the preset that it was made from.
        data: Images.
        net: Sizes.
        method: Quantizer.
        optim: Budget.
        seed: Of the net's start, the data order and the quantizer.
        eval_at: Shares of the run at which the test set is measured.
        log_every: Steps between scalars.
        checkpoint_every: Steps between checkpoints.
        precision: "no" (float32), "bf16", or "auto": bf16 on a GPU, float32 elsewhere.
    """

    preset: str
    data: DataConfig = DataConfig()
    net: NetConfig = NetConfig()
    method: MethodConfig = MethodConfig()
    optim: OptimConfig = OptimConfig()
    seed: int = 0
    eval_at: tuple[float, ...] = (0.0, 0.125, 0.25, 0.5, 1.0)
    log_every: int = 10
    checkpoint_every: int = 500
    precision: Literal["auto", "no", "bf16"] = "auto"

    def __post_init__(self) -> None:
        check_count("seed", self.seed, least=0)
        check_count("log_every", self.log_every)
        check_count("checkpoint_every", self.checkpoint_every)
        for share in self.eval_at:
            check_number("eval_at", share, least=0, most=1)
        if not self.eval_at or self.eval_at[-1] != 1.0:
            raise ValueError(f"eval_at must end at 1.0, the whole run; got {self.eval_at}.")

    def eval_steps(self) -> list[int]:
        """Steps after which the test set is measured, in order, each once."""
        return sorted({round(share * self.optim.steps) for share in self.eval_at})


def from_json(values: dict[str, Any]) -> RunConfig:
    """The config of a run, of plain values; see `read_config`.

    Example:
        >>> from train.values import to_json
        >>> from_json(to_json(RunConfig(preset="quick"))).preset
        'quick'
    """
    return read_config(values, RunConfig)
