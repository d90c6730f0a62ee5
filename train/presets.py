"""Presets: each a function that returns a whole config."""

from collections.abc import Callable

from softvq.checks import choose
from train.config import DataConfig, MethodConfig, NetConfig, OptimConfig, RunConfig


def quick() -> RunConfig:
    """A first look, in minutes on two CPU cores: 400 steps of 64 images, hidden 64."""
    return RunConfig(
        preset="quick",
        data=DataConfig(num_lpips=256),
        net=NetConfig(hidden=64),
        optim=OptimConfig(steps=400),
    )


def reference() -> RunConfig:
    """The budget at which differences are claimed: 2,000 steps of 64 images, hidden 64."""
    return RunConfig(
        preset="reference",
        data=DataConfig(num_lpips=1000, num_frechet=2000, num_fid=2500),
        net=NetConfig(hidden=64),
        optim=OptimConfig(steps=2000),
    )


def public() -> RunConfig:
    """The public VQ-VAE recipe: hidden 128, 10,000 steps of 32 images at a steady 3e-4."""
    return RunConfig(
        preset="public",
        method=MethodConfig(lr=3e-4),
        optim=OptimConfig(steps=10_000, batch_size=32, warmup_steps=0, decay_from=1.0, beta2=0.999),
        log_every=50,
        checkpoint_every=1000,
    )


def full() -> RunConfig:
    """For a GPU: the public net (hidden 128), 100 epochs of CIFAR-10 in batches of 128."""
    optim = OptimConfig(steps=100 * 50_000 // 128, batch_size=128, warmup_steps=200)
    data = DataConfig(num_lpips=10_000, num_frechet=10_000, num_fid=10_000)
    return RunConfig(preset="full", data=data, optim=optim, checkpoint_every=2000, log_every=50)


def smoke() -> RunConfig:
    """A few steps on drawn pictures: whether everything runs, nothing about quality."""
    return RunConfig(
        preset="smoke",
        data=DataConfig(source="textures", num_train=256, num_test=64),
        net=NetConfig(hidden=16, residual_hidden=8, dim=8, num_codes=32),
        optim=OptimConfig(steps=16, batch_size=16, warmup_steps=2),
        log_every=4,
        checkpoint_every=8,
    )


PRESETS: dict[str, Callable[[], RunConfig]] = {
    "quick": quick,
    "reference": reference,
    "public": public,
    "full": full,
    "smoke": smoke,
}


def make_preset(name: str) -> RunConfig:
    """The config of a preset.

    Raises:
        ValueError: For an unknown name; lists the valid ones.

    Example:
        >>> make_preset("reference").optim.steps
        2000
    """
    return PRESETS[choose("preset", name, PRESETS)]()
