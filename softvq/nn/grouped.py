"""Quantizers on parts of a vector: groups, heads, and one index for all of them."""

from collections.abc import Sequence
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Integer
from torch import Tensor

from softvq.checks import check_count
from softvq.functional.precision import at_least_float32
from softvq.nn.arrangement import AnyQuantizer
from softvq.nn.kinds import build, describe, register
from softvq.nn.parts import (
    Several,
    Single,
    books_of,
    check_part,
    check_parts,
    fits,
    prefixed,
    share_of_variance,
)
from softvq.types import QuantizerOutput

MOST_CODES = 2**62


@register
class GroupedVQ(Several):
    """Features in groups, each with a quantizer of its own: K_1 x ... x K_G vectors from few codes.

    A product codebook ("Product Quantization for Nearest Neighbor Search", Jegou, Douze and Schmid,
    2011). The loss weighs each group by its share of the features, or of the variance where it has
    no unit (`softvq.Loss`), as one codebook for all would.

    Args:
        quantizers: One a group; their D add up to the features of a vector. One object several
            times is a shared codebook.
        dim: D of the whole, where it is to be checked.
        layout: "channels_last" (..., N, D) or "channels_first" (B, D, ...).

    Raises:
        ValueError: For quantizers whose indices differ in shape, or whose D do not add up to
            ``dim``.

    Example:
        >>> from softvq.nn.hard import HardVQ
        >>> vq = GroupedVQ([HardVQ(8, 2), HardVQ(16, 4)])
        >>> vq(torch.sin(torch.arange(120.0)).reshape(2, 10, 6)).indices.shape, vq.num_codes
        (torch.Size([2, 10, 2]), 128)
    """

    def __init__(
        self,
        quantizers: Sequence[AnyQuantizer],
        *,
        dim: int | None = None,
        layout: str = "channels_last",
    ) -> None:
        groups = check_parts("quantizers", quantizers)
        dims = [each.dim for each in groups]
        if dim is not None and sum(dims) != check_count("dim", dim):
            raise ValueError(
                f"dim is {dim}, but the groups have {dims} features, {sum(dims)} in all: "
                f"{len(dims)} equal groups need a dim that {len(dims)} divides."
            )
        super().__init__(groups, sum(dims), layout=layout)

    def config(self) -> dict[str, Any]:
        """What the constructor was given, as plain JSON values."""
        return {
            "quantizers": [describe(each) for each in self.quantizers],  # type: ignore[arg-type]
            "order": list(self.order),
            "dim": self.dim,
            "layout": self.layout,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "GroupedVQ":
        """A fresh GroupedVQ of the groups and options that ``config`` names."""
        parts = dict(config)
        made = [build(each) for each in parts.pop("quantizers")]
        return cls([made[i] for i in parts.pop("order")], **parts)

    def look_up(self, indices: Integer[Tensor, "..."]) -> Tensor:
        """The codes of the groups side by side, (..., D)."""
        found = indices.unbind(indices.ndim - len(self.index_tail))
        pairs = zip(self.parts, found, strict=True)
        return torch.cat([at_least_float32(each.look_up(part)) for each, part in pairs], -1)

    def fits(self, tail: tuple[int, ...]) -> bool:
        """Whether these are all groups, and each takes the rest."""
        return tail[0] == len(self.order) and all(fits(each, tail[1:]) for each in self.parts)

    def _arrange(self, rows: Tensor, mask: Tensor | None) -> QuantizerOutput:
        outputs = [
            each(part, mask=mask) for each, part in zip(self.parts, self._split(rows), strict=True)
        ]
        losses = [share * out.loss for share, out in zip(self._shares(), outputs, strict=True)]
        return QuantizerOutput(
            torch.cat([out.quantized for out in outputs], -1),
            torch.stack([out.indices for out in outputs], rows.ndim - 1),
            torch.stack(losses).sum(),
            prefixed("group", outputs),
        )

    @property
    def seen_variance(self) -> Tensor | None:
        """The sum of the groups'."""
        found = [each.seen_variance for each in self.parts]
        known = [each for each in found if each is not None]
        return torch.stack(known).sum() if len(known) == len(found) else None

    def _shares(self) -> Sequence[Tensor | float]:
        whole = self.seen_variance
        if whole is None or not self.has_free_loss:
            return [each.dim / self.dim for each in self.parts]
        return [share_of_variance(each, whole) for each in self.parts]

    def _start(self, rows: Tensor, mask: Tensor | None) -> None:
        started = set()
        for place, each, part in zip(self.order, self.parts, self._split(rows), strict=True):
            if place not in started:
                each.start_(part, mask=mask)
                started.add(place)

    def _split(self, rows: Tensor) -> list[Tensor]:
        return list(rows.split([each.dim for each in self.parts], -1))


@register
class MultiHeadVQ(Single):
    """Features in heads that share one quantizer: H indices a vector from one codebook.

    Args:
        vq: Takes D / H features.
        num_heads: H.
        layout: "channels_last" (..., N, D) or "channels_first" (B, D, ...).

    Raises:
        ValueError: For a part that is no quantizer, or a number that makes no sense.

    Example:
        >>> from softvq.nn.hard import HardVQ
        >>> vq = MultiHeadVQ(HardVQ(8, 2), num_heads=3)
        >>> vq(torch.sin(torch.arange(120.0)).reshape(2, 10, 6)).indices.shape, vq.num_codes
        (torch.Size([2, 10, 3]), 512)
    """

    def __init__(self, vq: AnyQuantizer, *, num_heads: int, layout: str = "channels_last") -> None:
        check_part("vq", vq)
        self.num_heads = check_count("num_heads", num_heads)
        super().__init__(vq, vq.dim * num_heads, layout=layout)
        self.index_tail = (num_heads, *self.index_tail)
        self.codes_per_index *= num_heads
        self.optional *= num_heads

    def config(self) -> dict[str, Any]:
        """What the constructor was given, as plain JSON values."""
        return {"vq": describe(self.vq), "num_heads": self.num_heads, "layout": self.layout}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "MultiHeadVQ":
        """A fresh MultiHeadVQ of the part and options that ``config`` names."""
        return cls(build(config["vq"]), num_heads=config["num_heads"], layout=config["layout"])

    @property
    def seen_variance(self) -> Tensor | None:
        """That of all heads."""
        inner = self.vq.seen_variance
        return None if inner is None else self.num_heads * inner

    def look_up(self, indices: Integer[Tensor, "..."]) -> Tensor:
        """The codes of the heads side by side, (..., D)."""
        found = at_least_float32(self.vq.look_up(indices))
        return rearrange(found, "... h d -> ... (h d)")

    def books(self) -> list[AnyQuantizer]:
        """Those of the part, once a head."""
        return books_of(self.vq) * self.num_heads

    def fits(self, tail: tuple[int, ...]) -> bool:
        """Whether these are all heads, and the part takes the rest."""
        return tail[0] == self.num_heads and fits(self.vq, tail[1:])

    def _arrange(self, rows: Tensor, mask: Tensor | None) -> QuantizerOutput:
        out = self.vq(self._split(rows), mask=self._spread(mask))
        return out._replace(quantized=rearrange(out.quantized, "... h d -> ... (h d)"))

    def _start(self, rows: Tensor, mask: Tensor | None) -> None:
        self.vq.start_(self._split(rows), mask=self._spread(mask))

    def _split(self, rows: Tensor) -> Tensor:
        return rearrange(rows, "... (h d) -> ... h d", h=self.num_heads)

    def _spread(self, mask: Tensor | None) -> Tensor | None:
        return None if mask is None else mask[..., None].expand(*mask.shape, self.num_heads)


@register
class OneIndex(Single):
    """The indices of a vector as one number, so that a generator sees one token.

    Mixed radix, the first index in the highest place: with K codes in each of two groups, i K + j.
    A `GroupedVQ` of two codebooks of 512 inside gives a product codebook of 2^18 codes.

    Args:
        vq: Gives several indices; stage dropout has no number for a stage left out.
        layout: "channels_last" (..., N, D) or "channels_first" (B, D, ...).

    Raises:
        ValueError: For a part with dropout, or more values than an int64 holds.

    Example:
        >>> from softvq.nn.hard import HardVQ
        >>> vq = OneIndex(GroupedVQ([HardVQ(512, 2, seed=seed) for seed in range(2)]))
        >>> vq.num_codes == 2**18, vq.codes(torch.tensor([0, 2**18 - 1])).shape
        (True, torch.Size([2, 4]))
    """

    def __init__(self, vq: AnyQuantizer, *, layout: str = "channels_last") -> None:
        check_part("vq", vq)
        super().__init__(vq, vq.dim, layout=layout)
        self.inner_tail, self.radices = self.index_tail, self.codes_per_index
        if any(getattr(each, "dropout", 0) > 0 for each in vq.modules()):
            raise ValueError(
                "vq leaves out stages (dropout), for which one index has no number: use dropout=0."
            )
        if self.num_codes > MOST_CODES:
            raise ValueError(
                f"vq has {self.num_codes} values together, more than an int64 index holds."
            )
        self.index_tail, self.codes_per_index, self.optional = (), (self.num_codes,), (False,)

    def config(self) -> dict[str, Any]:
        """What the constructor was given, as plain JSON values."""
        return {"vq": describe(self.vq), "layout": self.layout}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "OneIndex":
        """A fresh OneIndex of the part that ``config`` names."""
        return cls(build(config["vq"]), layout=config["layout"])

    def look_up(self, indices: Integer[Tensor, "..."]) -> Tensor:
        """The vector of each number, (..., D)."""
        digits, rest = [], indices
        for radix in reversed(self.radices):
            digits.append(torch.where(indices < 0, -1, rest % radix))
            rest = rest.div(radix, rounding_mode="floor")
        split = torch.stack(digits[::-1], -1)
        return at_least_float32(self.vq.look_up(split.reshape(*indices.shape, *self.inner_tail)))

    def books(self) -> list[AnyQuantizer]:
        """Itself: the number is of all parts together."""
        return [self]

    def fits(self, tail: tuple[int, ...]) -> bool:
        """Whether it is one number."""
        return tail == ()

    def _arrange(self, rows: Tensor, mask: Tensor | None) -> QuantizerOutput:
        out = self.vq(rows, mask=mask)
        digits = out.indices.reshape(*rows.shape[:-1], len(self.radices))
        joined = torch.zeros_like(digits[..., 0])
        for radix, digit in zip(self.radices, digits.unbind(-1), strict=True):
            joined = joined * radix + digit
        joined = torch.where(digits[..., 0] < 0, -1, joined)
        return out._replace(indices=joined)

    def _start(self, rows: Tensor, mask: Tensor | None) -> None:
        self.vq.start_(rows, mask=mask)
