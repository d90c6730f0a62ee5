import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from softvq import HardVQ
from softvq.data import TensorImages, to_model_range
from softvq.export import Codebook, export_tokens, load_tokens
from softvq.models import VQVAE, VQVAEConfig
from train.prior.config import PriorConfig, PriorNetConfig
from train.prior.net import Prior
from train.prior.vocabulary import Vocabulary, name_specials
from train.values import override

SMALL = (
    "net.layers=2",
    "net.width=16",
    "net.heads=2",
    "optim.steps=12",
    "optim.batch_size=4",
    "optim.warmup_steps=2",
    "checkpoint_every=5",
)


class Pixels(nn.Module):
    """A tokenizer whose code of a grey pixel is its level: tokens can be chosen at will."""

    def __init__(self, num_codes):
        super().__init__()
        levels = torch.linspace(-1, 1, num_codes)[:, None]
        self.quantizer = Codebook(codebooks=(levels,)).to_quantizer()

    def encode(self, images):
        return self.quantizer(images[:, 0, :, :, None]).indices

    def paint(self, tokens):
        return self.quantizer.codebook.detach()[tokens][:, None, :, :, 0]


@pytest.fixture
def export(tmp_path):
    """Exports chosen tokens (N, h, w), with labels if any, and opens the set."""

    def make(tokens, labels=None, *, num_codes=6, specials=None, name="tokens"):
        model = Pixels(num_codes).eval()
        images = model.paint(tokens)
        dataset = images if labels is None else TensorDataset(images, labels)
        if specials is None:
            specials = name_specials(None if labels is None else int(labels.max()) + 1)
        return load_tokens(
            export_tokens(model, dataset, tmp_path / name, specials=specials).folder,
            codebook=model,
        )

    return make


def make_sequences(num_items):
    """Of class c the codes c, c + 1, ... modulo 6, on a 2 x 3 grid; classes in turn."""
    labels = torch.arange(num_items) % 3
    return (labels[:, None] + torch.arange(6)).remainder(6).reshape(-1, 2, 3), labels


@pytest.fixture
def pair(export):
    """Training and test tokens that the class determines."""
    return {
        "train": export(*make_sequences(24), name="train"),
        "test": export(*make_sequences(9), name="test"),
    }


@pytest.fixture
def make_prior_config():
    def make(*changes):
        return override(PriorConfig(), [*SMALL, *changes])

    return make


def make_vocabulary(num_codes=5, num_classes=3, grid=(2, 2), digest="ab"):
    return Vocabulary(
        num_codes=num_codes,
        vocab_size=num_codes + 1 + num_classes,
        bos=num_codes,
        classes=tuple(range(num_codes + 1, num_codes + 1 + num_classes)),
        grid=grid,
        codebook_digest=digest,
    )


@pytest.fixture
def vocabulary():
    return make_vocabulary()


@pytest.fixture
def make_small():
    """A prior of random weights in float64, large enough for its answers to differ."""

    def make(*, drops_labels=True, **changes):
        torch.manual_seed(0)
        config = PriorNetConfig(layers=2, width=16, heads=2)
        prior = Prior(make_vocabulary(**changes), config, drops_labels=drops_labels).double()
        with torch.no_grad():
            for each in prior.parameters():
                each.mul_(8) if each.ndim > 1 else each
        return prior.eval()

    return make


def make_images(num_images=12, *, split="train"):
    """Pictures of 16 x 16 pixels in three classes."""
    waves = torch.sin(torch.arange(num_images * 3 * 16 * 16, dtype=torch.float64) ** 1.5)
    pictures = ((waves + 1) * 127).to(torch.uint8).reshape(num_images, 3, 16, 16)
    labels = torch.arange(num_images) % 3
    return TensorImages(pictures, name=f"waves {split}", labels=labels)


@pytest.fixture(scope="session")
def tokenizer():
    """A VQ-VAE of random weights, its eight codes placed on data: 4 x 4 codes a picture."""
    torch.manual_seed(0)
    quantizer = HardVQ(8, 4, layout="channels_first")
    model = VQVAE(quantizer, VQVAEConfig(dim=4, hidden=8, residual_hidden=4, blocks=1))
    with torch.no_grad():
        quantizer.start_(model.latents(to_model_range(make_images().images)))
    return model.eval()
