"""Encoder and decoder of the public VQ-VAE recipe: strided convolutions, residual blocks."""

from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn


class Residual(nn.Module):
    """x + conv1(relu(conv3(relu(x)))).

    Args:
        channels: Channels in and out.
        hidden: Channels between the two convolutions.

    Example:
        >>> import torch
        >>> Residual(8, 4)(torch.zeros(1, 8, 5, 5)).shape
        torch.Size([1, 8, 5, 5])
    """

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(channels, hidden, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(hidden, channels, 1),
        )

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """Add the block's change to its input."""
        return x + self.body(x)


def residual_stack(channels: int, hidden: int, blocks: int) -> nn.Sequential:
    """Residual blocks in a row, closed by a ReLU.

    Example:
        >>> len(residual_stack(8, 4, 2))
        3
    """
    return nn.Sequential(*(Residual(channels, hidden) for _ in range(blocks)), nn.ReLU())


def encoder(
    channels: int, dim: int, *, hidden: int, residual_hidden: int, blocks: int, halvings: int
) -> nn.Sequential:
    """Images (B, channels, H, W) to latents (B, dim, H / 2^halvings, W / 2^halvings).

    Example:
        >>> import torch
        >>> net = encoder(3, 4, hidden=8, residual_hidden=4, blocks=1, halvings=2)
        >>> net(torch.zeros(1, 3, 16, 16)).shape
        torch.Size([1, 4, 4, 4])
    """
    widths = [channels, *[hidden // 2] * (halvings - 1), hidden]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 4, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(
        *layers,
        nn.Conv2d(hidden, hidden, 3, padding=1),
        residual_stack(hidden, residual_hidden, blocks),
        nn.Conv2d(hidden, dim, 1),
    )


def decoder(
    channels: int, dim: int, *, hidden: int, residual_hidden: int, blocks: int, halvings: int
) -> nn.Sequential:
    """Latents (B, dim, h, w) to images (B, channels, h 2^halvings, w 2^halvings).

    Example:
        >>> import torch
        >>> net = decoder(3, 4, hidden=8, residual_hidden=4, blocks=1, halvings=2)
        >>> net(torch.zeros(1, 4, 4, 4)).shape
        torch.Size([1, 3, 16, 16])
    """
    widths = [hidden, *[hidden // 2] * (halvings - 1), channels]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.ConvTranspose2d(before, after, 4, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(
        nn.Conv2d(dim, hidden, 3, padding=1),
        residual_stack(hidden, residual_hidden, blocks),
        *layers[:-1],  # the last layer gives pictures: no ReLU after it
    )
