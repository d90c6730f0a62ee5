import io
import json
import math
import pickle
import re

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from eval.results import FORMAT, save_results
from softvq.cli import describe_file, main
from softvq.models.comparison import (
    PRIOR_FORMAT,
    PRIOR_VERSION,
    RESULTS_VERSION,
    TAKES,
    describe_results,
    name_beginning,
)
from softvq.models.io import write_tensors
from tests.eval.stored import make_results
from train.checkpoint import FORMAT_VERSION
from train.prior.run import KIND


@pytest.fixture
def results():
    return make_results()


def test_results_tell_methods_and_their_hard_figures(results, tmp_path, capsys):
    path = save_results(tmp_path, results)
    facts = describe_file(path)
    assert facts["kind"] == "results of a comparison"
    assert facts["methods"] == ", ".join(results["methods"])
    assert facts["seeds"] == "0, 1, 2"
    assert facts["commit"] == results["commit"]
    assert facts["command"] == results["command"]
    for name, method in results["methods"].items():
        finals = [run["final"] for run in method["seeds"]]
        psnr = math.fsum(each["psnr_hard"] for each in finals) / len(finals)
        use = math.fsum(each["use_hard"] for each in finals) / len(finals)
        perplexity = math.fsum(each["perplexity_hard"] for each in finals) / len(finals)
        assert facts[name] == (
            f"hard PSNR {psnr:.2f} dB, use {100 * use:.1f} %, perplexity {perplexity:.1f} "
            f"(mean of {len(finals)})"
        )
    main(["info", str(path)])
    assert len(capsys.readouterr().out.splitlines()) < 20


def test_a_diverged_run_is_told_as_it_is(results, tmp_path):
    first = next(iter(results["methods"]))
    results["methods"][first]["seeds"][0]["final"]["psnr_hard"] = math.nan
    facts = describe_file(save_results(tmp_path, results))
    assert "hard PSNR nan dB" in facts[first]


def test_the_formats_are_those_that_are_written():
    assert (RESULTS_VERSION, PRIOR_FORMAT, PRIOR_VERSION) == (FORMAT, KIND, FORMAT_VERSION)


def test_a_seed_that_has_no_figure_gives_no_mean():
    final = {"step": 9, "psnr_hard": None, "use_hard": 0.5, "perplexity_hard": 3.0}
    facts = describe_results({"methods": {"a": {"seeds": [{"seed": 0, "final": final}]}}})
    assert facts["a"] == "hard PSNR nan dB, use 50.0 %, perplexity 3.0"


def write_picture(path):
    held = io.BytesIO()
    Image.new("RGB", (2, 2)).save(held, "png")
    path.write_bytes(held.getvalue())


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        ("report.html", lambda p: p.write_text("\n<!doctype html>\n<html>"), "is an HTML page, "),
        ("a.png", write_picture, "is a PNG picture"),
        ("a.pt", lambda p: torch.save({"a": torch.ones(1)}, p), "is a ZIP archive, as torch.save"),
        ("a.pkl", lambda p: p.write_bytes(pickle.dumps([1], protocol=2)), "is a pickle, "),
        ("a.md", lambda p: p.write_text("# Notes\nmore"), "a text file that begins '# Notes'"),
        ("a.csv", lambda p: p.write_text("é" * 200), "a text file that begins 'é"),
        ("a.json", lambda p: p.write_text('{"a": 1, "b": 2}'), "a JSON file with the keys a, b: "),
        ("b.json", lambda p: p.write_text('{"methods": {"a"'), "begins as JSON and is none as a"),
        ("c.jsonl", lambda p: p.write_text('{"a": 1}\n{"a": 2}'), "or of several texts"),
    ],
)
def test_another_file_is_named_by_its_beginning(tmp_path, name, write, message):
    path = tmp_path / name
    write(path)
    with pytest.raises(SystemExit) as caught:
        main(["info", str(path)])
    said = str(caught.value)
    assert said.startswith(f"error: path {path} ")
    assert message in said
    assert said.endswith(TAKES)
    assert "take another copy" not in said.lower()
    assert "\n" not in said


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": FORMAT + 1}, "this softvq reads up to 1: update softvq"),
        ({"format": "x"}, "in format 'x'"),
        ({"methods": {"softvq": {}}}, "lacks or garbles 'seeds'"),
        ({"methods": 3}, "lacks or garbles"),
    ],
)
def test_results_of_another_version_or_edited_are_refused(results, tmp_path, change, message):
    path = save_results(tmp_path, results)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match=re.escape(message)):
        describe_file(path)


def test_a_header_as_long_as_the_mark_of_a_pickle_is_none(tmp_path):
    path, size = tmp_path / "a.safetensors", 0x0280
    for padding in range(size - 96, size, 8):  # headers are filled up to a multiple of 8
        save_file({"a": torch.ones(1)}, path, metadata={"m": "x" * padding})
        if int.from_bytes(path.read_bytes()[:8], "little") == size:
            break
    assert path.read_bytes()[:2] == pickle.dumps([1], protocol=2)[:2]
    assert name_beginning(path) is None
    with pytest.raises(ValueError, match="no softvq config in its metadata: it is no model"):
        describe_file(path)


@pytest.mark.bad_input
def test_a_prior_that_lacks_an_entry_is_damaged(tmp_path):
    path = tmp_path / "prior.safetensors"
    write_tensors(path, {}, {"format": PRIOR_FORMAT, "version": 1, "config": {}})
    with pytest.raises(ValueError, match="that lacks 'vocabulary': it is damaged"):
        describe_file(path)
