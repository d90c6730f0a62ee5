import re
import runpy
import sys

import pytest
import torch
from PIL import Image

from softvq.cli import describe_file
from softvq.data import TensorImages
from softvq.export import export_tokens
from softvq.models import save_model
from tests.train.prior.conftest import SMALL, make_images
from train.prior import __main__ as command
from train.prior.run import CHECKPOINT, PriorRun, load_prior
from train.prior.vocabulary import name_specials


def call(monkeypatch, *words):
    """`python -m train.prior WORDS` in this process."""
    monkeypatch.setattr(sys, "argv", ["train.prior", *map(str, words)])
    monkeypatch.delitem(sys.modules, "train.prior.__main__", raising=False)
    runpy.run_module("train.prior", run_name="__main__")


@pytest.fixture(scope="module")
def sets(tokenizer, tmp_path_factory):
    """Folder with tokens, the model that made them, and a prior of 12 steps."""
    folder = tmp_path_factory.mktemp("prior")
    for split, count in (("train", 12), ("test", 6)):
        images = make_images(count, split=split)
        export_tokens(tokenizer, images, folder / split, specials=name_specials(3))
    save_model(tokenizer, folder / "model.safetensors")
    command.train(folder / "train", SMALL, test=folder / "test", out=folder / "run")
    return folder


def test_training_says_what_unseen_tokens_cost(sets, tmp_path, capsys, monkeypatch):
    words = ("train", sets / "train", *SMALL, "--test", sets / "test", "--out", tmp_path / "run")
    call(monkeypatch, *words)
    said = capsys.readouterr().out
    assert re.search(r"Unseen tokens: \d\.\d{4} nats a token, \d+\.\d\d an image; unigram", said)
    assert f"Prior: {tmp_path / 'run' / CHECKPOINT}" in said
    call(monkeypatch, *words, "--resume")
    assert f"Prior: {tmp_path / 'run' / CHECKPOINT}" in capsys.readouterr().out


def test_the_help_says_what_tokens_without_labels_need(capsys, monkeypatch):
    with pytest.raises(SystemExit, match="0"):
        call(monkeypatch, "train", "--help")
    said = " ".join(re.sub("[│╭╮╰╯─]", " ", capsys.readouterr().out).split())
    assert "exported with --specials bos,class/0,class/1,..." in said
    assert "without labels are exported with --specials bos alone" in said
    assert "override conditional=false" in said


def test_tokens_without_labels_train_as_the_help_says(tokenizer, tmp_path, capsys, monkeypatch):
    for split, count in (("train", 12), ("test", 6)):
        images = TensorImages(make_images(count, split=split).images, name=split)
        export_tokens(tokenizer, images, tmp_path / split, specials=["bos"])
    words = ("train", tmp_path / "train", "--test", tmp_path / "test", "--out", tmp_path / "run")
    with pytest.raises(SystemExit, match=r"have no labels: .* \(conditional=false\)"):
        call(monkeypatch, *words, *SMALL)
    call(monkeypatch, *words, *SMALL, "conditional=false")
    assert "Unseen tokens: " in capsys.readouterr().out


def test_info_tells_what_a_prior_is(sets):
    facts = describe_file(sets / "run" / CHECKPOINT)
    assert facts["kind"] == "checkpoint of a prior"
    assert facts["step"] == "12 of 12"
    assert facts["net"].startswith("layers=2, width=16, heads=2")
    assert facts["vocabulary"] == "8 codes and 4 special tokens"
    assert facts["begins with"] == "one of 3 classes, or bos"
    assert facts["grid"] == "4 x 4"
    assert 0 < facts["nats per token, last measured on unseen items"] < 4
    prior = load_prior(sets / "run")
    assert facts["values of weights"] == sum(each.numel() for each in prior.state_dict().values())
    assert "python -m train.prior sample" in facts["read by"]


def test_pictures_are_a_row_for_each_class(sets, tmp_path, capsys, monkeypatch):
    out = tmp_path / "prior.png"
    options = ("--columns", 4, "--guidance", 2, "--top-k", 5, "--top-p", 0.9, "--temperature", 0.8)
    words = ("sample", sets / "run", "--tokenizer", sets / "model.safetensors", "--out", out)
    call(monkeypatch, *words, *options)
    assert f"Pictures: {out}" in capsys.readouterr().out
    with Image.open(out) as image:
        assert image.size == (4 * (32 + 2) - 2, 3 * (32 + 2) - 2)
    first = out.read_bytes()
    call(monkeypatch, *words, *options)
    assert out.read_bytes() == first
    call(monkeypatch, *words, *options, "--seed", 1)
    assert out.read_bytes() != first


def test_ctrl_c_says_where_it_stopped(sets, tmp_path, monkeypatch):
    def interrupt(run):
        run.done = 4
        run.save()
        raise KeyboardInterrupt

    monkeypatch.setattr(PriorRun, "train", interrupt)
    with pytest.raises(SystemExit, match=r"saved after step 4\. Go on with the same command and"):
        command.train(sets / "train", SMALL, test=sets / "test", out=tmp_path)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--temperature", 0), "error: temperature must be a finite number > 0; got 0.0"),
        (("--top-p", 1.5), "error: top_p must be"),
        (("--top-k", 9), "error: top_k is 9; there are 8 codes."),
        (("--columns", 0), "error: columns must be"),
    ],
)
def test_draws_that_cannot_be_are_one_line(sets, tmp_path, monkeypatch, options, message):
    words = ("sample", sets / "run", "--tokenizer", sets / "model.safetensors")
    with pytest.raises(SystemExit, match=re.escape(message)):
        call(monkeypatch, *words, "--out", tmp_path / "p.png", *options)
    assert not (tmp_path / "p.png").exists()


@pytest.mark.bad_input
def test_a_tokenizer_of_other_codes_is_refused(sets, tokenizer, tmp_path, monkeypatch):
    before = tokenizer.quantizer.codebook.detach().clone()
    with torch.no_grad():
        tokenizer.quantizer.codebook.add_(1)
        save_model(tokenizer, tmp_path / "other.safetensors")
        tokenizer.quantizer.codebook.copy_(before)
    words = ("sample", sets / "run", "--tokenizer", tmp_path / "other.safetensors")
    with pytest.raises(SystemExit, match="error: tokenizer has codes of digest"):
        call(monkeypatch, *words, "--out", tmp_path / "p.png")


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--resume",), f"{CHECKPOINT} is no file: nothing to load."),
        (("optim.stps=3",), "error: key is 'optim.stps'; valid are: net.layers"),
        (("optim.batch_size=64",), "error: batch_size is 64, but there are only 12 training"),
    ],
)
def test_training_that_cannot_be_is_one_line(sets, tmp_path, monkeypatch, words, message):
    with pytest.raises(SystemExit, match=re.escape(message)):
        call(
            monkeypatch, "train", sets / "train", *SMALL, *words, "--test", sets / "test",
            "--out", tmp_path / "out",
        )  # fmt: skip
    assert not (tmp_path / "out").exists()


@pytest.mark.bad_input
def test_a_folder_in_use_or_without_tokens_is_refused(sets, monkeypatch, tmp_path):
    words = ("train", sets / "train", *SMALL, "--test", sets / "test", "--out", sets / "run")
    with pytest.raises(SystemExit, match=r"holds a checkpoint already: add --resume to go on"):
        call(monkeypatch, *words)
    with pytest.raises(SystemExit, match=r"holds no manifest\.json: it is no token set"):
        call(monkeypatch, "train", tmp_path, *SMALL, "--test", sets / "test", "--out", tmp_path)
