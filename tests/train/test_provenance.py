import re
import subprocess

import pytest
import torch

from train import provenance
from train.provenance import find_commit, find_versions, name_device


def answer(**outputs):
    """A git that gives these outputs by subcommand, None for a failure."""

    def run(command, **options):
        subcommand = next(word for word in command[3:] if not word.startswith("-"))
        text = outputs[subcommand.replace("-", "_")]
        return subprocess.CompletedProcess(command, 0 if text is not None else 128, text or "")

    return run


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        ({"rev_parse": "abc123\n", "status": ""}, "abc123"),
        ({"rev_parse": "abc123\n", "status": " M train/loop.py\n"}, "abc123-dirty"),
        ({"rev_parse": None}, "unknown"),
    ],
    ids=["clean", "changed", "no repository"],
)
def test_the_commit_says_whether_files_differ(monkeypatch, outputs, expected):
    monkeypatch.setattr(provenance.subprocess, "run", answer(**outputs))
    assert find_commit() == expected


@pytest.mark.parametrize(
    ("changed", "dirty"),
    [
        ("train/loop.py", True),
        ("pyproject.toml", True),
        ("eval/report.html.j2", True),
        ("samples/prior.png", False),
        ("docs/faq.md", False),
        ("eval/NOTES.md", False),
        ("tests/test_files.py", False),
    ],
)
def test_only_code_makes_a_commit_dirty(tmp_path, monkeypatch, changed, dirty):
    def git(*words):
        subprocess.run(["git", "-C", tmp_path, *words], check=True, capture_output=True)

    for name in (changed, "train/provenance.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("before")
    git("init")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "first")
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "train" / "provenance.py"))
    assert not find_commit().endswith("-dirty")
    (tmp_path / changed).write_text("after")
    assert find_commit().endswith("-dirty") == dirty


def test_without_git_the_commit_is_unknown(monkeypatch):
    def run(*arguments, **options):
        raise FileNotFoundError("git")

    monkeypatch.setattr(provenance.subprocess, "run", run)
    assert find_commit() == "unknown"


def test_the_real_commit_has_its_form():
    assert re.fullmatch(r"[0-9a-f]{12}(-dirty)?|unknown", find_commit())


def test_versions_are_of_what_is_installed():
    versions = find_versions()
    assert versions["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert versions.keys() == {"python", *provenance.PACKAGES}


def test_a_package_that_is_missing_is_told(monkeypatch):
    monkeypatch.setattr(provenance, "PACKAGES", ("no-such-package",))
    assert find_versions()["no-such-package"] == "not installed"


def test_the_device_is_named_with_its_threads():
    assert name_device(torch.device("cpu")).endswith(f", {torch.get_num_threads()} threads")
