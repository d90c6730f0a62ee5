"""Family B: the tutorials, loss first: ``(loss, z_q, perplexity, one_hot[, indices])``."""

from softvq.hosts.families.shape import Kinds

REST = ("none", "perplexity", "one_hot", "indices", "distances")


def match(kinds: Kinds) -> str | None:
    """The family's name, if this is its tree.

    Example:
        >>> match(("loss", "quantized", "perplexity", "one_hot"))[:1]
        'B'
    """
    if not (isinstance(kinds, tuple) and kinds[:2] == ("loss", "quantized")):
        return None
    if not all(each in REST for each in kinds[2:]):
        return None
    return "B (tutorials): (loss, z_q, perplexity, one_hot[, indices])"
