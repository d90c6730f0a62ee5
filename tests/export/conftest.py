import pytest
import torch

from softvq import HardVQ, SoftVQ
from softvq.export import Sharding, export_tokens, load_tokens
from softvq.models import VQVAE, VQVAEConfig

QUANTIZERS = {"soft": SoftVQ, "hard": HardVQ}


class Waves:
    """An ImageSet by form alone: smooth pictures from a formula."""

    channels = 3

    def __init__(self, count=10, size=(9, 12), *, labels=True):
        self.name = f"waves ({count})"
        self.size = size
        self.keys = [f"train/{i:03d} ü\n" for i in range(count)]
        self.labels = (7 * torch.arange(count)) % 4 if labels else None

    def __len__(self):
        return len(self.keys)

    def batch(self, indices):
        length = 3 * self.size[0] * self.size[1]
        waves = torch.sin(indices[:, None] * 1.7 + torch.arange(float(length)) * 0.37)
        return ((waves + 1) * 127).to(torch.uint8).reshape(-1, 3, *self.size)


@pytest.fixture
def waves():
    return Waves()


@pytest.fixture
def make_model():
    """Builds a small model in eval mode, started on waves; equal arguments give equal models."""

    def make(kind="soft", *, num_codes=16, dim=4, seed=0, **options):
        torch.manual_seed(seed)
        quantizer = QUANTIZERS[kind](num_codes, dim, layout="channels_first", **options)
        model = VQVAE(quantizer, VQVAEConfig(dim=dim, hidden=8, residual_hidden=4, blocks=1))
        images = Waves().batch(torch.arange(10)) / 127.5 - 1
        with torch.no_grad():
            model.quantizer.start_(model.latents(images))
        return model.eval()

    return make


@pytest.fixture
def model(make_model):
    return make_model()


@pytest.fixture
def exported(model, waves, tmp_path):
    """A token set of three shards with specials, labels and no soft targets."""
    sharding = Sharding(batch_size=3, shard_size=4)
    folder = tmp_path / "tokens"
    export_tokens(model, waves, folder, specials=["bos", "mask"], sharding=sharding)
    return folder


@pytest.fixture
def tokens(exported):
    return load_tokens(exported)
