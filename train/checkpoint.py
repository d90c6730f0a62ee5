"""Checkpoints of a run: one safetensors file, no pickle, from which a run goes on bit for bit."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from softvq.models.io import check_format, load_strictly, read_tensors, write_tensors

FORMAT = "softvq-checkpoint"
FORMAT_VERSION = 1


def save_checkpoint(
    path: Path, model: nn.Module, optimizer: Optimizer, *, state: dict[str, Any], kind: str = FORMAT
) -> None:
    """Write model, optimizer and random state.

    Args:
        path: The file; replaced as a whole.
        model: Unwrapped.
        optimizer: Unwrapped.
        state: What else the run needs, as plain JSON values.
        kind: Name of the format: what is trained.
    """
    held = optimizer.state_dict()
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for index, values in held["state"].items():
        for name, value in values.items():
            tensors[f"optimizer.{index}.{name}"] = torch.as_tensor(value)
    tensors["random.torch"] = torch.get_rng_state()
    for index, cuda in enumerate(
        torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    ):
        tensors[f"random.cuda.{index}"] = cuda
    config = {
        "format": kind,
        "version": FORMAT_VERSION,
        "groups": held["param_groups"],
        **state,
    }
    write_tensors(path, tensors, config)


def read_state(path: Path, *, kind: str = FORMAT) -> dict[str, Any]:
    """The ``state`` that was saved in a checkpoint, and no tensor of it.

    Raises:
        ValueError: If the file is cut short or of another kind.
        FileNotFoundError: If there is none.
    """
    return _read(path, kind)[0]


def load_weights(path: Path, model: nn.Module, *, kind: str = FORMAT) -> dict[str, Any]:
    """Put the weights of a checkpoint into a model, to use it and not to go on.

    Args:
        path: The file.
        model: Unwrapped.
        kind: Name of the format.

    Returns:
        The ``state`` that was saved.

    Raises:
        ValueError: If the file is cut short, of another kind, or of another model.
        FileNotFoundError: If there is none.
    """
    config, tensors = _read(path, kind)
    load_strictly(model, _under(tensors, "model."), path=path)
    return config


def load_checkpoint(
    path: Path, model: nn.Module, optimizer: Optimizer, *, kind: str = FORMAT
) -> dict[str, Any]:
    """Put a checkpoint back into a model and an optimizer of the same make.

    Args:
        path: The file.
        model: Unwrapped.
        optimizer: Unwrapped, its groups as when it was saved.
        kind: Name of the format.

    Returns:
        The ``state`` that was saved.

    Raises:
        ValueError: If the file is cut short, of another kind, or of another model.
        FileNotFoundError: If there is none.
    """
    config, tensors = _read(path, kind)
    load_strictly(model, _under(tensors, "model."), path=path)
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in _under(tensors, "optimizer.").items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": config["groups"]})
    torch.set_rng_state(tensors["random.torch"])
    cuda = _under(tensors, "random.cuda.")
    if cuda and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([cuda[str(index)] for index in range(len(cuda))])
    return config


def _read(path: Path, kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config, tensors = read_tensors(path)
    check_format(path, config, name=kind, version=FORMAT_VERSION)
    return config, tensors


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
