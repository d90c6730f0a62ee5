"""Vectors of several indices: how they lie in the tokens, and what each is looked up in."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn

from softvq.export.vocabulary import check_tokens
from softvq.nn import Arrangement, Quantizer
from softvq.nn.arrangement import AnyQuantizer
from softvq.nn.parts import books_of, numbers_of

MOST_VALUES = 2**26
"""Of a table that is written out: 256 MiB of float32."""


class IndexLayout(NamedTuple):
    """The indices of one vector.

    Example:
        >>> IndexLayout((4,), (1024,) * 4, (0, 1, 2, 3)).tail
        (4,)
    """

    tail: tuple[int, ...]
    """Their shape, the last axes of the tokens of an item; () for one index."""
    codes: tuple[int, ...]
    """K of each, in the order in which they lie."""
    books: tuple[int, ...]
    """Which codebook each is of: the same number twice where two share one."""


def find_outermost(model: nn.Module) -> list[AnyQuantizer]:
    """Quantizers of softvq in a model that are no part of another.

    Example:
        >>> from softvq.nn import HardVQ, ResidualVQ
        >>> vq = ResidualVQ([HardVQ(8, 4)] * 2)
        >>> find_outermost(nn.Sequential(nn.Linear(4, 4), vq)) == [vq]
        True
    """
    found: list[AnyQuantizer] = []
    inside: set[int] = set()
    for module in model.modules():
        if isinstance(module, Quantizer | Arrangement) and id(module) not in inside:
            found.append(module)
            inside |= {id(each) for each in module.modules()}
    return found


def list_books(quantizers: Sequence[AnyQuantizer]) -> list[AnyQuantizer]:
    """What indices of some quantizers are looked up in, each once, in the order of the indices.

    Example:
        >>> from softvq.nn import HardVQ, MultiHeadVQ
        >>> len(list_books([MultiHeadVQ(HardVQ(8, 4), num_heads=3)]))
        1
    """
    books = [book for each in quantizers for book in books_of(each)]
    return list({id(book): book for book in books}.values())


@torch.no_grad()
def table_of(book: AnyQuantizer) -> Tensor:
    """The vectors of all indices (K, D), on the CPU, copied.

    Raises:
        ValueError: If they are too many to be written out.

    Example:
        >>> from softvq.nn import SoftFSQ
        >>> table_of(SoftFSQ([3, 5])).shape
        torch.Size([15, 2])
    """
    if isinstance(book, Quantizer):
        return book.codebook.detach().cpu().clone()
    if book.num_codes * book.dim > MOST_VALUES:
        raise ValueError(
            f"{type(book).__name__} has {book.num_codes:,} vectors of {book.dim} features, too "
            "many for a table: export the quantizer inside, whose indices are smaller."
        )
    device = next((each.device for each in book.buffers()), torch.device("cpu"))
    return book.look_up(torch.arange(book.num_codes, device=device)).cpu().clone()


def lay_indices(model: nn.Module, sizes: Sequence[int]) -> IndexLayout:
    """How the indices of a vector lie in the tokens of a model.

    Args:
        model: With quantizers of softvq, or of another package.
        sizes: K of each of its codebooks.

    Returns:
        Of a model of another package with several codebooks, or with several quantizers: an axis
        with an index for each.

    Example:
        >>> from softvq.nn import HardVQ, MultiHeadVQ
        >>> lay_indices(MultiHeadVQ(HardVQ(8, 4), num_heads=2), [8])
        IndexLayout(tail=(2,), codes=(8, 8), books=(0, 0))
    """
    quantizers = find_outermost(model)
    if len(quantizers) != 1:
        several = (len(sizes),) if len(sizes) > 1 else ()
        return IndexLayout(several, tuple(sizes), tuple(range(len(sizes))))
    (whole,) = quantizers
    places = {id(book): place for place, book in enumerate(list_books(quantizers))}
    tail, codes, _ = numbers_of(whole)
    return IndexLayout(tail, codes, tuple(places[id(book)] for book in books_of(whole)))


def apart(tokens: Int[Tensor, "..."], tail: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Tokens of each index of a vector by itself.

    Example:
        >>> [each.tolist() for each in apart(torch.tensor([[0, 1], [2, 3]]), (2,))]
        [[0, 2], [1, 3]]
    """
    return tokens.reshape(*tokens.shape[: tokens.ndim - len(tail)], -1).unbind(-1)


def check_each(
    argument: str, tokens: Int[Tensor, "..."], *, tail: tuple[int, ...], codes: Sequence[int]
) -> None:
    """Raise unless each index of a vector is a code of its own codebook.

    Raises:
        ValueError: Naming which of the indices is not.

    Example:
        >>> check_each("tokens", torch.tensor([[7, 3]]), tail=(2,), codes=(8, 4))
    """
    if len(codes) == 1:
        check_tokens(argument, tokens, num_codes=codes[0])
        return
    for place, (each, num) in enumerate(zip(apart(tokens, tail), codes, strict=True)):
        check_tokens(f"{argument}, index {place} of each vector,", each, num_codes=num)
