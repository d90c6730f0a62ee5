"""What every quantizer shares: layout, masks, looking codes up.

N rows, D features, K codes. A forward pass changes nothing but the pending tally, and places the
codebook the first time (`softvq.nn.starting`); `update_` of `softvq.nn.upkeep`, once a step,
changes the rest. `softvq.attach` calls it.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from softvq.checks import check_features
from softvq.nn.layout import (
    check_indices,
    feature_axis,
    from_rows,
    index_shape,
    resolve_mask,
    to_rows,
)
from softvq.nn.revival import Revival
from softvq.nn.starting import Startable
from softvq.types import QuantizerOutput


class RowsOutput(NamedTuple):
    """What a quantizer makes of rows: `QuantizerOutput` before the layout is put back."""

    quantized: Tensor
    indices: Tensor
    loss: Tensor
    stats: dict[str, Tensor]


class Quantizer(Startable, ABC):
    """A codebook of K codes of D features, and all that does not depend on how rows are assigned.

    Subclasses own ``codebook`` and say how rows become codes (`_quantize`), how the codebook is
    placed (`_place`) and what an update does beyond counting and revival (`_learn`).
    """

    has_soft = False
    has_free_loss = False  # of the scale of the vectors
    seen_variance: Tensor | None = None  # total variance of the vectors of late, if it is followed
    index_tail: tuple[int, ...] = ()

    def __init__(
        self, num_codes: int, dim: int, *, revival: Revival | None, layout: str, seed: int
    ) -> None:
        super().__init__(num_codes, dim, revival=revival, layout=layout, seed=seed)
        self.mode: str | None = None
        self.sampler: torch.Generator | None = None  # see softvq.nn.sampling

    def forward(
        self,
        z: Float[Tensor, "..."],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        lengths: Integer[Tensor, " b"] | None = None,
    ) -> QuantizerOutput:
        """Quantize every vector of ``z``.

        Args:
            z: (..., N, D), or (B, D, ...) with ``layout="channels_first"``.
            mask: True keeps a position; shaped as ``z`` without its feature axis. Dropped
                positions give a zero vector and index -1, and touch no loss and no count.
            lengths: In place of a mask, how many positions count in each item of the batch.

        Returns:
            ``quantized`` shaped and typed as ``z``; ``indices`` int64; ``loss`` 0-dim, float32 at
            least; ``stats`` of 0-dim tensors.

        Raises:
            ValueError: For a wrong feature size, dtype or mask; in the first training pass for
                values that are not finite, or no valid row.
        """
        check_features("z", z, dim=self.dim, axis=feature_axis(self.layout))
        mask = resolve_mask(mask, lengths, shape=index_shape(z, layout=self.layout))
        if self.training and (self._awaits_start or not self._is_started):
            self._start_if_due(z, mask)
        if self._lacks is not None:
            self._warn_of_lack()
        rows = to_rows(z, layout=self.layout)
        keep = None if mask is None else mask.reshape(-1)
        if keep is not None:
            rows = torch.where(keep[:, None], rows, 0)
        out = self._quantize(rows, keep)
        if self.training:
            self._count(rows, out.indices)
        else:
            self._warn_of_no_gradient(rows)
        quantized, indices = out.quantized.to(z.dtype), out.indices
        if keep is not None:
            quantized = torch.where(keep[:, None], quantized, 0)
        shape = index_shape(z, layout=self.layout)
        return QuantizerOutput(
            from_rows(quantized, like=z, layout=self.layout),
            indices.reshape(shape),
            out.loss,
            out.stats,
        )

    def codes(
        self, indices: Integer[Tensor, "..."], *, mask: Bool[Tensor, "..."] | None = None
    ) -> Tensor:
        """The code of each index: exactly what ``forward`` gives in eval mode.

        Args:
            indices: Whole numbers in [0, K), any shape ((B, ...) for channels first).
            mask: True keeps a position; zeros elsewhere, where -1 is allowed.

        Returns:
            (..., D), or (B, D, ...) with ``layout="channels_first"``, in the codebook's dtype.

        Raises:
            ValueError: For indices that are no integers or out of range.
        """
        found = self.look_up(check_indices(indices, mask, num_codes=self.num_codes))
        return found.movedim(-1, 1) if self.layout == "channels_first" else found

    def look_up(self, indices: Integer[Tensor, "..."]) -> Tensor:
        """The code (..., D) of each index, zeros at -1; nothing is checked and nothing waits."""
        flat = indices.reshape(-1)
        rows = self.codebook[flat.clamp_min(0).long()]
        rows = torch.where((flat >= 0)[:, None], rows, 0)
        return rows.reshape(*indices.shape, self.dim)

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """What the constructor was given, as plain JSON values; ``from_config`` takes it back."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: dict[str, Any]) -> "Quantizer":
        """A fresh module of the sizes and options that ``config`` names."""

    @abstractmethod
    def _quantize(self, rows: Tensor, keep: Tensor | None) -> RowsOutput:
        """Quantize rows (N, D); masked ones are zero and get index -1."""

    def _warn_of_no_gradient(self, rows: Tensor) -> None:
        soft = self.has_soft and self.mode == "soft"
        if torch.is_grad_enabled() and rows.requires_grad and not soft:
            self._warn_once(
                "eval",
                f"{type(self).__name__} is in eval mode and its input requires grad: it "
                "returns hard codes, so no gradient reaches the encoder. Call train().",
            )

    def extra_repr(self) -> str:
        """Sizes and layout, for ``print(model)``."""
        return f"num_codes={self.num_codes}, dim={self.dim}, layout={self.layout!r}"
