"""Part 7 in short: `python -m tests.cases.long_run` is the long form."""

from dataclasses import replace

import pytest
import torch

from tests.cases.long_run import faults, run

STEPS = 300


@pytest.mark.filterwarnings("ignore::softvq.CodebookWarning")
@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_counters_are_exact_and_nothing_creeps(kind):
    assert faults(run(kind, steps=STEPS, looks=3), kind=kind, steps=STEPS) == []


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore::softvq.CodebookWarning")
# Dynamo looks at .grad of what enters a graph after the second start, and hides what torch says.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_a_compiled_run_is_the_eager_one_but_for_rounding():
    torch._dynamo.reset()
    eager, compiled = (run("soft", steps=60, backend=each, looks=3) for each in (None, "aot_eager"))
    torch._dynamo.reset()
    # The graphs themselves are made in this run, and stay: memory is another matter.
    quiet = replace(compiled, resident=[0.0] * 3, tensors=[0] * 3)
    assert faults(quiet, kind="soft", steps=60) == []
    assert compiled.errors == pytest.approx(eager.errors, rel=1e-3)
