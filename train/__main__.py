"""`python -m train PRESET [key=value ...]`: train one model, with checkpoints and TensorBoard."""

import os
import sys
from pathlib import Path
from typing import Annotated

import tyro

from softvq import Quantizer
from softvq.data.fetch import FetchError
from softvq.models import save_model
from train.checkpoint import read_state
from train.loop import CHECKPOINT, Run
from train.presets import make_preset
from train.values import override


def main(
    preset: Annotated[str, tyro.conf.Positional] = "quick",
    overrides: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    /,
    *,
    out: Path = Path("runs/train"),
    resume: bool = False,
) -> None:
    """Train the VQ-VAE of a preset.

    Args:
        preset: quick, reference, public, full or smoke.
        overrides: Changes such as method.name=ema optim.steps=1000 net.num_codes=1024.
        out: Folder for checkpoint.safetensors, model.safetensors and TensorBoard files.
        resume: Go on from the folder's checkpoint.
    """
    config = override(make_preset(preset), list(overrides))
    if not resume and (out / CHECKPOINT).exists():
        raise ValueError(
            f"--out {out} holds a checkpoint already: add --resume to go on from it, or give "
            "another folder."
        )
    try:
        run = Run(config, folder=out)
        if resume:
            run.resume()
        result = run.train()
    except KeyboardInterrupt:
        speaks = os.environ.get("RANK", "0") == "0"
        sys.exit(_say_stopped(out) if speaks else 0)
    if run.accelerator.is_main_process and isinstance(result.model.quantizer, Quantizer):
        print(f"Model: {save_model(result.model, out / 'model.safetensors')}")


def _say_stopped(out: Path) -> str:
    path = out / CHECKPOINT
    if not path.exists():
        return "\nStopped before the first checkpoint: there is nothing to go on from."
    step = read_state(path)["step"]
    return f"\nStopped; saved after step {step}. Go on with the same command and --resume."


if __name__ == "__main__":
    try:
        tyro.cli(main, prog="python -m train")
    except (ValueError, OSError, FetchError) as error:
        sys.exit(f"error: {error}")
