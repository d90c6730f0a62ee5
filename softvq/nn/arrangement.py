"""What quantizers made of parts share: layout, masks, dtype, indices of several numbers.

B batch, D features. A vector gets one index of each part, side by side on trailing axes, the
``index_tail``: (4,) for four stages, (2, 4) for two groups of four stages, () for one codebook.
"""

from abc import ABC, abstractmethod
from itertools import product
from math import prod
from typing import Any

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from softvq.checks import check_count, check_features, check_mask, choose
from softvq.functional.precision import without_autocast, working_dtype
from softvq.nn.base import Quantizer
from softvq.nn.layout import (
    LAYOUTS,
    check_range,
    check_whole,
    feature_axis,
    index_shape,
    resolve_mask,
)
from softvq.types import QuantizerOutput


class Arrangement(nn.Module, ABC):
    """A quantizer made of parts, each a quantizer itself: the same calls, the same answer.

    The outermost part has the layout; those inside work on channels last. Updates are the business
    of the codebooks inside, which `softvq.attach` finds.

    Attributes:
        dim: D.
        layout: "channels_last" or "channels_first".
        index_tail: Shape of the indices of one vector.
        codes_per_index: K of each of them, in the order in which they lie.
        optional: Whether each may be -1, for a stage that was left out.
    """

    index_tail: tuple[int, ...]
    codes_per_index: tuple[int, ...]
    optional: tuple[bool, ...]

    def __init__(self, dim: int, *, layout: str) -> None:
        super().__init__()
        self.dim = check_count("dim", dim)
        self.layout = choose("layout", layout, LAYOUTS)

    @property
    def num_codes(self) -> int:
        """Values that the indices of one vector can take together."""
        return prod(self.codes_per_index)

    @property
    def is_started(self) -> bool:
        """Whether all codebooks inside have been placed on data."""
        return all(each.is_started for each in self.codebooks())

    @property
    def awaits_start(self) -> bool:
        """Whether the next training pass places all codebooks inside on its rows."""
        return all(each.awaits_start for each in self.codebooks())

    @property
    def has_free_loss(self) -> bool:
        """Whether the loss is the same for vectors and codes of any scale."""
        return all(each.has_free_loss for each in self.codebooks())

    @property
    def seen_variance(self) -> Tensor | None:
        """Total variance of the vectors of late, 0-dim, where the parts follow it."""
        return None

    def codebooks(self) -> list[Quantizer]:
        """The codebooks inside, each once."""
        return [each for each in self.modules() if isinstance(each, Quantizer)]

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
            mask: True keeps a position; shaped as ``z`` without its feature axis.
            lengths: In place of a mask, how many positions count in each item of the batch.

        Returns:
            As of `Quantizer.forward`; ``indices`` have the ``index_tail`` as last axes, and stats
            of several parts carry the part's name: "stage0.ols", "group1.stage0.ols".

        Raises:
            ValueError: As of `Quantizer.forward`.
        """
        check_features("z", z, dim=self.dim, axis=feature_axis(self.layout))
        mask = resolve_mask(mask, lengths, shape=index_shape(z, layout=self.layout))
        rows = self._to_last(z)
        if mask is not None:
            rows = torch.where(mask[..., None], rows, 0)
        with without_autocast(rows):
            out = self._arrange(rows, mask)
        quantized = out.quantized.to(z.dtype)
        if mask is not None:
            quantized = torch.where(mask[..., None], quantized, 0)
        if self.layout == "channels_first":
            quantized = quantized.movedim(-1, 1)
        return out._replace(quantized=quantized)

    def codes(
        self, indices: Integer[Tensor, "..."], *, mask: Bool[Tensor, "..."] | None = None
    ) -> Tensor:
        """The vector of each set of indices: exactly what ``forward`` gives in eval mode.

        Args:
            indices: (..., *index_tail), (B, ..., *index_tail) for channels first. The stages of a
                residual stack, this one or inside, may be the first of them alone.
            mask: True keeps a position; zeros elsewhere, where -1 is allowed.

        Returns:
            (..., D), or (B, D, ...) with ``layout="channels_first"``, in the dtype of what is
            stored; sums and products are taken in float32 at least, as in ``forward``.

        Raises:
            ValueError: For indices that are no integers, of another tail or out of range.
        """
        check_whole(indices)
        indices = indices.long()
        self._check_tail(indices)
        positions = indices.shape[: indices.ndim - len(self.index_tail)]
        check_mask("mask", mask, shape=tuple(positions))
        kept = indices
        if mask is not None:
            wide = mask.reshape(*positions, *[1] * len(self.index_tail))
            kept = torch.where(wide, indices, 0)
            indices = torch.where(wide, indices, -1)
        self._check_range(kept)
        vectors = self.look_up(indices).to(self.stored_dtype())
        return vectors.movedim(-1, 1) if self.layout == "channels_first" else vectors

    @torch.no_grad()
    def start_(self, z: Float[Tensor, "..."], *, mask: Bool[Tensor, "..."] | None = None) -> None:
        """Place every codebook inside on data; the first training pass does this by itself.

        Args:
            z: As in ``forward``.
            mask: As in ``forward``.

        Raises:
            ValueError: If a kept value is not finite, or no row is kept on any process.
        """
        check_features("z", z, dim=self.dim, axis=feature_axis(self.layout))
        mask = resolve_mask(mask, None, shape=index_shape(z, layout=self.layout))
        rows = self._to_last(z.detach())
        if mask is not None:
            rows = torch.where(mask[..., None], rows, 0)
        with without_autocast(rows):
            self._start(rows, mask)

    def freeze_(self, frozen: bool = True) -> None:
        """Keep every codebook inside as it is, see `Quantizer.freeze_`; maps around them learn on.

        Args:
            frozen: False ends it.
        """
        for each in self.codebooks():
            each.freeze_(frozen)

    def update_(self) -> None:
        """Update every codebook inside; `softvq.attach` does so without this call."""
        for each in self.codebooks():
            each.update_()

    def discard_(self) -> None:
        """Forget the forward passes since the last update, of every codebook inside."""
        for each in self.codebooks():
            each.discard_()

    @abstractmethod
    def look_up(self, indices: Integer[Tensor, "..."]) -> Tensor:
        """The vectors (..., D) of indices, zeros at -1; nothing is checked and nothing waits.

        In float32 at least, so that sums round as in ``forward``.
        """

    @abstractmethod
    def stored_dtype(self) -> torch.dtype:
        """The widest dtype of what vectors are made of: codes, and maps around them."""

    @abstractmethod
    def books(self) -> list["AnyQuantizer"]:
        """What each index of a vector is looked up in: a codebook, or a part of one index."""

    @abstractmethod
    def fits(self, tail: tuple[int, ...]) -> bool:
        """Whether indices whose last axes are these are those of a vector, or of its first stages.

        Args:
            tail: As many numbers as ``index_tail``.
        """

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """What the constructor was given, as plain JSON values; ``from_config`` takes it back."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: dict[str, Any]) -> "Arrangement":
        """A fresh module of the parts and options that ``config`` names."""

    @abstractmethod
    def _arrange(self, rows: Tensor, mask: Tensor | None) -> QuantizerOutput:
        """Quantize (..., D) in float32 at least, outside autocast; masked vectors are zero."""

    @abstractmethod
    def _start(self, rows: Tensor, mask: Tensor | None) -> None:
        """Start the parts, each on what it will get."""

    def _to_last(self, z: Tensor) -> Tensor:
        rows = z.movedim(1, -1) if self.layout == "channels_first" else z
        return rows.to(working_dtype(z, self.stored_dtype()))

    def _check_tail(self, indices: Tensor) -> None:
        tail = self.index_tail
        came = tuple(indices.shape[indices.ndim - len(tail) :]) if indices.ndim >= len(tail) else ()
        if len(came) < len(tail) or not self.fits(came):
            raise ValueError(
                f"indices must be {self._tell_tail()}; got shape {tuple(indices.shape)}."
            )

    def _tell_tail(self) -> str:
        return f"(..., {', '.join(map(str, self.index_tail))}), the indices of one vector last"

    def _check_range(self, indices: Tensor) -> None:
        """Each index against the size of its own codebook; of a prefix those that are there."""
        tail = indices.shape[indices.ndim - len(self.index_tail) :]
        here = [self._place_of(each) for each in product(*map(range, tail))]
        flat = indices.reshape(*indices.shape[: indices.ndim - len(tail)], len(here))
        for place, each in zip(here, flat.unbind(-1), strict=True):
            least = -1 if self.optional[place] else 0
            check_range(each, num_codes=self.codes_per_index[place], least=least)

    def _place_of(self, position: tuple[int, ...]) -> int:
        """Which of a vector's indices one is, in the order of ``codes_per_index``."""
        place = 0
        for num, each in zip(self.index_tail, position, strict=True):
            place = place * num + each
        return place

    def extra_repr(self) -> str:
        """Sizes and layout, for ``print(model)``."""
        tail = f", index_tail={self.index_tail}" if self.index_tail else ""
        return f"num_codes={self.num_codes}, dim={self.dim}{tail}, layout={self.layout!r}"


AnyQuantizer = Quantizer | Arrangement
"""A codebook, or parts that hold some."""
