"""The pages of docs/: their Python blocks run in order, one session a page; they build strictly."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import softvq

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
TEXTS = {str(page.relative_to(DOCS)): page.read_text("utf-8") for page in DOCS.rglob("*.md")}


@pytest.mark.parametrize("page", sorted(name for name, text in TEXTS.items() if BLOCK.search(text)))
def test_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {"__name__": "page"}
    for block in BLOCK.finditer(TEXTS[page]):
        above = TEXTS[page].count("\n", 0, block.start(1))
        exec(compile("\n" * above + block[1], DOCS / page, "exec"), names)


def test_the_format_is_read_as_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    vq = softvq.HardVQ(8, 4)
    vq.start_(torch.sin(torch.arange(80.0)).reshape(20, 4))
    softvq.export_codebook(vq.eval(), "codebook.safetensors")
    (block,) = BLOCK.findall((ROOT / "softvq/export/FORMAT.md").read_text("utf-8"))
    names = {}
    exec(compile(block, "FORMAT.md", "exec"), names)
    assert names["codes"].shape == (8, 4)
    assert names["facts"]["num_codes"] == 8


def test_there_are_blocks():
    assert BLOCK.search(TEXTS["tutorial.md"])


def test_every_public_name_is_in_the_reference():
    named = {
        name.rpartition(".")[2]
        for page, text in TEXTS.items()
        if page.startswith("reference/")
        for name in re.findall(r"^::: (\S+)", text, flags=re.MULTILINE)
    }
    assert set(softvq.__all__) - named == set()


def test_pages_build_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="mkdocs is in the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "reference/quantizers.html").is_file()
