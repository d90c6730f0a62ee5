"""The samples run as they stand, at small sizes, and each leaves its picture."""

import runpy
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.eval.stored import fill_folder

SAMPLES = Path(__file__).parent.parent / "samples"
SCRIPTS = {
    "cifar10": ["--steps", "2", "--source", "textures"],
    "export_and_prior": ["--steps", "2"],
    "plain_use": ["--steps", "12"],
    "read_report": [],
    "readout_hugging_face": ["--steps", "3"],
    "swap_diffusers": ["--steps", "2", "--source", "textures"],
}
WANTED = {"swap_diffusers": "diffusers", "readout_hugging_face": "transformers"}
MOST_LINES = 60
MOST_BYTES = 100_000


@pytest.mark.filterwarnings("ignore:The temperature hit a bound")  # of nets that are not trained
@pytest.mark.parametrize("name", SCRIPTS)
def test_sample_runs(name, tmp_path, monkeypatch):
    pytest.importorskip(WANTED.get(name, "matplotlib"))
    words = [str(fill_folder(tmp_path / "study"))] if name == "read_report" else SCRIPTS[name]
    monkeypatch.setattr(sys, "argv", [name, *words, "--out", str(tmp_path / "out")])
    monkeypatch.setenv("MPLBACKEND", "agg")
    runpy.run_path(str(SAMPLES / f"{name}.py"), run_name="__main__")
    with Image.open(tmp_path / "out" / f"{name}.png") as picture:
        assert min(picture.size) > 50


def test_these_are_all():
    assert {path.stem for path in SAMPLES.glob("*.py")} == set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_sample_is_short_and_its_picture_small(name):
    lines = (SAMPLES / f"{name}.py").read_text(encoding="utf-8").count("\n")
    assert lines <= MOST_LINES
    assert (SAMPLES / f"{name}.png").stat().st_size <= MOST_BYTES


@pytest.fixture(autouse=True)
def _as_it_was():
    """Samples set the seed of the whole process."""
    before = torch.get_rng_state()
    yield
    torch.set_rng_state(before)
