import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from softvq.models import load_model
from train import __main__ as command
from train.checkpoint import read_state
from train.loop import CHECKPOINT

ROOT = Path(__file__).parent.parent.parent
FEW = ("data.num_train=64", "data.num_test=24")


def train_here(monkeypatch, *words):
    """`python -m train WORDS` in this process, as `__main__` runs it."""
    monkeypatch.setattr(sys, "argv", ["train", *map(str, words)])
    monkeypatch.delitem(sys.modules, "train.__main__")
    runpy.run_module("train", run_name="__main__")


def test_ctrl_c_says_how_to_go_on_and_resume_finishes(start_process, monkeypatch, capsys, tmp_path):
    words = ("smoke", "optim.steps=40", "checkpoint_every=1000", *FEW, "--out", tmp_path)
    process = start_process("-m", "train", *words)
    for line in process.stdout:
        if re.search(r"step +0 ", line):
            break
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" not in errors
    done = read_state(tmp_path / CHECKPOINT)["step"]
    assert f"Stopped; saved after step {done}. Go on with the same command and --resume." in errors
    assert 1 <= done < 40
    assert not (tmp_path / "model.safetensors").exists()

    train_here(monkeypatch, *words, "--resume")
    assert "step     40" in capsys.readouterr().out
    state = read_state(tmp_path / CHECKPOINT)
    assert [each["step"] for each in state["evals"]] == [0, 5, 10, 20, 40]
    model = load_model(tmp_path / "model.safetensors")
    assert model.quantizer.updates == 40


TWO_PROCESSES = """
import sys
from pathlib import Path

from safetensors.torch import save_file

from train import __main__ as command

runs = []


class Watched(command.Run):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        runs.append(self)


command.Run = Watched
for method in ("softvq", "ema"):
    out = Path(sys.argv[1]) / method
    command.main("smoke", (f"method.name={method}", *sys.argv[2:]), out=out)
    run = runs[-1]
    assert run.accelerator.num_processes == 2
    weights = {name: each.clone() for name, each in run.result.model.state_dict().items()}
    save_file(weights, out / f"process{run.accelerator.process_index}.safetensors")
    runs.clear()
    del run
"""


@pytest.fixture(scope="module")
def trained_by_two(tmp_path_factory):
    """Folders by method that two processes trained into, and what they printed."""
    folder = tmp_path_factory.mktemp("two")
    script = folder / "two.py"
    script.write_text(TWO_PROCESSES)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", script]
    done = subprocess.run(
        [sys.executable, *launch, folder, "optim.steps=12", *FEW],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.mark.parametrize("method", ["softvq", "ema"])
def test_two_processes_end_with_the_same_model(trained_by_two, method):
    out = trained_by_two[0] / method
    one, two = (load_file(out / f"process{rank}.safetensors") for rank in (0, 1))
    assert [name for name in one if not torch.equal(one[name], two[name])] == []
    written = load_file(out / "model.safetensors")
    assert [name for name in one if not torch.equal(one[name], written[name])] == []
    assert read_state(out / CHECKPOINT)["step"] == 12


def test_of_two_processes_one_speaks(trained_by_two):
    _, output = trained_by_two
    assert output.count("step     12") == 2  # once a method
    assert output.count("Model: ") == 2


def test_a_model_of_softvq_is_written(capsys, tmp_path):
    command.main("smoke", ("optim.steps=1", *FEW), out=tmp_path)
    assert f"Model: {tmp_path / 'model.safetensors'}" in capsys.readouterr().out
    assert load_model(tmp_path / "model.safetensors").quantizer.is_started


def test_a_peer_is_trained_and_not_exported(capsys, tmp_path):
    command.main("smoke", ("optim.steps=1", "method.name=lucid-ema", *FEW), out=tmp_path)
    assert "Model: " not in capsys.readouterr().out
    assert {entry.name for entry in tmp_path.iterdir()} == {CHECKPOINT, "tensorboard"}


@pytest.mark.parametrize("saved", [True, False])
def test_what_is_said_after_ctrl_c_is_true(tmp_path, saved):
    if saved:
        command.main("smoke", ("optim.steps=1", *FEW), out=tmp_path)
    text = command._say_stopped(tmp_path)
    assert ("saved after step 1" in text) is saved
    assert ("nothing to go on from" in text) is not saved


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["smok"],
            "error: preset is 'smok'; valid are: quick, reference, public, full, smoke. Did you",
        ),
        (["smoke", "optim.stps=3"], "error: key is 'optim.stps'; valid are: preset, data.source"),
        (["smoke", "optim.steps=x"], "optim.steps: Input should be a valid integer"),
        (
            ["smoke", "method.name=emma"],
            "error: method is 'emma'; valid are: softvq, softvq-hard, ste, ema,",
        ),
        (["smoke", "method.options.x=1"], "error: method.options {'x': 1} do not fit method"),
        (["smoke", "optim.batch_size=300"], "error: batch_size is 300, but there are only 256"),
        (["smoke", "data=folder", "data.path=/no"], "error: path '/no' is not a folder."),
        (["smoke", "--resume"], f"{CHECKPOINT} is no file: nothing to load."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_one_line_and_writes_nothing(monkeypatch, tmp_path, words, message):
    with pytest.raises(SystemExit, match=re.escape(message)) as caught:
        train_here(monkeypatch, *words, "--out", tmp_path / "out")
    assert str(caught.value).startswith("error: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.bad_input
def test_a_folder_in_use_is_refused(monkeypatch, tmp_path):
    command.main("smoke", ("optim.steps=1", *FEW), out=tmp_path)
    message = "holds a checkpoint already: add --resume to go on from it, or give another folder."
    with pytest.raises(SystemExit, match=message):
        train_here(monkeypatch, "smoke", "--out", tmp_path)
