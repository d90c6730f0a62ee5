"""What a prior must know of its tokens: codes, special tokens, grid, taken from the manifest.

An item is its start token, then its codes row by row. The start token is that of its class,
``class/0``, ``class/1``, ..., or ``bos`` where no class is told.

Shape letters: B items, L codes an item.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Int
from torch import Tensor

from softvq.export import TokenDataset

BOS = "bos"
CLASS = "class/"
NO_CLASS = -1
"""Label of an item of which no class is told."""


def name_specials(num_classes: int | None) -> list[str]:
    """Special tokens that a prior needs, as `softvq.export_tokens` takes them.

    Args:
        num_classes: Of the data; None without classes.

    Example:
        >>> name_specials(2)
        ['bos', 'class/0', 'class/1']
    """
    return [BOS, *(f"{CLASS}{i}" for i in range(num_classes or 0))]


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Numbers of codes and special tokens, and what the codes stand for.

    Attributes:
        num_codes: K.
        vocab_size: K and the specials: rows of the embedding.
        bos: Number of the token that begins an item of no told class.
        classes: Numbers of the tokens of the classes; empty where items begin with BOS alone.
        grid: Shape of the codes of an item.
        codebook_digest: SHA-256 of the codes.
    """

    num_codes: int
    vocab_size: int
    bos: int
    classes: tuple[int, ...]
    grid: tuple[int, ...]
    codebook_digest: str

    @property
    def length(self) -> int:
        """L, codes an item."""
        return torch.Size(self.grid).numel()

    def to_json(self) -> dict[str, Any]:
        """Plain values; `read_vocabulary` reads them."""
        return {
            name: list(each) if isinstance(each, tuple) else each
            for name, each in asdict(self).items()
        }

    def starts(self, labels: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        """Start tokens of labels.

        Args:
            labels: Classes; -1 for items of which none is told.

        Raises:
            ValueError: For a class that the manifest has no token for.
        """
        num = len(self.classes)
        wrong = labels[(labels < NO_CLASS) | (labels >= num)]
        if len(wrong):
            raise ValueError(
                f"labels must be classes in [0, {num}), the class tokens of the manifest, or -1 "
                f"for none; got {int(wrong[0])}."
            )
        return torch.tensor([*self.classes, self.bos], device=labels.device)[labels]

    def inputs(self, codes: Int[Tensor, "b l"], labels: Int[Tensor, " b"]) -> Int[Tensor, "b l"]:
        """What the net sees when it predicts ``codes``: the start token and all codes but the last.

        Args:
            codes: Flat, row by row.
            labels: As for `starts`.
        """
        return torch.cat([rearrange(self.starts(labels), "b -> b 1"), codes[:, :-1]], dim=1)


def read_vocabulary(values: dict[str, Any]) -> Vocabulary:
    """A vocabulary of the plain values that its ``to_json`` gave.

    Example:
        >>> given = Vocabulary(
        ...     num_codes=2, vocab_size=3, bos=2, classes=(), grid=(2, 2), codebook_digest=""
        ... )
        >>> read_vocabulary(given.to_json()) == given
        True
    """
    lists = {name: tuple(values[name]) for name in ("classes", "grid")}
    return Vocabulary(**{**values, **lists})


def take_vocabulary(tokens: TokenDataset, *, conditional: bool = True) -> Vocabulary:
    """The vocabulary of a token set, by its manifest.

    Args:
        tokens: The set.
        conditional: Whether items shall begin with the token of their class.

    Raises:
        ValueError: If the manifest lacks a special token that is needed, or the set its labels.
    """
    specials = tokens.specials
    if BOS not in specials:
        raise ValueError(_tell_missing(tokens, f"no special token {BOS!r}"))
    if len(tokens.grid) == 0:
        raise ValueError(f"tokens in {tokens.folder} have one code an item: no sequence to learn.")
    classes: list[int] = []
    if conditional:
        if tokens.num_classes is None:
            raise ValueError(
                f"tokens in {tokens.folder} have no labels: export a set that has classes, or "
                "train without them (conditional=false)."
            )
        named = [name for name in specials if name.startswith(CLASS)]
        classes = [specials[name] for name in name_specials(len(named))[1:] if name in specials]
        if len(classes) < max(tokens.num_classes, len(named)):
            what = f"{len(classes)} of the class tokens of {tokens.num_classes} classes"
            raise ValueError(_tell_missing(tokens, what))
    return Vocabulary(
        num_codes=tokens.num_codes,
        vocab_size=tokens.vocab_size,
        bos=specials[BOS],
        classes=tuple(classes),
        grid=tokens.grid,
        codebook_digest=tokens.manifest.plan.codebook_digest,
    )


def check_same(vocabulary: Vocabulary, other: Vocabulary, *, what: str) -> None:
    """Raise unless two sets of tokens mean the same.

    Args:
        vocabulary: Of the prior.
        other: Of what is given to it.
        what: Names that, for the message.

    Raises:
        ValueError: Naming what differs.

    Example:
        >>> given = Vocabulary(
        ...     num_codes=2, vocab_size=3, bos=2, classes=(), grid=(2, 2), codebook_digest=""
        ... )
        >>> check_same(given, given, what="the same")
    """
    mine, theirs = vocabulary.to_json(), other.to_json()
    differing = [f"{k} {theirs[k]} instead of {mine[k]}" for k in mine if mine[k] != theirs[k]]
    if differing:
        raise ValueError(
            f"{what} must have the vocabulary that the prior learns; has {'; '.join(differing)}. "
            "Export both sets with the same model and the same specials."
        )


def flat_codes(tokens: Int[Tensor, "b ..."]) -> Int[Tensor, "b l"]:
    """Codes of items row by row.

    Example:
        >>> flat_codes(torch.zeros(3, 8, 8, dtype=torch.int64)).shape
        torch.Size([3, 64])
    """
    return rearrange(tokens, "b ... -> b (...)")


def _tell_missing(tokens: TokenDataset, what: str) -> str:
    wanted = ",".join(name_specials(tokens.num_classes))
    return (
        f"tokens in {tokens.folder} have {what}; their specials are "
        f"{', '.join(tokens.specials) or 'none'}. Export them with --specials {wanted}."
    )
