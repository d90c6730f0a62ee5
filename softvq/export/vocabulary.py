"""Numbers of a token set: codes from 0 to K - 1, special tokens right behind, and their width."""

from collections.abc import Iterable, Mapping

import torch
from jaxtyping import Shaped
from torch import Tensor

DTYPES = {"uint8": torch.uint8, "uint16": torch.uint16, "uint32": torch.uint32}


def number_specials(names: Iterable[str], *, num_codes: int) -> dict[str, int]:
    """Give special tokens the numbers K, K + 1, ... in the order of their names.

    Args:
        names: Such as "bos", "mask", "class/7".
        num_codes: K.

    Returns:
        Number of each name.

    Raises:
        ValueError: For a name that comes twice, is empty or no text, or one text instead of a list.

    Example:
        >>> number_specials(["bos", "mask"], num_codes=256)
        {'bos': 256, 'mask': 257}
    """
    if isinstance(names, str):
        raise ValueError(f"specials must be a list of names; got {names!r}: write [{names!r}].")
    numbers: dict[str, int] = {}
    for name in names:
        if not isinstance(name, str) or not name or name in numbers:
            raise ValueError(f"specials must be different names; got {name!r} (twice, or empty).")
        numbers[name] = num_codes + len(numbers)
    return numbers


def narrowest_dtype(vocab_size: int, *, least: str = "uint8") -> str:
    """Name of the narrowest unsigned type that holds 0 to ``vocab_size - 1``.

    Args:
        vocab_size: K and the specials.
        least: No narrower than this.

    Raises:
        ValueError: If none does.

    Example:
        >>> [narrowest_dtype(size) for size in (256, 257, 65536, 65537)]
        ['uint8', 'uint16', 'uint16', 'uint32']
    """
    names = list(DTYPES)
    for name in names[names.index(least) :]:
        if vocab_size <= 2 ** (8 * DTYPES[name].itemsize):
            return name
    raise ValueError(f"vocab_size is {vocab_size}; at most {2**32} fit into 32 bits.")


def check_tokens(
    argument: str,
    tokens: Shaped[Tensor, "..."],
    *,
    num_codes: int,
    specials: Mapping[str, int] | None = None,
) -> None:
    """Raise unless every token is a code; plain indexing would read -1 as the last one.

    Args:
        argument: Name of the argument, for the message.
        tokens: Whole numbers of any shape.
        num_codes: K.
        specials: Numbers of the special tokens, to be named.

    Raises:
        ValueError: For numbers that are not whole, or the first that is no code and where it is.

    Example:
        >>> check_tokens("tokens", torch.tensor([0, 7]), num_codes=8)
    """
    if not isinstance(tokens, Tensor):
        raise ValueError(f"{argument} must be a tensor; got {type(tokens).__name__}.")
    if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise ValueError(f"{argument} must be whole numbers; got {tokens.dtype}.")
    whole = tokens.to(torch.int64)
    wrong = (whole < 0) | (whole >= num_codes)
    if not bool(wrong.any()):
        return
    place = [int(i) for i in wrong.nonzero()[0]]
    value = int(whole[wrong][0])
    names = [name for name, number in (specials or {}).items() if number == value]
    what = f", the special token {names[0]!r}" if names else ""
    remedy = (
        "Take special tokens out first." if value >= num_codes else "Take masked positions out."
    )
    raise ValueError(
        f"{argument} must be codes in [0, {num_codes}); got {value}{what} at {place}, and "
        f"{int(wrong.sum())} such in all. {remedy}"
    )
