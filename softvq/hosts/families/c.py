"""Family C: ``(z_q, indices, loss)``, vector-quantize-pytorch and encodec.

A module with ``encode`` and ``decode`` in place of a forward (the ports of transformers) gets a
forward of this form while it is swapped.
"""

from softvq.hosts.families.shape import Kinds


def match(kinds: Kinds) -> str | None:
    """The family's name, if this is its tree.

    Example:
        >>> match(("quantized", "indices", "loss"))[:1]
        'C'
    """
    if kinds == ("quantized", "indices", "loss"):
        return "C (vector-quantize-pytorch, encodec): (z_q, indices, loss)"
    return None
