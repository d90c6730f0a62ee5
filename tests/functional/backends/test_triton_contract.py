"""The kernels under the suite that all back ends share, by Triton's interpreter."""

import os

import pytest
import torch

from tests.contracts.backend import BackendContract

pytest.importorskip("triton", reason="triton is not installed")

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") != "1", reason="wants TRITON_INTERPRET=1 from the start"
    ),
    # The interpreter computes with numpy, which warns of NaN where a device is silent.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


class TestTriton(BackendContract):
    backend = "triton"
    widest = torch.float32
