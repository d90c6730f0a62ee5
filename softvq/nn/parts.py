"""Parts of arrangements: what may be one, how their indices lie, several or one inside another."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor, nn

from softvq.nn.arrangement import AnyQuantizer, Arrangement
from softvq.nn.base import Quantizer
from softvq.types import QuantizerOutput


def check_quantizer(argument: str, part: object) -> AnyQuantizer:
    """Return ``part`` if it is a quantizer of softvq.

    Raises:
        ValueError: Otherwise.

    Example:
        >>> from softvq.nn.hard import HardVQ
        >>> check_quantizer("vq", HardVQ(8, 4)).dim
        4
    """
    if not isinstance(part, Quantizer | Arrangement):
        raise ValueError(
            f"{argument} must be a quantizer of softvq, such as SoftVQ or ResidualVQ; got "
            f"{type(part).__name__}."
        )
    return part


def check_part(argument: str, part: object) -> AnyQuantizer:
    """Return ``part`` if it is a quantizer of softvq on channels last.

    Raises:
        ValueError: Otherwise.

    Example:
        >>> from softvq.nn.hard import HardVQ
        >>> check_part("vq", HardVQ(8, 4)).dim
        4
    """
    part = check_quantizer(argument, part)
    if part.layout != "channels_last":
        raise ValueError(
            f"{argument} has layout={part.layout!r}: parts inside work on channels last. Leave its "
            "layout out and give it to the outermost part."
        )
    return part


def check_parts(argument: str, parts: Sequence[object]) -> list[AnyQuantizer]:
    """Return ``parts`` if each is a quantizer on channels last and their indices agree in shape.

    Raises:
        ValueError: Otherwise, for none, or for a codebook that two different parts hold.

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
    _check_apart(argument, checked)
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


def stored_dtype(part: AnyQuantizer) -> torch.dtype:
    """The dtype of a part's codes, the widest of several.

    Example:
        >>> from softvq.nn.hard import HardVQ
        >>> stored_dtype(HardVQ(8, 4))
        torch.float32
    """
    if isinstance(part, Arrangement):
        return part.stored_dtype()
    return getattr(part, part._stored).dtype


def fits(part: AnyQuantizer, tail: tuple[int, ...]) -> bool:
    """Whether a part takes indices of this tail, see `Arrangement.fits`.

    Example:
        >>> from softvq.nn.hard import HardVQ
        >>> fits(HardVQ(8, 4), ()), fits(HardVQ(8, 4), (2,))
        (True, False)
    """
    return part.fits(tail) if isinstance(part, Arrangement) else tail == ()


def books_of(part: AnyQuantizer) -> list[AnyQuantizer]:
    """What each index of a part is looked up in, in the order in which they lie.

    Example:
        >>> from softvq.nn.hard import HardVQ
        >>> len(books_of(HardVQ(8, 4)))
        1
    """
    return part.books() if isinstance(part, Arrangement) else [part]


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


def share_of_variance(part: AnyQuantizer, whole: Tensor) -> Tensor | float:
    """How much of the variance of a whole is that of a part's vectors, up to 1.

    Weighed by it, losses in units of their own variance have that of the whole. 1 where the part
    follows none, or nothing has been seen.

    Example:
        >>> from softvq.nn.soft import SoftVQ
        >>> vq = SoftVQ(4, 2)
        >>> share_of_variance(vq, 4 * vq.seen_variance).item()
        0.25
    """
    own = part.seen_variance
    if own is None:
        return 1.0
    share = own / whole.clamp_min(torch.finfo(whole.dtype).tiny)
    return share.nan_to_num(1.0).clamp_max(1)


@contextmanager
def hard_answers(module: nn.Module) -> Iterator[None]:
    """Inside the block a module is in eval mode, whatever mode each of its parts was in."""
    before = [(each, each.training) for each in module.modules()]
    for each, _ in before:  # past eval(), by which a user asks for codes
        each.training = False
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

    def stored_dtype(self) -> torch.dtype:
        """The widest of the parts'."""
        return reduce(torch.promote_types, map(stored_dtype, self.parts))

    def books(self) -> list[AnyQuantizer]:
        """Those of the parts, one behind the other."""
        return [each for part in self.parts for each in books_of(part)]

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

    def stored_dtype(self) -> torch.dtype:
        """The part's."""
        return stored_dtype(self.vq)

    @property
    def seen_variance(self) -> Tensor | None:
        """The part's."""
        return self.vq.seen_variance

    def books(self) -> list[AnyQuantizer]:
        """The part's."""
        return books_of(self.vq)

    def fits(self, tail: tuple[int, ...]) -> bool:
        """Whether the part takes them."""
        return fits(self.vq, tail)


def _share(part: AnyQuantizer, times: int) -> None:
    for each in [part] if isinstance(part, Quantizer) else part.codebooks():
        each.share_(each._tally.passes * times)


def _check_apart(argument: str, parts: list[AnyQuantizer]) -> None:
    """Raise where a codebook is in two parts, which a config could not say."""
    owner: dict[int, int] = {}
    places: dict[int, int] = {}
    for place, part in enumerate(parts):
        first = places.setdefault(id(part), place)
        for each in [part] if isinstance(part, Quantizer) else part.codebooks():
            other = owner.setdefault(id(each), first)
            if other != first:
                raise ValueError(
                    f"{argument}[{other}] and {argument}[{place}] hold the same codebook in two "
                    "different parts, which no file can say. Give one object twice, or a codebook "
                    "to each."
                )
