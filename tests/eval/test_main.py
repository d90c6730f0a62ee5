import json
import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from eval import report
from eval.compare import Comparison
from softvq.data.fetch import FetchError
from train import images, loop

ROOT = Path(__file__).parent.parent.parent
FEW = ("data.num_train=32", "data.num_test=16", "optim.steps=8")


def call(*words):
    """`python -m eval WORDS` in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "250"}
    return subprocess.run(
        [sys.executable, "-m", "eval", *map(str, words)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
    )


def call_here(monkeypatch, *words):
    """The same in this process, as `__main__` runs it."""
    monkeypatch.setattr(sys, "argv", ["eval", *map(str, words)])
    monkeypatch.delitem(sys.modules, "eval.__main__", raising=False)
    runpy.run_module("eval", run_name="__main__")


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Folder and process of `python -m eval compare smoke` with two seeds."""
    folder = tmp_path_factory.mktemp("main") / "new" / "out"
    methods = "softvq,ema,lucid-ema"
    words = ["compare", "smoke", *FEW, "--out", folder, "--seeds", 2, "--methods", methods]
    return folder, call(*words)


def test_compare_leaves_all_its_files(compared):
    folder, done = compared
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    names = {entry.name for entry in folder.iterdir()}
    assert {"results.json", "pictures.safetensors", "report.html", "runs"} <= names
    figures = [path.read_bytes()[:8] for path in folder.glob("*.png")]
    assert len(figures) >= 5
    assert set(figures) == {b"\x89PNG\r\n\x1a\n"}
    runs = {entry.name for entry in (folder / "runs").iterdir()}
    assert runs == {f"{m}-seed{s}" for m in ("softvq", "ema", "lucid-ema") for s in (0, 1)}
    assert [path.name for path in folder.rglob("*.partial")] == []


def test_compare_writes_every_run(compared):
    results = json.loads((compared[0] / "results.json").read_text())
    seeds = {name: [run["seed"] for run in m["seeds"]] for name, m in results["methods"].items()}
    assert seeds == {"softvq": [0, 1], "ema": [0, 1], "lucid-ema": [0, 1]}
    images = [each["images"] for each in results["methods"]["softvq"]["seeds"][0]["evals"]]
    assert images == [0, 16, 32, 64, 128]
    assert results["command"].startswith("python -m eval compare smoke data.num_train=32 ")
    assert results["command"].endswith("--seeds 2 --methods softvq,ema,lucid-ema")


def test_compare_prints_progress_the_table_and_the_page(compared):
    folder, done = compared
    assert f"Report: {folder / 'report.html'}" in done.stdout
    assert re.search(r"lucid-ema seed 1 +step +8 ", done.stdout)
    assert "SoftVQ" in done.stdout
    assert "textures (drawn, not photographs)" in done.stdout


def test_measure_prints_the_measures_of_a_checkpoint(compared, monkeypatch, capsys):
    folder, _ = compared
    results = json.loads((folder / "results.json").read_text())
    final = results["methods"]["ema"]["seeds"][1]["final"]
    path = folder / "runs" / "ema-seed1" / loop.CHECKPOINT
    call_here(monkeypatch, "measure", path, "--source", "textures", "--num-images", 16)
    text = capsys.readouterr().out
    assert "textures (drawn, not photographs) test, 16 pictures" in text
    assert re.search(rf"hard PSNR dB +{final['psnr_hard']:.2f}\n", text)
    assert "s of processor time; memory grew by" in text


def test_report_writes_the_page_again(compared, monkeypatch, capsys):
    folder, _ = compared
    before = (folder / "report.html").read_bytes()
    (folder / "report.html").unlink()
    call_here(monkeypatch, "report", folder)
    assert f"Report: {folder / 'report.html'}" in capsys.readouterr().out
    assert (folder / "report.html").stat().st_size == pytest.approx(len(before), rel=0.2)


@pytest.fixture
def _no_page(monkeypatch):
    """Figures take seconds, and `compared` has them."""
    monkeypatch.setattr(report, "write_report", lambda folder: folder)


@pytest.mark.usefixtures("_no_page")
def test_the_same_command_again_gives_the_same(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(loop, "find_commit", lambda: "abc")
    words = ("compare", "smoke", *FEW, "--out", tmp_path, "--methods", "softvq,ema")
    call_here(monkeypatch, *words)
    first = json.loads((tmp_path / "results.json").read_text())
    capsys.readouterr()
    call_here(monkeypatch, *words)
    assert json.loads((tmp_path / "results.json").read_text()) == first
    assert "ema seed 0: finished before, taken as it is" in capsys.readouterr().out


@pytest.mark.usefixtures("_no_page")
def test_the_folder_is_named_after_the_preset(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    call_here(monkeypatch, "compare", "smoke", *FEW, "--methods", "ema")
    assert (tmp_path / "runs" / "compare-smoke" / "results.json").is_file()


def test_ctrl_c_says_what_the_same_command_does(monkeypatch, tmp_path):
    def interrupt(comparison):
        raise KeyboardInterrupt

    monkeypatch.setattr(Comparison, "run", interrupt)
    with pytest.raises(SystemExit, match=r"Stopped. The same command goes on from what was saved"):
        call_here(monkeypatch, "compare", "smoke", *FEW, "--out", tmp_path)


@pytest.mark.usefixtures("_no_page")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_a_signal_in_a_step_saves_it_and_the_same_command_goes_on(
    monkeypatch, capsys, tmp_path, number
):
    monkeypatch.setattr(loop, "find_commit", lambda: "abc")
    words = ("compare", "smoke", *FEW, "checkpoint_every=1000", "--out", tmp_path)
    words = (*words, "--methods", "softvq,ema")
    step = loop.Run._step

    def stop(run, place, journal):
        if (run.config.method.name, place) == ("ema", 2):
            signal.raise_signal(number)
        step(run, place, journal)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Run, "_step", stop)
        with pytest.raises(SystemExit, match=r"Stopped. The same command goes on from what was"):
            call_here(monkeypatch, *words)
    capsys.readouterr()
    call_here(monkeypatch, *words)
    told = capsys.readouterr().out
    assert "softvq seed 0: finished before, taken as it is" in told
    assert "ema seed 0: going on after step 3 of 8" in told
    assert list(json.loads((tmp_path / "results.json").read_text())["methods"]) == ["softvq", "ema"]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["smok"],
            "error: preset is 'smok'; valid are: quick, reference, public, full, smoke. Did you",
        ),
        (["smoke", "num_code=3"], "error: key is 'num_code'; valid are: preset, data.source, "),
        (["smoke", "num_codes=x"], "net.num_codes: Input should be a valid integer"),
        (
            ["smoke", "--methods", "ema,sofvq"],
            "error: method is 'sofvq'; valid are: softvq, softvq-hard, ste",
        ),
        (["smoke", "--seeds", "0"], "error: seeds must be a whole number of at least 1; got 0."),
        (["smoke", "method.name=ema"], "error: method.name and seed are what a comparison varies"),
        (["smoke", "seed=3"], "error: method.name and seed are what a comparison varies: give"),
        (["smoke", "data=folder", "data.path=/no"], "error: path '/no' is not a folder."),
        (["smoke", "--methods", "lucid-fsq"], "error: num_codes for FSQ is '32'; valid are: 512"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_one_line_and_writes_nothing(monkeypatch, tmp_path, words, message):
    with pytest.raises(SystemExit, match=re.escape(message)) as caught:
        call_here(monkeypatch, "compare", *words, "--out", tmp_path / "out")
    assert str(caught.value).startswith("error: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.bad_input
def test_an_error_is_on_stderr_with_exit_code_one(tmp_path):
    done = call("compare", "smok", "--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: preset is 'smok'; valid are: quick, reference, ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.bad_input
def test_no_network_and_no_cache_is_one_error(monkeypatch, tmp_path):
    def refuse(*arguments, **options):
        raise FetchError("cifar-10 could not be had; put it there.")

    monkeypatch.setattr(images, "load_images", refuse)
    with pytest.raises(SystemExit, match=r"error: cifar-10 could not be had; put it there."):
        call_here(monkeypatch, "compare", "quick", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.bad_input
def test_a_report_of_no_comparison_is_refused(monkeypatch, tmp_path):
    with pytest.raises(SystemExit, match=re.escape(f"error: {tmp_path} holds no results.json.")):
        call_here(monkeypatch, "report", tmp_path)
