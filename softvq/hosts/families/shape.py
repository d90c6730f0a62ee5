"""What the families have in common: a tree of kinds, and the groups that kinds form."""

from typing import Any

Kinds = Any  # a tuple, dict or string of kinds, nested as the host nests its results

SCALARS = ("loss", "zero", "constant", "none", "perplexity")


def is_losses(kinds: Kinds) -> bool:
    """Whether this is a loss, or a tuple of terms of which one is.

    Example:
        >>> is_losses("loss"), is_losses(("loss", "zero")), is_losses(("zero",))
        (True, True, False)
    """
    if isinstance(kinds, tuple):
        return "loss" in kinds and all(each in SCALARS for each in kinds)
    return kinds == "loss"


def holds(kinds: Kinds, kind: str) -> bool:
    """Whether some leaf is of this kind.

    Example:
        >>> holds(("quantized", {"a": "indices"}), "indices")
        True
    """
    if isinstance(kinds, dict):
        return any(holds(each, kind) for each in kinds.values())
    if isinstance(kinds, tuple):
        return any(holds(each, kind) for each in kinds)
    return kinds == kind
