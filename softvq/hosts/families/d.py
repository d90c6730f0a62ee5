"""Family D: ``(z_q, loss, indices)``: rosinality, karpathy, Chameleon; or ``(z_q, loss)`` alone."""

from softvq.hosts.families.shape import Kinds


def match(kinds: Kinds) -> str | None:
    """The family's name, if this is its tree.

    Example:
        >>> match(("quantized", "loss", "indices"))[:1]
        'D'
    """
    if kinds in (("quantized", "loss", "indices"), ("quantized", "loss")):
        return "D (rosinality, Chameleon): (z_q, loss[, indices])"
    return None
