"""A model whose codebook has ties and equal codes, for graphs and ONNX files of it."""

import torch

from softvq import SoftVQ
from softvq.models import VQVAE, VQVAEConfig

SIZES = [
    (1, 3, 16, 20),
    (3, 3, 9, 12),
    (2, 3, 13, 30),
    (5, 3, 31, 7),
]
ONE_CODE_A_SIDE = [(1, 3, 1, 1), (2, 3, 4, 19), (1, 3, 10, 3)]
FAR, NEAR, SPREAD = 9.0, 2.0, 5.0
# Rows, and the lowest of the codes that are nearest: level by exact arithmetic, or equal codes.
TIES = [
    ((1.0, 1.0, 0.0, 0.0), 3),
    ((-1.0, 0.0, 0.0, 0.0), 4),
    ((2.0, 0.0, 0.0, 0.0), 3),
    ((8.37, 0.21, -0.33, 0.1), 0),
    ((-8.37, 0.21, -0.33, 0.1), 1),
]


def make_codebook():
    """19 codes about 0: 3 and 12, 4 and 13, 0 and 16, 1 and 17 are equal; 18 is 0 itself."""
    axis = torch.eye(4)
    first, second, third, fourth = axis
    return torch.stack(
        [FAR * first, -FAR * first, FAR * second]
        + [sign * NEAR * each for each in (first, second, third, fourth) for sign in (1, -1)]
        + [-FAR * second, NEAR * first, -NEAR * first, FAR * third, -FAR * third]
        + [FAR * first, -FAR * first, 0 * first]
    )


def make_model():
    torch.manual_seed(0)
    quantizer = SoftVQ(19, 4, layout="channels_first")
    model = VQVAE(quantizer, VQVAEConfig(dim=4, hidden=8, residual_hidden=4, blocks=1))
    with torch.no_grad():
        latents = model.latents(make_images((4, 3, 32, 32)))
        quantizer.start_(latents)
        deviation, mean = torch.std_mean(latents, dim=(0, 2, 3))
        last = model.encoder[-1]  # latents are brought to where the codes are
        last.weight *= (SPREAD / deviation)[:, None, None, None]
        last.bias.copy_((last.bias - mean) * SPREAD / deviation)
        quantizer.codebook.copy_(make_codebook())
    return model.eval().requires_grad_(False)


def make_images(size):
    count = torch.Size(size).numel()
    return torch.sin(torch.arange(float(count)) * 0.37 + count).reshape(size)
