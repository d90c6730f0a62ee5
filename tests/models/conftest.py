import pytest
import torch

from softvq import HardVQ, SoftVQ
from softvq.models import VQVAE, VQVAEConfig

QUANTIZERS = {"soft": SoftVQ, "hard": HardVQ}


@pytest.fixture
def make_model():
    """Builds a small model; two calls with the same arguments build equal ones."""

    def make(kind="soft", *, channels=3, downsampling=8, num_codes=64, dim=5, **options):
        torch.manual_seed(0)
        quantizer = QUANTIZERS[kind](num_codes, dim, layout="channels_first", **options)
        sizes = {"hidden": 8, "residual_hidden": 4, "blocks": 1}
        config = VQVAEConfig(channels=channels, dim=dim, downsampling=downsampling, **sizes)
        return VQVAE(quantizer, config)

    return make


@pytest.fixture
def make_images():
    """Smooth pictures in [-1, 1], from a formula."""

    def make(batch, channels, height, width, *, phase=0.0):
        count = batch * channels * height * width
        waves = torch.sin(torch.arange(float(count)) * 0.37 + phase)
        return waves.reshape(batch, channels, height, width)

    return make
