"""The model of a run, out of its config."""

import math

import torch

from softvq.data import ImageSet
from softvq.models import VQVAE
from train.config import RunConfig
from train.methods import get_method
from train.quantizers import Setting


def build_model(config: RunConfig, images: ImageSet) -> VQVAE:
    """The model of a run: every method gets the very same net at the start.

    Args:
        config: The run.
        images: The training set, for its channels and size.

    Returns:
        Net and quantizer, on the CPU.

    Raises:
        ValueError: For an unknown method, or options that its quantizer does not take.
    """
    return build_for(config, channels=images.channels, size=images.size)


def build_for(config: RunConfig, *, channels: int, size: tuple[int, int]) -> VQVAE:
    """`build_model` for pictures of which sizes alone are known.

    Args:
        config: The run.
        channels: 1 or 3.
        size: Height and width.

    Returns:
        As `build_model`.

    Raises:
        ValueError: As `build_model`.
    """
    setting = make_setting(config, size=size)
    torch.manual_seed(config.seed + 1)  # peers draw from the global generator
    name, options = config.method.name, config.method.options
    try:
        quantizer = (
            get_method(name).at(setting.num_codes, setting.dim).build(setting, dict(options))
        )
    except TypeError as error:  # its constructor knows its arguments; nothing lists them twice
        raise ValueError(
            f"method.options {options} do not fit method {name!r}: {error}."
        ) from error
    torch.manual_seed(config.seed)
    return VQVAE(quantizer, config.net.vqvae(channels=channels))


def make_setting(config: RunConfig, *, size: tuple[int, int]) -> Setting:
    """What the run tells its quantizer.

    Args:
        config: The run.
        size: Height and width of its pictures.

    Example:
        >>> from train.presets import quick
        >>> make_setting(quick(), size=(32, 32)).rows
        4096
    """
    factor = config.net.downsampling
    grid = math.ceil(size[0] / factor) * math.ceil(size[1] / factor)
    return Setting(
        num_codes=config.net.num_codes,
        dim=config.net.dim,
        steps=config.optim.steps,
        rows=config.optim.batch_size * grid,
        seed=config.seed,
    )
