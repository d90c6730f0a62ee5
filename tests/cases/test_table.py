"""`tests/CASES.md` names tests that exist, and leaves no case out."""

import ast
import functools
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TABLE = (TESTS / "CASES.md").read_text(encoding="utf-8")
SHORT = {
    "Q": ["tests/nn/test_soft.py::TestSoftVQ", "tests/nn/test_hard.py::TestHardVQ"],
    "B": [
        f"tests/functional/backends/test_{name}.py::Test{name.title()}"
        for name in ("reference", "chunked", "native")
    ],
    "F": ["tests/nn/test_arrangement.py::TestFamily"],
}
CASES = [*map(str, range(1, 27)), "27b", "27d", "27f", "27g"]


def named():
    """Every node id of the table, with short forms written out."""
    found = re.findall(r"`([\w/.]+::[\w:]+)`", TABLE)
    for each in found:
        head, _, rest = each.partition("::")
        yield from (f"{whole}::{rest}" for whole in SHORT.get(head, [head]))


@functools.cache
def read(path):
    return ast.parse(path.read_text(encoding="utf-8")).body


def functions(body):
    return {each.name for each in body if isinstance(each, ast.FunctionDef)}


def classes(paths):
    return {
        each.name: each for path in paths for each in read(path) if isinstance(each, ast.ClassDef)
    }


def held_by(kind, known):
    """Tests of a class and of the suites that it inherits."""
    own = functions(kind.body)
    bases = [base.id for base in kind.bases if isinstance(base, ast.Name)]
    return own.union(*(held_by(known[base], known) for base in bases if base in known))


def exists(node):
    file, *rest = node.split("::")
    path = TESTS.parent / file
    if not path.is_file():
        return False
    if len(rest) == 1:
        return rest[0] in functions(read(path))
    known = classes([*(TESTS / "contracts").glob("*.py"), path])
    return rest[0] in known and rest[1] in held_by(known[rest[0]], known)


@pytest.mark.parametrize("node", sorted(set(named())))
def test_a_test_that_is_named_exists(node):
    assert exists(node)


@pytest.mark.parametrize(
    "node",
    [
        "tests/cases/test_none.py::test_it",
        "tests/cases/test_table.py::test_none",
        "tests/nn/test_soft.py::TestSoftVQ::test_none",
        "tests/nn/test_soft.py::TestNone::test_eval_changes_nothing",
    ],
)
def test_one_that_does_not_exist_is_seen(node):
    assert not exists(node)


def test_no_case_is_left_out():
    assert list(dict.fromkeys(re.findall(r"^\| (\d+\w?) \|", TABLE, re.MULTILINE))) == CASES
