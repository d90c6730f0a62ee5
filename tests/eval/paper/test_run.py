import json
import os
from functools import partial

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
