"""What each code looks like: the mean of the decoded patches where it was chosen.

A code is a vector, and its patch depends on its neighbours: a code decoded alone, or side by side
with itself, is a picture that no image ever holds. The mean over real places is what it stands for.

Shape letters: K codes, C channels, F pixels to a code along each side.
"""

from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int64
from torch import Tensor

from softvq.data import ImageSet, to_model_range
from softvq.models import VQVAE
from train.indices import codes_per_index, split_indices

BATCH = 250
MOST_IMAGES = 1000


class Patches(NamedTuple):
    """Mean decoded patch of each code in [-1, 1] (0 where never chosen), and tokens averaged."""

    means: Float[Tensor, "k c f f"]
    tokens: Int64[Tensor, " k"]
    images: int


@torch.no_grad()
def average_patches(model: VQVAE, images: ImageSet, *, most: int = MOST_IMAGES) -> Patches:
    """Encode and decode images by hard codes, and average the decoded patches of each code.

    Args:
        model: Unwrapped; put in eval mode for the time.
        images: A set, at best one that training never saw.
        most: Use the first so many of it.

    Returns:
        Patches on the CPU. Tokens whose patch passes the edge of an image are left out, and so are
        those that are no number.
    """
    training = model.training
    model.eval()
    device = next(model.parameters()).device
    size, channels = model.config.downsampling, model.config.channels
    num_codes = codes_per_index(model.quantizer)[0]
    sums = torch.zeros(num_codes, channels, size, size, dtype=torch.float64)
    tokens = torch.zeros(num_codes, dtype=torch.int64)
    most = min(most, len(images))
    for begin in range(0, most, BATCH):
        rows = torch.arange(begin, min(begin + BATCH, most))
        out = model(to_model_range(images.batch(rows)).to(device))
        height, width = (side // size for side in out.reconstruction.shape[-2:])
        whole = out.reconstruction[..., : height * size, : width * size].clamp(-1, 1).cpu().double()
        patches = rearrange(whole, "b c (h i) (w j) -> (b h w) c i j", i=size, j=size)
        first = split_indices(out.quantizer.indices)[0]
        chosen = rearrange(first[:, :height, :width].cpu(), "b h w -> (b h w)")
        good = patches.flatten(1).isfinite().all(1) & (chosen >= 0)
        sums.index_add_(0, chosen[good], patches[good])
        tokens += torch.bincount(chosen[good], minlength=num_codes)
    model.train(training)
    means = sums / tokens.clamp_min(1)[:, None, None, None]
    return Patches(means.float(), tokens, most)
