"""Two real processes of torchrun give what one gives on the union of their data."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from softvq import SoftVQ
from tests.contracts.quantizer import waves
from tests.processes import job

ROOT = Path(__file__).parent.parent.parent
NAMES = list(job.jobs())
LIMIT_S = 300


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Answers of both processes by job."""
    folder = tmp_path_factory.mktemp("torchrun")
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("torchrun")),
            "--standalone",
            "--nproc-per-node=2",
            job.__file__,
            str(folder),
        ],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def of_both(both, name):
    """A job's answers; an error in either process is one here."""
    for rank, answers in enumerate(both):
        assert not isinstance(answers[name], str), f"process {rank}: {answers[name]}"
    return [answers[name] for answers in both]


def as_tensors(answer):
    return {
        name: torch.tensor(value, dtype=torch.float64).nan_to_num(7e7)
        for name, value in answer.items()
    }


def assert_same(first, second, **tolerance):
    torch.testing.assert_close(as_tensors(first), as_tensors(second), **tolerance)


@pytest.mark.parametrize("broadcast_buffers", [True, False], ids=["broadcast", "no broadcast"])
@pytest.mark.parametrize("kind", list(job.UNION))
def test_two_processes_are_one_on_the_union(both, kind, broadcast_buffers):
    name = f"union, {kind}, {broadcast_buffers}"
    first, second = of_both(both, name)
    assert_same(first, second, rtol=0, atol=0)
    alone = job.union(0, 1, kind, broadcast_buffers)
    assert first["revived"] == alone["revived"]
    # Sums of halves are added in another order, and Adam turns a gradient of 1e-9 into a step.
    assert_same(first, alone, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("cut", [3, 20, 40])
@pytest.mark.parametrize("kind", ["hard value", "averages"])
def test_statistics_of_unequal_batches_are_those_of_the_union(both, kind, cut):
    first, second = of_both(both, f"unequal, {kind}, {cut}")
    assert_same(first, second, rtol=0, atol=0)
    assert_same(first, job.unequal(0, 1, kind, cut), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", list(job.UNION))
def test_a_process_without_rows_hangs_nobody(both, kind):
    first, second = of_both(both, f"no rows, {kind}")
    assert_same(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("member", list(job.MEMBERS))
def test_every_member_ends_in_one_codebook_and_leaves_no_parameter_unused(both, member):
    first, second = of_both(both, f"family, {member}")
    assert_same(first, second, rtol=0, atol=0)


def test_no_collective_is_called_in_eval_mode(both):
    assert of_both(both, "evaluation") == [[], []]


def test_a_group_that_is_made_after_the_module_is_seen(both):
    first, second = of_both(both, "early")
    assert_same(first, second, rtol=0, atol=0)
    alone = SoftVQ(8, 4)
    alone(waves(job.ROWS, 4))
    alone.update_()
    assert_same(first, job.to_plain(alone), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["hard value", "averages"])
def test_beside_a_sharded_net_the_quantizer_is_one(both, kind):
    first, second = of_both(both, f"sharded, {kind}")
    assert_same(first, second, rtol=0, atol=0)
    assert_same(first, job.sharded(0, 1, kind), rtol=2e-3, atol=2e-3)
