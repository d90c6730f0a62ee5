"""The result trees that hosts return, one file a family, told apart by what each leaf is."""

from softvq.hosts.families import a, b, c, d, e, refused
from softvq.hosts.families.shape import Kinds

KNOWN = (a, b, c, d, e)


def name_family(kinds: Kinds) -> str | None:
    """The family whose tree this is, or None.

    Args:
        kinds: The tree with the kind of each leaf in its place.

    Example:
        >>> name_family(("quantized", "indices", "loss"))[:1]
        'C'
    """
    found = (family.match(kinds) for family in KNOWN)
    return next((name for name in found if name is not None), None)


def name_refused(kinds: Kinds) -> str:
    """What a tree that no adapter knows looks like: F, G, or one of the odd ones, H.

    Example:
        >>> name_refused(("quantized", "perplexity", "loss"))[:1]
        'H'
    """
    return refused.name(kinds)
