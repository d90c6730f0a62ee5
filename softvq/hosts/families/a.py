"""Family A: what taming-transformers began and diffusers, latent-diffusion and CVQ-VAE kept.

``(z_q, loss, (perplexity | None, one_hot | None, indices))``, where the second slot may be a tuple
of loss terms (A': LlamaGen, SoftVQ-VAE, IBQ), which gets SoftVQ's loss first and zeros after it.
"""

from softvq.hosts.families.shape import Kinds, is_losses

INFO = ("none", "perplexity", "one_hot", "indices", "constant", "zero")


def match(kinds: Kinds) -> str | None:
    """The family's name, if this is its tree.

    Example:
        >>> match(("quantized", ("loss", "zero"), ("none", "none", "indices")))[:2]
        "A'"
    """
    if not (isinstance(kinds, tuple) and len(kinds) == 3 and kinds[0] == "quantized"):
        return None
    _, losses, info = kinds
    if not (isinstance(info, tuple) and "indices" in info and all(each in INFO for each in info)):
        return None
    if not is_losses(losses):
        return None
    if isinstance(losses, tuple):
        return "A' (LlamaGen): (z_q, (losses), (perplexity, one_hot, indices))"
    return "A (taming, diffusers): (z_q, loss, (perplexity, one_hot, indices))"
