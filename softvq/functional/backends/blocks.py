"""Scores of rows against codes, a block of rows at a time, in memory that is used again.

N rows, D features, K codes; B rows are a block. A score is 2 z . p - |p|^2; the squared distance is
|z|^2 less it. Everything of size B x K lives in a few buffers that the blocks share, because fresh
memory costs a pass of its own, and so does every operator that could have been part of another.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

LOG_FLOOR = -50.0
DROPPED = -1e30  # score of a code that may not be taken: finite, so that zero times it is zero
BLOCK_ELEMENTS = {"cpu": 2**18}  # a thread: 1 MiB of float32, which stays in its core's cache
BLOCK_ELEMENTS_DEVICE = 2**25
STRETCH = 64
COLUMNS = 16


class Blocks:
    """Blocks of rows, their scores, and the buffers that they share.

    Args:
        z: Rows (N, D).
        codebook: Codes (K, D).
        usable: (K,), False drops a code; None drops none.
    """

    def __init__(self, z: Tensor, codebook: Tensor, usable: Tensor | None = None) -> None:
        self.squared = codebook.square().sum(-1)
        bias = -self.squared if usable is None else torch.where(usable, -self.squared, DROPPED)
        # |p|^2 as one feature more: a product costs less than adding to one.
        self._rows = torch.cat([z, torch.ones_like(z[:, :1])], -1)
        self._keys = pad_columns(torch.cat([2 * codebook.mT, bias[None]]))
        self._num_codes = codebook.shape[0]
        self._buffers: dict[str, Tensor] = {}
        self._on_cpu = z.device.type == "cpu"
        self._threads = torch.get_num_threads() if self._on_cpu else 1
        budget = BLOCK_ELEMENTS.get(z.device.type, BLOCK_ELEMENTS_DEVICE) * self._threads
        size = max(1, budget // max(1, codebook.shape[0]))
        size -= size % self._threads  # a whole number of rows for each thread, see `average`
        self._size = min(max(size, 1), max(z.shape[0], 1))

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        """Rows of a block, and their scores (B, K), which the next block overwrites."""
        for begin in range(0, self._rows.shape[0], self._size):
            rows = slice(begin, min(begin + self._size, self._rows.shape[0]))
            scores = self.buffer("scores", rows)
            if self._keys.shape[1] == self._num_codes:
                torch.mm(self._rows[rows], self._keys, out=scores)
            else:
                scores.copy_(torch.mm(self._rows[rows], self._keys)[:, : self._num_codes])
            yield rows, scores

    def average(self, weights: Tensor, values: Tensor, *, out: Tensor) -> Tensor:
        """Weights (B, K) times values (K, D), shared out by rows among the threads of a CPU.

        Left to itself the product is split badly where its result is small.
        """
        threads = self._threads
        if threads == 1 or weights.shape[0] % threads or not out.is_contiguous():
            return torch.mm(weights, values, out=out)
        share = (threads, weights.shape[0] // threads)
        values = values.expand(threads, *values.shape)
        torch.bmm(weights.unflatten(0, share), values, out=out.unflatten(0, share))
        return out

    def buffer(self, name: str, rows: slice) -> Tensor:
        """Memory (B, K) by name; what another block or use of the name left in it is lost."""
        if name not in self._buffers:
            self._buffers[name] = self._keys.new_empty(self._size, self._num_codes)
        return self._buffers[name][: rows.stop - rows.start]

    def soften(
        self, scores: Tensor, temperature: Tensor, shift: Tensor | None = None, *, out: Tensor
    ) -> Tensor:
        """Logits, floored: scores (B, K), from which the row's top is taken already, over T.

        ``shift`` (B,), the log-partition, is subtracted and makes logarithms of weights of them.
        """
        inverse = temperature.reciprocal()
        if shift is None:
            torch.mul(scores, inverse, out=out)
        elif self._on_cpu:
            torch.add(-shift[:, None], scores, alpha=inverse.item(), out=out)
        else:  # reading a number would wait for the device
            torch.mul(scores, inverse, out=out).sub_(shift[:, None])
        return out.clamp_min_(LOG_FLOOR)


def pad_columns(keys: Tensor) -> Tensor:
    """Zero columns behind keys (D, K) up to a multiple of 16.

    A product rounds its last columns in its own way where they fill no register, and equal codes
    would get unequal scores.
    """
    return F.pad(keys, (0, -keys.shape[1] % COLUMNS))


def first_maximum(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Maximum of each row and its lowest place.

    On a CPU a maximum with its place costs as much as the product that made the scores, and one
    without it an eighth: so the place is looked for in the one stretch that holds the maximum.
    """
    num_stretches = scores.shape[-1] // STRETCH
    if scores.device.type != "cpu" or scores.shape[-1] % STRETCH or num_stretches < 2:
        return scores.max(-1)
    by_stretch = scores.unflatten(-1, (num_stretches, STRETCH))
    top, which = by_stretch.amax(-1).max(-1)
    inside = by_stretch[torch.arange(scores.shape[0]), which] == top[:, None]
    # The first place that holds it, by a maximum of floats, which is faster than any search.
    from_end = torch.arange(STRETCH, 0, -1, dtype=scores.dtype)
    place = STRETCH - torch.where(inside, from_end, 1).amax(-1).long()
    return top, which * STRETCH + place
