import math

import numpy as np
import pytest
import torch

from softvq import HardVQ
from softvq.data import TensorImages, to_model_range
from softvq.models import VQVAE, VQVAEConfig
from train.patches import average_patches


def make_images(count, height, width):
    place = torch.arange(count * 3 * height * width, dtype=torch.float64)
    values = (127 + 120 * torch.sin(0.11 * place)).round().byte()
    return TensorImages(values.reshape(count, 3, height, width), name="waves")


@pytest.fixture
def model():
    torch.manual_seed(0)
    quantizer = HardVQ(16, 8, layout="channels_first", revival=None)
    config = VQVAEConfig(dim=8, hidden=8, residual_hidden=4, blocks=1)
    model = VQVAE(quantizer, config)
    model(to_model_range(make_images(4, 16, 16).images))  # places the codebook
    return model


@pytest.mark.parametrize(("height", "width"), [(16, 24), (15, 18)])
def test_patches_are_means_over_the_places_of_each_code(model, height, width):
    """Token by token, over whole patches alone, in float64."""
    images = make_images(6, height, width)
    found = average_patches(model, images)
    model.eval()
    batch = to_model_range(images.images)
    with torch.no_grad():
        indices = model.encode(batch).numpy()
        decoded = model(batch).reconstruction.clamp(-1, 1).double().numpy()
    sums, tokens = np.zeros((16, 3, 4, 4)), np.zeros(16, dtype=int)
    for picture in range(6):
        for row in range(height // 4):
            for column in range(width // 4):
                code = indices[picture, row, column]
                sums[code] += decoded[picture, :, 4 * row :, 4 * column :][:, :4, :4]
                tokens[code] += 1
    assert found.tokens.tolist() == tokens.tolist()
    assert found.tokens.sum() == 6 * (height // 4) * (width // 4)
    means = torch.from_numpy(sums / np.maximum(tokens, 1)[:, None, None, None]).float()
    torch.testing.assert_close(found.means, means)
    assert found.means[found.tokens == 0].abs().sum() == 0


def test_batches_add_up_and_only_the_first_images_count(model, monkeypatch):
    images = make_images(7, 16, 16)
    whole = average_patches(model, images, most=5)
    monkeypatch.setattr("train.patches.BATCH", 2)
    parts = average_patches(model, images, most=5)
    torch.testing.assert_close(parts, whole)
    assert (whole.images, int(whole.tokens.sum())) == (5, 5 * 16)
    assert average_patches(model, images).images == 7


def test_the_model_stays_as_it_was(model):
    before = {name: each.clone() for name, each in model.state_dict().items()}
    for training in (True, False):
        model.train(training)
        average_patches(model, make_images(2, 16, 16))
        assert model.training is training
    for name, each in model.state_dict().items():
        assert torch.equal(each, before[name])


def test_what_is_no_number_is_left_out(model):
    with torch.no_grad():
        next(model.decoder.parameters()).fill_(math.nan)
    found = average_patches(model, make_images(2, 16, 16))
    assert found.tokens.sum() == 0
    assert found.means.isfinite().all()
