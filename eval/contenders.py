"""What is timed against what: modules that quantize (1, N, D), each with one training step.

N rows, D features, K codes. The dense ones are written here, plainly, as people write them.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softvq import HardVQ, SoftVQ, Temperature
from softvq.nn import ResidualVQ, Scaled
from train import peers
from train.quantizers import STAGES

# Past the warm-up, in which nothing trains that costs time.
WARM = Temperature(warmup_share=0.0)


class Contender(nn.Module):
    """A quantizer behind one call: rows in, quantized rows and a loss out.

    Args:
        inner: The quantizer.
        read: Takes (quantized, loss) out of what it returns.
        update: What follows a step, if anything.
    """

    def __init__(
        self,
        inner: nn.Module,
        read: Callable[[Any], tuple[Tensor, Tensor]],
        update: Callable[[], object] | None = None,
    ) -> None:
        super().__init__()
        self.inner = inner
        self._read = read
        self._update = update

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Quantize rows (1, N, D)."""
        return self._read(self.inner(rows))

    def update(self) -> None:
        """What a training loop does with the quantizer after a step."""
        if self._update is not None:
            self._update()


class DenseSoft(nn.Module):
    """Soft assignment as three lines of dense torch: several N x K buffers."""

    def __init__(self, num_codes: int, dim: int) -> None:
        super().__init__()
        self.codebook = nn.Parameter(torch.randn(num_codes, dim))

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Soft mean and distortion of rows (1, N, D)."""
        distances = torch.cdist(rows[0], self.codebook).square()
        weights = (-distances / distances.detach().amin(-1).mean()).softmax(-1)
        return (weights @ self.codebook)[None], (weights * distances).sum(-1).mean()


class DenseHard(nn.Module):
    """Expanded distances, arg-min, straight-through, codebook loss: the form of many tutorials."""

    def __init__(self, num_codes: int, dim: int) -> None:
        super().__init__()
        self.codebook = nn.Parameter(torch.randn(num_codes, dim))

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Codes of rows (1, N, D) and the VQ-VAE loss."""
        flat = rows[0]
        squared = flat.square().sum(-1, keepdim=True) + self.codebook.square().sum(-1)
        indices = (squared - 2 * flat @ self.codebook.mT).argmin(-1)
        code = self.codebook[indices]
        loss = F.mse_loss(code, flat.detach()) + 0.25 * F.mse_loss(flat, code.detach())
        return (flat + (code - flat).detach())[None], loss


def _ours(vq: SoftVQ | HardVQ | ResidualVQ) -> Contender:
    return Contender(vq, lambda out: (out.quantized, out.loss), vq.update_)


def _residual(num_codes: int, dim: int, rows: int) -> Contender:
    """The stages of the method ``softvq-residual``."""
    stages = [
        Scaled(SoftVQ(num_codes, dim, temperature=WARM, seed=stage)) for stage in range(STAGES)
    ]
    return _ours(ResidualVQ(stages))


def _hard_residual(num_codes: int, dim: int, rows: int) -> Contender:
    return _ours(ResidualVQ([HardVQ(num_codes, dim, seed=stage) for stage in range(STAGES)]))


def _peer(peer: peers.Peer) -> Contender:
    return Contender(peer.inner, lambda out: (out[0], out[2].sum()))


def _lucid_ema(num_codes: int, dim: int, rows: int) -> Contender:
    made = peers.lucid_ema(num_codes=num_codes, dim=dim, rows=rows, accept_image_fmap=False)
    return _peer(made)


def _lucid_residual(num_codes: int, dim: int, rows: int) -> Contender:
    made = peers.lucid_residual(num_codes=num_codes, dim=dim, rows=rows, num_stages=STAGES)
    return _peer(made)


def _lucid_simvq(num_codes: int, dim: int, rows: int) -> Contender:
    return _peer(peers.lucid_simvq(num_codes=num_codes, dim=dim, rows=rows, channel_first=False))


CONTENDERS: dict[str, Callable[[int, int, int], Contender]] = {
    "softvq": lambda k, d, n: _ours(SoftVQ(k, d, temperature=WARM)),
    "softvq-hard": lambda k, d, n: _ours(SoftVQ(k, d, temperature=WARM, forward_value="hard")),
    "hardvq-ema": lambda k, d, n: _ours(HardVQ(k, d)),
    "lucid-ema": _lucid_ema,
    "lucid-simvq": _lucid_simvq,
    "dense-soft": lambda k, d, n: Contender(DenseSoft(k, d), lambda out: out),
    "dense-hard": lambda k, d, n: Contender(DenseHard(k, d), lambda out: out),
}
"""By name: makes one for K, D, N. ``lucid-ema`` is what ratios are taken to."""

RESIDUAL: dict[str, Callable[[int, int, int], Contender]] = {
    "softvq-residual": _residual,
    "hardvq-residual": _hard_residual,
    "lucid-residual": _lucid_residual,
}
"""Stacks of four stages of K codes each; ratios are to ``lucid-residual``."""


def make_rows(num_rows: int, dim: int, *, seed: int = 0) -> Tensor:
    """Rows (1, N, D) with a spectrum, as latents have: deviations from 2 down to 0.05.

    Example:
        >>> make_rows(4, 3).shape
        torch.Size([1, 4, 3])
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, num_rows, dim, generator=generator) * torch.linspace(2, 0.05, dim)
