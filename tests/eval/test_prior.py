import json
import math
import re
import runpy
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from eval import distances
from eval import prior as module
from eval.prior import RESULTS, SAMPLES, Folders, PriorStudy, Study
from softvq.data import TensorImages, to_model_range
from softvq.measures.frechet import Features
from train.loop import Run
from train.presets import smoke
from train.prior.config import PriorConfig, Sampling
from train.prior.run import CHECKPOINT, KIND, PriorRun
from train.values import override

METHODS = ("softvq", "lucid-ema")
PRIOR = (
    "net.layers=1",
    "net.width=16",
    "net.heads=2",
    "optim.steps=6",
    "optim.batch_size=8",
)


def make_images():
    """Waves of 16 x 16 pixels in three classes, as a run's training and test pictures."""

    def make(split, count, shift):
        waves = torch.sin((torch.arange(count * 768, dtype=torch.float64) + shift) ** 1.3)
        pictures = ((waves + 1) * 127).to(torch.uint8).reshape(count, 3, 16, 16)
        return TensorImages(pictures, name=f"waves {split}", labels=torch.arange(count) % 3)

    return SimpleNamespace(train=make("train", 32, 0), test=make("test", 12, 7))


def make_study(*changes, **parts):
    tokenizer = override(smoke(), ["data.size=16", "optim.steps=2", "eval_at=[1.0]"])
    prior = override(PriorConfig(), [*PRIOR, *changes])
    return Study(
        **{"methods": METHODS, "tokenizer": tokenizer, "prior": prior, "samples": 9, **parts}
    )


def start(folder, study=None):
    folders = Folders(folder / "tokenizers", folder / "out")
    return PriorStudy(study or make_study(), folders=folders, images=make_images(), command="typed")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folder and results of a whole study of two methods."""
    folder = tmp_path_factory.mktemp("study")
    return folder, start(folder).run()


def test_results_are_those_of_the_file(made):
    folder, results = made
    held = json.loads((folder / "out" / RESULTS).read_text())
    assert held == results
    assert list(held["methods"]) == list(METHODS)
    assert (held["command"], held["data"]) == ("typed", "waves train; waves test")


@pytest.mark.parametrize("name", METHODS)
def test_each_tokenizer_has_its_figures(made, name):
    found = made[1]["methods"][name]
    assert found["nats_per_image"] == pytest.approx(16 * found["nats_per_token"])
    assert 0 < found["unigram_entropy"] <= found["unigram_cross_entropy"] < 2 * math.log(32)
    assert 0 < found["codes_emitted"] <= 1
    assert 1 <= found["perplexity_emitted"] <= 32
    assert found["samples"] == 9
    assert found["psnr_hard"] > 0
    assert found["fd_vgg16"] is None  # nine pictures have no covariance of 512 features


def test_codes_emitted_are_those_of_the_samples(made, monkeypatch):
    folder, results = made
    drawn = start(folder).load_samples("softvq")
    assert drawn.tokens.shape == (9, 4, 4)
    assert drawn.labels.tolist() == [0, 1, 2] * 3
    share = len(set(drawn.tokens.flatten().tolist())) / 32
    assert results["methods"]["softvq"]["codes_emitted"] == share


def test_both_priors_are_the_very_same_at_the_start(made):
    folder, _ = made
    states = [
        json.loads(json.dumps(module.read_state(folder / "out" / name / CHECKPOINT, kind=KIND)))
        for name in METHODS
    ]
    assert states[0]["config"] == states[1]["config"]
    assert states[0]["vocabulary"]["codebook_digest"] != states[1]["vocabulary"]["codebook_digest"]


def test_again_everything_is_taken_as_it_is(made, monkeypatch):
    folder, results = made

    def refuse(*arguments, **options):
        raise AssertionError("this was made already")

    monkeypatch.setattr(Run, "train", refuse)
    monkeypatch.setattr(PriorRun, "_step", refuse)
    monkeypatch.setattr(module, "sample", refuse)
    before = (folder / "out" / "softvq" / SAMPLES).stat().st_mtime_ns
    again = start(folder).run()
    assert {k: v for k, v in again.items() if k != "commit"} == {
        k: v for k, v in results.items() if k != "commit"
    }
    assert (folder / "out" / "softvq" / SAMPLES).stat().st_mtime_ns == before


def test_other_sampling_draws_anew_and_trains_nothing(made, monkeypatch):
    folder, _ = made
    kept = (folder / "out" / "softvq" / SAMPLES).read_bytes()
    monkeypatch.setattr(Run, "train", lambda run: pytest.fail("trained"))
    study = make_study(methods=("softvq",), sampling=Sampling(top_k=1))
    other = start(folder, study)
    other.run()
    # Of one class all samples are the same: the likeliest.
    tokens = other.load_samples("softvq").tokens
    assert torch.equal(tokens[:3], tokens[3:6])
    (folder / "out" / "softvq" / SAMPLES).write_bytes(kept)
    start(folder).run()


def test_the_picture_has_a_row_for_each_class(made, tmp_path):
    path = start(made[0]).draw(tmp_path / "prior.png", columns=2)
    with Image.open(path) as image:
        pixels = torch.from_numpy(np.array(image.convert("L")))
    assert image.height == 20 + 3 * 34 - 2
    assert image.width == 74 + 2 * (2 * 34 - 2) + 14
    assert bool((pixels[20:, 74 : 74 + 66] < 250).any())


class Means(Features):
    """Stands where image nets stand, small and quick: the mean of each channel."""

    name, net, dim, resize = "FD-VGG16", "mean of each channel", 3, None

    def __init__(self, module):
        pass

    def extract(self, images, *, low, high):
        return images.mean((2, 3))


def test_distances_are_to_the_first_test_pictures(made, monkeypatch):
    folder, _ = made
    monkeypatch.setattr(distances, "VggFeatures", Means)
    monkeypatch.setattr(distances, "get_net", lambda net: None)
    study = start(folder)
    test = to_model_range(study.images.test.images[:9])
    measure = study.distances
    assert measure.of_pictures([test[:4], test[4:]], count=9) == pytest.approx(0, abs=1e-6)
    assert measure.of_pictures([test + 0.25], count=9) == pytest.approx(3 * 0.25**2, rel=0.3)
    assert measure._reference.rows == 9


@pytest.mark.bad_input
def test_a_tokenizer_of_other_settings_is_refused(made):
    folder, _ = made
    tokenizer = override(make_study().tokenizer, ["net.hidden=32"])
    with pytest.raises(ValueError, match=r"was trained with net\.hidden = 16; 32 is asked for"):
        start(folder, make_study(tokenizer=tokenizer)).run()


@pytest.mark.bad_input
def test_a_prior_of_other_settings_is_refused(made):
    with pytest.raises(ValueError, match=r"is of another run: config\.optim\.lr was"):
        start(made[0], make_study("optim.lr=1e-5")).run()


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"methods": ()}, "methods must name a tokenizer at least"),
        ({"methods": ("sofvq",)}, "method is 'sofvq'; valid are: softvq"),
        ({"samples": 0}, "samples must be a whole number of at least 1"),
    ],
)
def test_a_study_that_cannot_be_is_refused(parts, message):
    with pytest.raises(ValueError, match=message):
        make_study(**parts)


def call(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["eval", "prior", *map(str, words)])
    monkeypatch.delitem(sys.modules, "eval.__main__", raising=False)
    runpy.run_module("eval", run_name="__main__")


def test_the_command_prints_the_table_and_writes_the_picture(made, tmp_path, monkeypatch, capsys):
    folder, _ = made
    monkeypatch.setattr(module, "ImagePair", lambda config: make_images())
    monkeypatch.setattr("train.presets.PRESETS", {"smoke": lambda: make_study().tokenizer})
    picture = tmp_path / "prior.png"
    places = ("--tokenizers", folder / "tokenizers", "--out", folder / "out", "--picture", picture)
    labelled = "conditional=true"  # the preset's own pictures are not
    call(monkeypatch, *PRIOR, labelled, "--preset", "smoke", "--samples", 9, *places)
    said = capsys.readouterr().out
    assert "Read them beside the PSNR." in said
    assert f"Pictures: {picture}" in said.replace("\n", "")
    assert picture.stat().st_size > 1000
    command = json.loads((folder / "out" / RESULTS).read_text())["command"]
    assert command.startswith("python -m eval prior net.layers=1 ")


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("optim.stps=1",), "error: key is 'optim.stps'; valid are: net.layers"),
        (("--preset", "smok"), "error: preset is 'smok'; valid are: quick"),
        (("--sampling.temperature", "0"), "temperature must be a finite number > 0; got 0.0"),
    ],
)
def test_what_cannot_be_is_told_and_writes_nothing(monkeypatch, capsys, tmp_path, words, message):
    with pytest.raises(SystemExit) as caught:
        call(monkeypatch, *words, "--out", tmp_path / "out")
    said = f"{caught.value}{capsys.readouterr().err}"
    assert re.search(re.escape(message), " ".join(said.split()))
    assert not (tmp_path / "out").exists()
