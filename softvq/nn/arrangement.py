"""What quantizers made of parts share: layout, masks, dtype, indices of several numbers.

B batch, D features. A vector gets one index of each part, side by side on trailing axes, the
``index_tail``: (4,) for four stages, (2, 4) for two groups of four stages, () for one codebook.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from softvq.checks import check_count, check_features, check_mask, choose
from softvq.functional.precision import without_autocast
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
        total = 1
        for each in self.codes_per_index:
            total *= each
        return total

    @property
    def is_started(self) -> bool:
        """Whether all codebooks inside have been placed on data."""
        return all(each.is_started for each in self.codebooks())

    @property
    def awaits_start(self) -> bool:
        """Whether the next training pass places all codebooks inside on its rows."""
        return all(each.awaits_start for each in self.codebooks())

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
            indices: (..., *index_tail), (B, ..., *index_tail) for channels first.
            mask: True keeps a position; zeros elsewhere, where -1 is allowed.

        Returns:
            (..., D), or (B, D, ...) with ``layout="channels_first"``.

        Raises:
            ValueError: For indices that are no integers, of another tail or out of range.
        """
        check_whole(indices)
        self._check_tail(indices)
        positions = indices.shape[: indices.ndim - len(self.index_tail)]
        check_mask("mask", mask, shape=tuple(positions))
        kept = indices
        if mask is not None:
            wide = mask.reshape(*positions, *[1] * len(self.index_tail))
            kept = torch.where(wide, indices, 0)
            indices = torch.where(wide, indices, -1)
        self._check_range(kept)
        vectors = self.look_up(indices)
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
        """The vectors (..., D) of indices, zeros at -1; nothing is checked and nothing waits."""

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
        return rows.to(torch.promote_types(z.dtype, torch.float32))

    def _check_tail(self, indices: Tensor) -> None:
        tail = self.index_tail
        if indices.ndim < len(tail) or tuple(indices.shape[indices.ndim - len(tail) :]) != tail:
            raise ValueError(
                f"indices must be (..., {', '.join(map(str, tail))}), the indices of one vector "
                f"last; got shape {tuple(indices.shape)}."
            )

    def _check_range(self, indices: Tensor) -> None:
        """Each index against the size of its own codebook; of a prefix those that are there."""
        tail = indices.shape[indices.ndim - len(self.index_tail) :]
        flat = indices.reshape(*indices.shape[: indices.ndim - len(tail)], tail.numel())
        for place, each in enumerate(flat.unbind(-1)):
            least = -1 if self.optional[place] else 0
            check_range(each, num_codes=self.codes_per_index[place], least=least)

    def extra_repr(self) -> str:
        """Sizes and layout, for ``print(model)``."""
        tail = f", index_tail={self.index_tail}" if self.index_tail else ""
        return f"num_codes={self.num_codes}, dim={self.dim}{tail}, layout={self.layout!r}"


AnyQuantizer = Quantizer | Arrangement
"""A codebook, or parts that hold some."""


def check_part(argument: str, part: object) -> AnyQuantizer:
    """Return ``part`` if it is a quantizer of softvq on channels last.

    Raises:
        ValueError: Otherwise.

    Example:
        >>> from softvq.nn.hard import HardVQ
        >>> check_part("vq", HardVQ(8, 4)).dim
        4
    """
    if not isinstance(part, Quantizer | Arrangement):
        raise ValueError(
            f"{argument} must be a quantizer of softvq, such as SoftVQ or ResidualVQ; got "
            f"{type(part).__name__}."
        )
    if part.layout != "channels_last":
        raise ValueError(
            f"{argument} has layout={part.layout!r}: parts inside work on channels last. Leave its "
            "layout out and give it to the outermost part."
        )
    return part


def check_parts(argument: str, parts: Sequence[object]) -> list[AnyQuantizer]:
    """Return ``parts`` if each is a quantizer on channels last and their indices agree in shape.

    Raises:
        ValueError: Otherwise, or for none.

    Example:
        >>> from softvq.nn.hard import HardVQ
        >>> len(check_parts("quantizers", [HardVQ(8, 4), HardVQ(8, 4)]))
        2
    """
    if isinstance(parts, nn.Module) and not isinstance(parts, nn.ModuleList):
        raise ValueError(
            f"{argument} must be a list of quantizers; got one {type(parts).__name__}. Stages that "
            "share a codebook are [vq] * 4."
        )
    if not isinstance(parts, Iterable):
        raise ValueError(f"{argument} must be a list of quantizers; got {parts!r}.")
    checked = [check_part(f"{argument}[{i}]", part) for i, part in enumerate(parts)]
    if not checked:
        raise ValueError(f"{argument} must hold at least one quantizer; got none.")
    tails = [each.index_tail for each in checked]
    if len(set(tails)) > 1:
        raise ValueError(
            f"{argument} must give indices of one shape, to lie side by side; got {tails}."
        )
    return checked


class Numbers(NamedTuple):
    """What the indices of one vector are: shape, K of each, and whether each may be -1."""

    tail: tuple[int, ...]
    codes: tuple[int, ...]
    optional: tuple[bool, ...]


def numbers_of(part: AnyQuantizer) -> Numbers:
    """The indices that a part gives one vector.

    Example:
        >>> from softvq.nn.hard import HardVQ
        >>> numbers_of(HardVQ(8, 4))
        Numbers(tail=(), codes=(8,), optional=(False,))
    """
    if isinstance(part, Arrangement):
        return Numbers(part.index_tail, part.codes_per_index, part.optional)
    return Numbers((), (part.num_codes,), (False,))


def prefixed(name: str, outputs: Sequence[QuantizerOutput]) -> dict[str, Tensor]:
    """Stats of several parts in one mapping: "stage0.ols", "stage1.ols".

    Example:
        >>> one = torch.ones(())
        >>> out = QuantizerOutput(one, one, one, {"a": one})
        >>> list(prefixed("stage", [out, out]))
        ['stage0.a', 'stage1.a']
    """
    return {
        f"{name}{i}.{key}": value
        for i, out in enumerate(outputs)
        for key, value in out.stats.items()
    }


@contextmanager
def hard_answers(module: nn.Module) -> Iterator[None]:
    """Inside the block a module is in eval mode, whatever mode each of its parts was in."""
    before = [(each, each.training) for each in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for each, training in before:
            each.training = training


class Several(Arrangement):
    """Quantizers side by side or one after the other; one object in several places is shared."""

    def __init__(self, quantizers: Sequence[AnyQuantizer], dim: int, *, layout: str) -> None:
        super().__init__(dim, layout=layout)
        numbers = [numbers_of(each) for each in quantizers]
        self.index_tail = (len(quantizers), *numbers[0].tail)
        self.codes_per_index = tuple(num for each in numbers for num in each.codes)
        self.optional = tuple(may for each in numbers for may in each.optional)
        unique = list({id(each): each for each in quantizers}.values())
        self.quantizers = nn.ModuleList(unique)
        places = {id(each): i for i, each in enumerate(unique)}
        self.order = tuple(places[id(each)] for each in quantizers)
        for i, each in enumerate(unique):
            _share(each, self.order.count(i))

    @property
    def parts(self) -> list[AnyQuantizer]:
        """The quantizers in their order; a shared one as often as it is used."""
        return [self.quantizers[i] for i in self.order]  # type: ignore[misc]


class Single(Arrangement):
    """One quantizer with something around it; its indices are the part's."""

    def __init__(self, vq: AnyQuantizer, dim: int, *, layout: str) -> None:
        super().__init__(dim, layout=layout)
        self.vq = vq
        self.index_tail, self.codes_per_index, self.optional = numbers_of(vq)


def _share(part: AnyQuantizer, times: int) -> None:
    for each in [part] if isinstance(part, Quantizer) else part.codebooks():
        each.share_(each._tally.passes * times)
