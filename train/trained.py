"""A trained VQ-VAE out of any file that a run leaves, whoever made its quantizer."""

from pathlib import Path

from softvq.models import VQVAE, load_model
from softvq.models.io import FORMAT as MODEL
from softvq.models.io import read_tensors
from train.build import build_for
from train.checkpoint import load_weights, read_state
from train.config import from_json


def load_trained(path: Path | str) -> VQVAE:
    """Read a model, in eval mode.

    Args:
        path: What `softvq.models.save_model` wrote, or the checkpoint of a run: quantizers of
            other packages are in checkpoints alone.

    Returns:
        The model, on the CPU.

    Raises:
        ValueError: If the file is neither, cut short, or needs a package that is not installed.
        FileNotFoundError: If there is none.
    """
    path = Path(path)
    config, _ = read_tensors(path)
    if config.get("format") == MODEL:
        return load_model(path).eval()
    run = from_json(read_state(path)["config"])
    data = run.data
    model = build_for(run, channels=data.channels, size=(data.size, data.size))
    load_weights(path, model)
    return model.eval()
