"""A whole model in one file: weights as safetensors, sizes and options as JSON in its metadata.

One file, renamed into place, is there whole or not at all.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from softvq.files import blaming, holding_interrupts, replacing
from softvq.models.vqvae import VQVAE, VQVAEConfig
from softvq.nn import Arrangement, Quantizer
from softvq.nn.kinds import KINDS, build, describe
from softvq.nn.soft import warn_of_warmup

FORMAT = "softvq-model"
FORMAT_VERSION = 1
SIZES = ("channels", "dim", "hidden", "residual_hidden", "blocks", "num_codes", "num_heads")
"""Of which the weights of a model have at least as many numbers."""


def save_model(model: VQVAE, path: Path | str) -> Path:
    """Write a VQVAE with a quantizer of softvq.

    Args:
        model: Unwrapped: of a wrapper such as DDP, its ``.module``. Parts may be compiled.
        path: File to write; by custom it ends in ``.safetensors``.

    Returns:
        The path.

    Raises:
        ValueError: If it is wrapped, or the quantizer is not one of softvq, which alone can be
            built again.

    Example:
        >>> import tempfile
        >>> from softvq.nn import SoftVQ
        >>> folder = tempfile.mkdtemp()
        >>> model = VQVAE(SoftVQ(8, 64, layout="channels_first"))
        >>> load_model(save_model(model, f"{folder}/m.safetensors")).quantizer.num_codes
        8
    """
    if not isinstance(model, VQVAE):
        raise ValueError(
            f"model must be a VQVAE; got {type(model).__name__}. Take a wrapper off first: DDP's "
            "is model.module, that of torch.compile model._orig_mod."
        )
    quantizer = model.quantizer
    if not isinstance(quantizer, Quantizer | Arrangement):
        raise ValueError(
            f"model.quantizer is {type(quantizer).__name__}; only {', '.join(KINDS)} can be "
            "saved with their options. Save its state_dict() and build it yourself."
        )
    config = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "model": asdict(model.config),
        "quantizer": describe(quantizer),
    }
    warn_of_warmup(model, "save")
    # torch.compile of a part wraps it, which the model that is loaded knows nothing of.
    weights = {name.replace("_orig_mod.", ""): each for name, each in model.state_dict().items()}
    write_tensors(path, weights, config)
    return Path(path)


def load_model(path: Path | str) -> VQVAE:
    """Read a model that `save_model` wrote; its quantizer does not start again.

    Args:
        path: The file.

    Returns:
        The model, on the CPU, in training mode as built.

    Raises:
        ValueError: If the file is no such model, cut short, or of a newer version.
        FileNotFoundError: If there is none.
    """
    config, tensors = read_tensors(path)
    check_format(path, config, name=FORMAT, version=FORMAT_VERSION)
    with blaming(path):
        _check_sizes(config, most=sum(each.numel() for each in tensors.values()))
        model = VQVAE(build(config["quantizer"]), VQVAEConfig(**config["model"]))
    load_strictly(model, tensors, path=path)
    return model


def write_tensors(path: Path | str, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    """Write tensors and a JSON config as one safetensors file, whole or not at all.

    Raises:
        OSError: If the disk is full or the folder cannot be written to.

    Example:
        >>> import tempfile, torch
        >>> path = f"{tempfile.mkdtemp()}/t.safetensors"
        >>> write_tensors(path, {"a": torch.ones(1)}, {"format": "x"})
        >>> read_tensors(path)[0]
        {'format': 'x'}
    """
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    with replacing(path) as beside:
        try:
            with holding_interrupts():
                save_file(plain, beside, metadata={"softvq": json.dumps(config)})
        except SafetensorError as error:  # what it makes of a full disk, which is no OSError
            raise OSError(f"path {path} cannot be written: {error}") from error


def read_tensors(path: Path | str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and tensors of a file that `write_tensors` wrote.

    Args:
        path: The file.

    Returns:
        The JSON config and the tensors, on the CPU.

    Raises:
        ValueError: If the file is cut short or not of softvq.
        FileNotFoundError: If there is none.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"path {path} is no file: nothing to load.")
    try:
        with holding_interrupts(), safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"path {path} ({path.stat().st_size} bytes) is no whole safetensors file ({error}): it "
            "may be cut short. Take another copy or an earlier checkpoint."
        ) from error
    if "softvq" not in metadata:
        raise ValueError(
            f"path {path} holds tensors but no softvq config in its metadata: it is no model, "
            "checkpoint, codebook or shard of softvq. Load its tensors with safetensors itself."
        )
    try:
        config = json.loads(metadata["softvq"])
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(
            f"path {path} has a softvq config that is damaged ({error}). Take another copy."
        ) from error
    if not isinstance(config, dict):
        raise ValueError(
            f"path {path} has a softvq config that is no JSON object but {config!r:.80}. Take "
            "another copy."
        )
    return config, tensors


def _check_sizes(config: Any, *, most: int) -> None:  # noqa: ANN401 - whatever is in the file
    """Raise for sizes that the file's weights cannot have, before room is made for them.

    Args:
        config: Of a model, with everything inside it.
        most: Numbers in the file.
    """
    for name, value in config.items() if isinstance(config, dict) else enumerate(config):
        if isinstance(value, dict | list):
            _check_sizes(value, most=most)
        elif name in SIZES and isinstance(value, int | float) and not value <= most:
            raise ValueError(f"{name} is {value}; the file holds {most} numbers in all.")


def check_format(path: Path | str, config: dict[str, Any], *, name: str, version: int) -> None:
    """Raise unless a file's config says that it is ``name``, of ``version`` or older.

    Raises:
        ValueError: Naming what it is instead.

    Example:
        >>> check_format("m", {"format": "a", "version": 1}, name="a", version=1)
    """
    if not isinstance(config, dict) or config.get("format") != name:
        found = config.get("format") if isinstance(config, dict) else config
        raise ValueError(f"path {path} is a {found!r:.80} file; {name!r} was expected.")
    if type(config.get("version")) is not int or config["version"] < 1:
        raise ValueError(
            f"path {path} has version {config.get('version')!r:.80} of {name}, which there never "
            "was: it is damaged."
        )
    if config["version"] > version:
        raise ValueError(
            f"path {path} is {name} version {config['version']}; this softvq reads up to "
            f"{version}: update softvq."
        )


def load_strictly(model: nn.Module, tensors: dict[str, Tensor], *, path: Path | str) -> None:
    """Load a state dict; what does not fit is one ValueError that names the file.

    Raises:
        ValueError: With torch's list of what is missing, unexpected or of another size.
    """
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise ValueError(f"path {path} does not fit the model: {error}") from error
