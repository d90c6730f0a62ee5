"""The pages of docs/: their Python blocks run in order, one session a page; they build strictly.

What they name is there: files by their paths, and names by the files that they stand beside.
"""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import softvq
from eval.results import (
    HARD_MEASURES,
    SOFT_MEASURES,
    MethodResult,
    Results,
    SeedResult,
    TrainCurve,
)
from softvq.data import TensorImages
from softvq.measures import Conditions
from softvq.models import VQVAE, VQVAEConfig
from train.evaluate import evaluate
from train.loop import Run
from train.presets import smoke
from train.values import override

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
PRIOR = re.compile(r"^python -m train\.prior train .*$", flags=re.MULTILINE)
TEXTS = {str(page.relative_to(DOCS)): page.read_text("utf-8") for page in DOCS.rglob("*.md")}
PATHS = ("softvq", "train", "eval", "tests", "samples", "docs", "functional", "nn", "hosts", "data")
PATH = re.compile(rf"(?<![\w/.-])(?:{'|'.join(PATHS)})/[\w./-]*\w")
DOTTED = re.compile(r"`((?:softvq|train|eval|functional|nn)(?:\.\w+){2,})(?:\([^`]*\))?`")
PLACEHOLDER = re.compile(r"NAME|PATH")
NAMING = {
    **TEXTS,
    **{name: (ROOT / name).read_text("utf-8") for name in ("README.md", "CONTRIBUTING.md")},
}


@pytest.mark.parametrize("page", sorted(name for name, text in TEXTS.items() if BLOCK.search(text)))
def test_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {"__name__": "page"}
    for block in BLOCK.finditer(TEXTS[page]):
        above = TEXTS[page].count("\n", 0, block.start(1))
        exec(compile("\n" * above + block[1], DOCS / page, "exec"), names)
    for command in PRIOR.findall(TEXTS[page]):
        train_prior(command, tmp_path)


def train_prior(command, folder):
    """Run a command of a page on what its blocks left, with a smaller net and fewer steps."""
    shorter = re.sub(r"optim\.steps=\d+", "optim.steps=2", command)
    small = ["net.layers=1", "net.width=16", "net.heads=2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *shorter.split()[1:], *small],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Unseen tokens: " in done.stdout


def test_every_command_that_trains_a_prior_is_run():
    """One in the midst of a line would be run by nobody."""
    named = {page: text.count("train.prior train") for page, text in TEXTS.items()}
    run = {page: len(PRIOR.findall(text)) for page, text in TEXTS.items()}
    assert named == run
    assert run["tutorial.md"] == 1


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


def find_keys(heading):
    """Names in the first column of the table of docs/formats.md with that heading."""
    table = TEXTS["formats.md"].split(f"\n| {heading} |")[1].split("\n\n")[0]
    return {
        name
        for row in table.splitlines()[2:]
        for name in re.findall(r"`([^`]+)`", row.split("|")[1])
    }


def measure(quantizer):
    """Every measure that a run has of such a quantizer, of two small pictures."""
    pictures = torch.arange(2 * 3 * 16 * 16).remainder(256).to(torch.uint8).reshape(2, 3, 16, 16)
    net = VQVAEConfig(dim=8, hidden=8, residual_hidden=4, blocks=1)
    return set(evaluate(VQVAE(quantizer, net), TensorImages(pictures, name="ramp")).measures)


def test_every_measure_of_results_is_in_the_table():
    options = {"layout": "channels_first"}
    own = measure(softvq.SoftVQ(8, 8, **options))
    several = measure(softvq.ResidualVQ([softvq.HardVQ(8, 8)] * 2, **options))
    assert own < several
    assert {*HARD_MEASURES, *SOFT_MEASURES} < own | {"seconds"}
    own |= {name for name in several if name.endswith("_stage0")}
    assert find_keys("measure") == {"images", "step", "seconds"} | own


def test_a_record_of_a_run_has_what_the_table_says(tmp_path):
    """Beside the measures: what a run puts before them."""
    config = override(smoke(), ["optim.steps=1", "optim.batch_size=2", "data.num_lpips=0"])
    (*_, record) = Run(config, quiet=True).train().evals
    assert find_keys("measure") >= record.keys() >= {"images", "step", "seconds"}


@pytest.mark.parametrize(
    ("heading", "kind"),
    [
        ("key of the file", Results),
        ("key of a method", MethodResult),
        ("key of a run", SeedResult),
    ],
    ids=["file", "method", "run"],
)
def test_the_structure_of_results_is_in_the_tables(heading, kind):
    assert find_keys(heading) == {*kind.__required_keys__, *kind.__optional_keys__}


def test_what_conditions_and_curves_hold_is_named():
    rows = TEXTS["formats.md"].split("| key of a run |")[1].split("\n\n")[0]
    wanted = {*Conditions._fields, "against", "tokens", *TrainCurve.__required_keys__}
    assert {name for name in wanted if f"`{name}`" not in rows} == set()


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


def find_named(text):
    """Of paths and dotted names in a text those that lead nowhere."""
    paths = [path for path in PATH.findall(text) if not PLACEHOLDER.search(path)]
    lost = [path for path in paths if not any((ROOT / at / path).exists() for at in ("", "softvq"))]
    return lost + [name for name in DOTTED.findall(text) if not resolves(name)]


def resolves(dotted):
    """Whether modules and attributes of that name are there, ``softvq.`` left out or not."""
    first, *rest = (dotted if dotted.split(".")[0] in PATHS[:3] else f"softvq.{dotted}").split(".")
    held, module = importlib.import_module(first), first
    for name in rest:
        module = f"{module}.{name}"
        try:
            held = getattr(held, name, None) or importlib.import_module(module)
        except ImportError:
            return False
    return True


@pytest.mark.parametrize("page", sorted(NAMING))
def test_what_a_page_names_is_there(page):
    assert find_named(NAMING[page]) == []


@pytest.mark.parametrize(
    "line",
    ["`softvq/nn/gone.py`", "see nn/gone.py", "`nn.base.Gone.forward`", "`softvq.nn.base.gone`"],
)
def test_what_is_not_there_is_found(line):
    assert len(find_named(line)) == 1


def test_names_in_the_map_stand_in_the_files_before_them():
    """A row of the table of docs/architecture.md: a path, then names of what is in it."""
    rows = re.findall(r"^\| [^|`]+ \| (.*) \|$", TEXTS["architecture.md"], flags=re.MULTILINE)
    lost, seen = [], 0
    for row in rows:
        source = ""
        for word in re.findall(r"`([^`]+)`", row):
            if word.endswith(".py"):
                at = next(at for at in ("", "softvq") if (ROOT / at / word).exists())
                source = (ROOT / at / word).read_text("utf-8")
            elif not word.endswith("/"):
                seen += 1
                lost += [word for part in word.split(".") if not re.search(rf"\b{part}\b", source)]
    assert lost == []
    assert seen > 5


def test_pages_build_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="mkdocs is in the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "reference/quantizers.html").is_file()
