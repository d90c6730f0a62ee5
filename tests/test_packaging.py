"""What is built to be installed: the wheel holds the library whole, the sdist all but the papers.

`make dist` installs both into an empty environment, which takes minutes and a network.
"""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import softvq

ROOT = Path(__file__).parent.parent
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
IMPORT_LIMIT_S = 0.3


def sources(*folders):
    """Files of these folders, as their paths from the root."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT)) for path in found if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_wheel_is_the_library_and_nothing_else(dist):
    (wheel,) = dist.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == sources("softvq")
    assert {"softvq/py.typed", "softvq/functional/backends/native_tile.h"} <= names


def test_the_sdist_can_be_tested(dist):
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    folders = sources("softvq", "train", "eval", "tests", "samples", "docs")
    assert folders - names == set()
    assert {"Makefile", "mkdocs.yml", ".ci/constraints.txt", "CONTRIBUTING.md"} <= names


def test_the_version_is_one():
    assert f'version = "{softvq.__version__}"' in PYPROJECT


def test_import_costs_little_over_torch():
    """In processor time, and the least of a few tries: the cores are shared."""
    statement = "import torch, time; t = time.process_time(); import softvq; "
    command = [sys.executable, "-c", statement + "print(time.process_time() - t)"]
    costs = []
    while len(costs) < 3 and min(costs, default=1.0) >= IMPORT_LIMIT_S:
        costs.append(float(subprocess.run(command, capture_output=True, check=True).stdout))
    assert min(costs) < IMPORT_LIMIT_S, f"import softvq took {costs} s over torch's own"
