"""Families that no adapter knows: F, G and H. They are refused by name."""

from softvq.hosts.families.shape import Kinds


def name(kinds: Kinds) -> str:
    """What a tree is called that belongs to none of A to E.

    Example:
        >>> name((("quantized", "zero", "indices"), ("loss", "loss")))[:1]
        'F'
    """
    if isinstance(kinds, tuple) and len(kinds) == 2 and isinstance(kinds[0], tuple):
        return "F (SimVQ, Open-MAGVIT2): ((z_q, aux, indices), loss breakdown)"
    if isinstance(kinds, tuple) and len(kinds) == 5 and kinds[0] == "quantized":
        return "G (DAC): (z_q, commitment, codebook loss, indices, latents)"
    return f"H (a form of its own): {render(kinds)}"


def render(kinds: Kinds) -> str:
    """A tree of kinds in one line.

    Example:
        >>> render(("quantized", {"n": "loss"}))
        '(quantized, {n: loss})'
    """
    if isinstance(kinds, dict):
        return "{" + ", ".join(f"{key}: {render(each)}" for key, each in kinds.items()) + "}"
    if isinstance(kinds, tuple):
        return "(" + ", ".join(render(each) for each in kinds) + ")"
    return str(kinds)
