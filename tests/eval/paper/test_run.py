import json
import multiprocessing
import os
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from eval.paper.run import EXPERIMENTS, TIMED, run_beside, run_experiments


def leave(name, folder):
    """Say where and how this ran; one of the names is bad."""
    if name == "bad":
        raise ValueError("this one cannot be done")
    held = {"process": os.getpid(), "threads": torch.get_num_threads()}
    (folder / name).write_text(json.dumps(held))


def test_several_run_in_processes_of_one_thread(tmp_path):
    run_beside(partial(leave, folder=tmp_path), ["a", "b"], jobs=2)
    found = [json.loads((tmp_path / name).read_text()) for name in ("a", "b")]
    assert [each["threads"] for each in found] == [1, 1]
    assert os.getpid() not in {each["process"] for each in found}


def wait_for_ever(name, folder):
    (folder / "begun").write_text(str(os.getpid()))
    time.sleep(600)


def begin(folder):
    run_beside(partial(wait_for_ever, folder=folder), ["a", "b"], jobs=1)


def test_a_killed_command_leaves_no_work_behind(tmp_path):
    command = multiprocessing.get_context("spawn").Process(target=begin, args=(tmp_path,))
    command.start()
    begun = tmp_path / "begun"
    wait_until(lambda: begun.exists() and begun.read_text())
    worker = int(begun.read_text())
    command.kill()
    command.join()
    wait_until(lambda: not is_alive(worker))


def wait_until(holds):
    end = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.1)


def is_alive(process):
    """Whether it runs; one that ended and that nobody has asked for is none that runs."""
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_an_error_in_one_of_them_is_raised(tmp_path):
    with pytest.raises(ValueError, match="this one cannot be done"):
        run_beside(partial(leave, folder=tmp_path), ["a", "bad"], jobs=1)


def test_what_takes_times_runs_alone_and_last():
    assert set(TIMED) <= set(EXPERIMENTS)
    assert list(EXPERIMENTS)[-len(TIMED) :] == list(TIMED)


@pytest.mark.bad_input
def test_no_jobs_are_refused(tmp_path):
    with pytest.raises(ValueError, match="jobs must be a whole number of at least 1; got 0"):
        run_experiments(["stack"], sizes="smoke", folder=tmp_path, jobs=0)
