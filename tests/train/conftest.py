import os
import subprocess
import sys
from pathlib import Path

import pytest

from train.images import ImagePair
from train.presets import smoke
from train.values import override

ROOT = Path(__file__).parent.parent.parent

# Fewer images than the preset has, and FSQ exists for its own codebook sizes alone.
FEW = ("data.num_train=64", "data.num_test=24")
EXTRA = {"lucid-fsq": ("net.num_codes=512",)}


@pytest.fixture(scope="session")
def make_config():
    """The smoke preset, smaller yet, with changes."""

    def make(*changes, method="softvq"):
        return override(smoke(), [*FEW, f"method.name={method}", *EXTRA.get(method, ()), *changes])

    return make


@pytest.fixture(scope="session")
def images(make_config):
    """Training and test images of `make_config`, read once: runs only look at them."""
    return ImagePair(make_config())


@pytest.fixture
def start_process():
    """Starts `python ...` at the root of the repository; what still runs at the end is killed."""
    started = []

    def start(*arguments):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        environment["PYTHONPATH"] = str(ROOT)
        process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
