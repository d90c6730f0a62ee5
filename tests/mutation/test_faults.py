"""The faults fit the code as it is; `make mutate` tries them."""

import shlex

import pytest

from tests.mutation import run
from tests.mutation.faults import FAULTS


def test_there_are_thirty_each_with_its_own_name():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) == 30


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_changes_its_line_and_names_tests_that_are_there(fault):
    text = (run.ROOT / fault.file).read_text()
    assert run.apply(fault, text) != text
    files = [part for part in shlex.split(fault.tests) if part.endswith(".py")]
    assert files
    assert all((run.ROOT / name).is_file() for name in files)


def test_a_line_that_is_gone_is_told():
    with pytest.raises(ValueError, match="stands 0 times"):
        run.apply(FAULTS[0], "nothing")


@pytest.mark.parametrize(
    ("code", "written", "outcome"),
    [
        (0, "1 passed", "survived"),
        (1, "FAILED t.py::test_it[a] - assert False", "caught by test_it[a]"),
        (-14, "", "caught: it never ended"),
        (2, "no such file", "no run (2): no such file"),
    ],
    ids=["survived", "caught", "endless", "broken"],
)
def test_what_becomes_of_a_fault_is_told(tmp_path, monkeypatch, code, written, outcome):
    (tmp_path / "code.py").write_text("RIGHT = 1\n")
    fault = run.Fault(name="f", file="code.py", old="1", new="2", tests="t.py")
    seen = []

    def stand_in(tree, arguments):
        seen.append((tree / "code.py").read_text())
        return code, written

    monkeypatch.setattr(run, "run_tests", stand_in)
    monkeypatch.setattr(run.sys, "dont_write_bytecode", run.sys.dont_write_bytecode)
    assert run.try_fault(fault, tmp_path) == outcome
    assert seen == ["RIGHT = 2\n"]
    assert (tmp_path / "code.py").read_text() == "RIGHT = 1\n"
