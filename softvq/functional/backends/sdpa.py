"""Mean and spread from one fused attention call: no N x K buffer, and no index either."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def soft_mean(
    z: Float[Tensor, "n d"],
    codebook: Float[Tensor, "k d"],
    temperature: Float[Tensor, ""],
) -> tuple[Float[Tensor, "n d"], Float[Tensor, " n"]]:
    """Soft centroid and spread of each row (formulas in `reference`).

    The logits of the assignment are those of an attention with query [z, 1], key
    [2 p / T, -|p|^2 / T] and value [p, |p|^2], so the fused kernel gives both sums in one pass.
    Its gradient is the one through the weights ("full"). The kernel takes the maximum off after
    the division by T, so logits carry an error of rounding times |z| |p| / T: for T far below the
    scale of the data the other back ends are exact and this one is not.

    Args:
        z: Rows, centred on the codebook by the caller.
        codebook: Codes.
        temperature: One T > 0.

    Returns:
        Mean (N, D) and spread (N,).
    """
    squared = codebook.square().sum(-1, keepdim=True)
    # One-hot long before; below it keys overflow, and inf times zero is NaN.
    temperature = temperature.maximum(1e-30 * squared.detach().amax())
    query = torch.cat([z, torch.ones_like(z[:, :1])], -1)
    # T's gradient goes through T over its own value, which is one: 1 / T^2 would overflow.
    key = torch.cat([2 * codebook, -squared], -1) / temperature.detach()
    key = key / (temperature / temperature.detach())
    value = torch.cat([codebook, squared], -1)
    out = F.scaled_dot_product_attention(
        query[None, None], key[None, None], value[None, None], scale=1.0
    )
    mean, second = out[0, 0].split([z.shape[-1], 1], -1)
    return mean, (second[:, 0] - mean.square().sum(-1)).clamp_min(0)
