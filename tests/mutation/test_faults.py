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


def test_a_fault_that_no_test_sees_survives(tmp_path, monkeypatch):
    (tmp_path / "code.py").write_text("RIGHT = 1\n")
    (tmp_path / "test_code.py").write_text("import code\n\n\ndef test_it():\n    assert True\n")
    fault = run.Fault(name="f", file="code.py", old="1", new="2", tests="test_code.py")
    monkeypatch.setattr(run, "run_tests", lambda *_: run.subprocess.CompletedProcess([], 0, "", ""))
    assert run.try_fault(fault, tmp_path) == "survived"
    assert (tmp_path / "code.py").read_text() == "RIGHT = 1\n"
    failed = "FAILED test_code.py::test_it - assert False"
    monkeypatch.setattr(
        run, "run_tests", lambda *_: run.subprocess.CompletedProcess([], 1, failed, "")
    )
    assert run.try_fault(fault, tmp_path) == "caught by test_it"
