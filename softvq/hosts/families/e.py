"""Family E: ``(z_q, dict)`` or one dict: TiTok, sonnet, vqtorch, pythae.

One entry is the loss that hosts add to theirs; the terms that it is the sum of become zero.
"""

from softvq.hosts.families.shape import Kinds, holds


def match(kinds: Kinds) -> str | None:
    """The family's name, if this is its tree.

    Example:
        >>> match({"quantize": "quantized", "loss": "loss", "encoding_indices": "indices"})[:1]
        'E'
    """
    entries = kinds[1] if isinstance(kinds, tuple) and len(kinds) == 2 else kinds
    if not isinstance(entries, dict) or holds(kinds, "unknown"):
        return None
    if not (holds(kinds, "quantized") and holds(kinds, "loss")):
        return None
    return "E (TiTok, sonnet): z_q, losses and indices in a dict"
