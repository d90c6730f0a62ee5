"""`torchrun ... -m train`: a signal to one process stops all, and any number of them goes on."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from train import __main__ as command
from train.checkpoint import read_state
from train.loop import CHECKPOINT, Run

ROOT = Path(__file__).parent.parent.parent
LIMIT_S = 300
STEPS = 40
WORDS = (f"optim.steps={STEPS}", "checkpoint_every=1000", "data.num_train=64", "data.num_test=24")


def launch(out, *words):
    return subprocess.Popen(
        [
            str(Path(sys.executable).with_name("torchrun")),
            "--standalone",
            "--nproc-per-node=2",
            *("-m", "train", "smoke", *WORDS, "--out", str(out), *words),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(ROOT),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def find_rank(agent, rank):
    """The process of a rank among the children of torchrun."""
    for child in Path(f"/proc/{agent}/task/{agent}/children").read_text().split():
        if f"RANK={rank}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    raise AssertionError(f"no process of rank {rank}")


def stop_at(step, monkeypatch):
    monkeypatch.setattr(Run, "_agree", lambda run, interrupted: run.done == step)


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT], ids=str)
def test_one_two_and_one_process_end_where_one_does(tmp_path, monkeypatch, number):
    with monkeypatch.context() as patch:
        stop_at(7, patch)
        with pytest.raises(SystemExit, match="saved after step 7"):
            command.main("smoke", WORDS, out=tmp_path)

    process = launch(tmp_path, "--resume")
    try:
        for line in process.stdout:
            if re.search(r"step +10 ", line):
                break
        os.kill(find_rank(process.pid, 1), number)  # and not to the one that writes
        _, errors = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    done = read_state(tmp_path / CHECKPOINT)["step"]
    assert f"Stopped; saved after step {done}. Go on with the same command" in errors, errors
    assert 10 <= done < STEPS
    assert process.returncode != 0

    command.main("smoke", WORDS, out=tmp_path, resume=True)
    state = read_state(tmp_path / CHECKPOINT)
    assert [each["step"] for each in state["evals"]] == [0, 5, 10, 20, 40]
    command.main("smoke", WORDS, out=tmp_path / "unbroken")
    alone = read_state(tmp_path / "unbroken" / CHECKPOINT)
    # The halves of a batch draw, and even their use, as halves do: alike, not equal.
    last, expected = (each["evals"][-1]["psnr_hard"] for each in (state, alone))
    assert abs(last - expected) < 0.5
    assert [each["step"] for each in alone["losses"]] == [each["step"] for each in state["losses"]]
