"""What a checkpoint should hold of a codebook, and what to say where it does not."""

from collections.abc import Mapping

from torch import Tensor


def find_lack(key: str, state_dict: Mapping[str, Tensor]) -> str | None:
    """The key that a checkpoint lacks, with the one that it may have in its place; None if there.

    Example:
        >>> import torch
        >>> find_lack("codebook", {"module.codebook": torch.zeros(8, 4)})
        'codebook (but module.codebook: take off the prefix of a wrapper)'
    """
    if key in state_dict:
        return None
    for held in state_dict:
        if held.removeprefix("module.").replace("_orig_mod.", "") == key:
            return f"{key} (but {held}: take off the prefix of a wrapper)"
    return key


def find_misfit(
    key: str, state_dict: Mapping[str, Tensor], *, sizes: tuple[int, int]
) -> str | None:
    """What to say of codes (K, D) of other sizes than those of the module; None if they fit.

    Example:
        >>> import torch
        >>> find_misfit("codebook", {"codebook": torch.zeros(8, 4)}, sizes=(8, 4)) is None
        True
    """
    loaded = state_dict.get(key)
    if loaded is None or tuple(loaded.shape) == sizes:
        return None
    return (
        f"{key} in the checkpoint is (K, D) = {tuple(loaded.shape)}, this quantizer has {sizes}. "
        f"Build it with num_codes={loaded.shape[0]}, dim={loaded.shape[-1]}."
    )
