"""What the forward pass gathers at one temperature: sums over codes for rows, over rows for codes.

N rows, D features, K codes; B rows are a block. Weights are relative to each row's largest until
`RowSums.finish` divides by their total.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from softvq.functional.backends.blocks import Blocks


class Level(NamedTuple):
    """Results at one temperature, as in `contract.Assigned`, and the logarithm of the totals."""

    mean: Tensor
    spread: Tensor
    entropy: Tensor
    log_total: Tensor


class RowSums:
    """Sums for N rows at one temperature, filled block by block."""

    def __init__(self, z: Tensor, codebook: Tensor, squared: Tensor, temperature: Tensor) -> None:
        self.temperature = temperature
        self._codebook, self._squared = codebook, squared
        self._mean = torch.empty_like(z)
        self._total, self._second, self._cross = (z.new_empty(z.shape[0]) for _ in range(3))

    def add(self, blocks: Blocks, rows: slice, scores: Tensor) -> Tensor:
        """Take a block's weights, (B, K), and return them."""
        logits = blocks.soften(scores, self.temperature, out=blocks.buffer("logits", rows))
        weights = torch.exp(logits, out=blocks.buffer("weights", rows))
        blocks.average(weights, self._codebook, out=self._mean[rows])
        torch.mv(weights, self._squared, out=self._second[rows])
        torch.sum(weights, -1, out=self._total[rows])
        torch.sum(logits.mul_(weights), -1, out=self._cross[rows])
        return weights

    def share(self, rows: slice, keep: Tensor | None) -> Tensor:
        """What turns a row's weights (B,) into their part of the soft use."""
        share = self._total[rows].reciprocal()
        return share if keep is None else share * keep[rows]

    def finish(self) -> Level:
        """Means over the weights, from the sums."""
        log_total = self._total.log()
        entropy = (log_total - self._cross / self._total).clamp_min_(0)
        mean = self._mean.div_(self._total[:, None])
        spread = (self._second / self._total - mean.square().sum(-1)).clamp_min_(0)
        return Level(mean, spread, entropy, log_total)
