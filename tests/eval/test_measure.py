import re

import pytest
import torch
from torch import nn

from eval.measure import describe_measured, measure_model, open_model
from softvq.data import TensorImages, load_images
from softvq.models import save_model
from tests.train.conftest import FEW
from train.evaluate import evaluate
from train.loop import CHECKPOINT, Run
from train.presets import smoke
from train.values import override


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folder of a short run, its test images and its last measures, by method."""
    made = {}
    for name in ("softvq", "lucid-ema"):
        folder = tmp_path_factory.mktemp(name)
        config = override(smoke(), [*FEW, f"method.name={name}", "optim.steps=4"])
        run = Run(config, folder=folder, quiet=True)
        result = run.train()
        if name == "softvq":
            save_model(result.model, folder / "model.safetensors")
        made[name] = (folder, run.images.test, result.evals[-1])
    return made


@pytest.mark.parametrize(
    ("name", "file"),
    [("softvq", CHECKPOINT), ("softvq", "model.safetensors"), ("lucid-ema", CHECKPOINT)],
)
def test_a_file_has_the_measures_that_its_run_ended_with(trained, name, file):
    folder, images, final = trained[name]
    measured = measure_model(open_model(folder / file, images), images)
    found = measured.evaluation.measures
    assert found["psnr_hard"] == pytest.approx(final["psnr_hard"], abs=1e-6)
    assert found["perplexity_hard"] == pytest.approx(final["perplexity_hard"], abs=1e-6)
    assert measured.seconds > 0
    assert measured.processor > 0


def test_the_lines_hold_measures_conditions_and_cost(trained):
    folder, images, final = trained["softvq"]
    measured = measure_model(open_model(folder / CHECKPOINT, images), images)
    text = "\n".join(describe_measured(measured, images=images))
    assert text.startswith(f"{images.name}, 24 pictures")
    assert re.search(rf"hard PSNR dB +{final['psnr_hard']:.2f}\n", text)
    assert "PSNR dB (hard, soft); PSNR of mean error dB (hard, soft)" in text
    assert "MS-SSIM (hard, soft): not available: it wants sides of at least 176 pixels" in text
    assert re.search(r"[\d.]+ s with \d+ threads, [\d.]+ s of processor time; memory grew", text)


class Watching(nn.Module):
    """Notes how large the batches are that reach it."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.sizes = inner, []

    def forward(self, images):
        self.sizes.append(len(images))
        return self.inner(images)


def test_memory_does_not_grow_with_the_pictures(trained):
    """Four times the pictures: the same largest batch, and the same peak but for noise."""
    folder, images, _ = trained["softvq"]
    model = open_model(folder / CHECKPOINT, images)
    model.encoder = Watching(model.encoder)
    grey = torch.arange(64).byte()[:, None, None, None].expand(-1, 3, 32, 32)
    sets = {times: TensorImages(grey.repeat(times, 1, 1, 1), name="greys") for times in (8, 8 * 4)}
    evaluate(model, sets[8])  # what is kept for good is there from here on
    growth = {
        times: [measure_model(model, each).growth for _ in range(3)] for times, each in sets.items()
    }
    assert max(model.encoder.sizes) == 250
    # 1,536 pictures more would be 18 MiB in float32 each time; an allocator's whim comes and goes.
    assert min(growth[32]) < max(growth[8]) + 8, growth


@pytest.mark.bad_input
def test_what_is_no_checkpoint_is_refused(tmp_path):
    images = load_images("textures", "test", num_images=2)
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="is no whole safetensors file"):
        open_model(path, images)
    with pytest.raises(FileNotFoundError, match="is no file"):
        open_model(tmp_path / "none", images)
