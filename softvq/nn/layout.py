"""Where the features are: rows out of any tensor, and back; which positions count."""

import torch
from einops import rearrange
from jaxtyping import Bool, Integer
from torch import Tensor

from softvq.checks import check_mask

LAYOUTS = ("channels_last", "channels_first")


def feature_axis(layout: str) -> int:
    """Axis of the features: -1 for (..., N, D), 1 for (B, D, ...).

    Example:
        >>> feature_axis("channels_first")
        1
    """
    return 1 if layout == "channels_first" else -1


def to_rows(z: Tensor, *, layout: str) -> Tensor:
    """All vectors as rows (N, D), in the order of their indices.

    Example:
        >>> import torch
        >>> to_rows(torch.zeros(2, 3, 4, 4), layout="channels_first").shape
        torch.Size([32, 3])
    """
    pattern = "b d ... -> (b ...) d" if layout == "channels_first" else "... d -> (...) d"
    return rearrange(z, pattern)


def from_rows(rows: Tensor, *, like: Tensor, layout: str) -> Tensor:
    """Rows (N, D) put back where `to_rows` found them in ``like``; D may have changed.

    Example:
        >>> import torch
        >>> z = torch.zeros(2, 3, 4, 4)
        >>> from_rows(torch.zeros(32, 3), like=z, layout="channels_first").shape
        torch.Size([2, 3, 4, 4])
    """
    shape = index_shape(like, layout=layout)
    stacked = rows.reshape(*shape, rows.shape[-1])
    return stacked.movedim(-1, 1) if layout == "channels_first" else stacked


def index_shape(z: Tensor, *, layout: str) -> tuple[int, ...]:
    """Shape of the indices of ``z``: its own without the feature axis.

    Example:
        >>> import torch
        >>> index_shape(torch.zeros(2, 3, 4, 5), layout="channels_first")
        (2, 4, 5)
    """
    if layout == "channels_first":
        return (z.shape[0], *z.shape[2:])
    return tuple(z.shape[:-1])


def mask_from_lengths(
    lengths: Integer[Tensor, " b"], shape: tuple[int, ...]
) -> Bool[Tensor, "..."]:
    """True at the first ``lengths[b]`` positions of each item, counted row by row over its grid.

    Args:
        lengths: Whole numbers from 0 to the positions of an item.
        shape: (B, ...), of the indices.

    Returns:
        A mask of that shape.

    Raises:
        ValueError: For lengths that are not one whole number in range for each item.

    Example:
        >>> mask_from_lengths(torch.tensor([2, 0]), (2, 3)).tolist()
        [[True, True, False], [False, False, False]]
    """
    if not isinstance(lengths, Tensor):
        raise ValueError(f"lengths must be a tensor (B,); got {type(lengths).__name__}.")
    places = torch.Size(shape[1:]).numel()
    if lengths.is_floating_point() or lengths.dtype == torch.bool or lengths.ndim != 1:
        raise ValueError(
            f"lengths must be whole numbers (B,); got {lengths.dtype} of shape "
            f"{tuple(lengths.shape)}."
        )
    if len(shape) < 2 or len(lengths) != shape[0]:
        raise ValueError(
            f"lengths must have one entry for each item of a batch (B, ...); got {len(lengths)} "
            f"for indices of shape {tuple(shape)}."
        )
    readable = lengths.device.type != "meta" and not torch.compiler.is_compiling()
    if lengths.numel() and readable:
        low, high = (int(end) for end in lengths.aminmax())
        if low < 0 or high > places:
            raise ValueError(
                f"lengths must lie in [0, {places}], the positions of an item; got values from "
                f"{low} to {high}."
            )
    place = torch.arange(places, device=lengths.device)
    return (place < lengths[:, None]).reshape(shape)


def resolve_mask(
    mask: Tensor | None, lengths: Tensor | None, *, shape: tuple[int, ...]
) -> Tensor | None:
    """The mask that a caller gave, as such or by lengths.

    Raises:
        ValueError: For both, or one that does not fit ``shape``.

    Example:
        >>> resolve_mask(None, torch.tensor([1]), shape=(1, 2)).tolist()
        [[True, False]]
    """
    if lengths is None:
        check_mask("mask", mask, shape=shape)
        return mask
    if mask is not None:
        raise ValueError("mask and lengths say the same thing: give one of them.")
    return mask_from_lengths(lengths, shape)


def check_indices(indices: Tensor, mask: Tensor | None, *, num_codes: int) -> Tensor:
    """The indices, with -1 where the mask drops a position.

    Args:
        indices: Whole numbers in [0, K).
        mask: True keeps a position.
        num_codes: K.

    Raises:
        ValueError: For indices that are no integers, or out of range where they are kept.

    Example:
        >>> check_indices(torch.tensor([3, -1]), torch.tensor([True, False]), num_codes=4).tolist()
        [3, -1]
    """
    check_whole(indices)
    indices = indices.long()  # of the unsigned types that tokens are stored in torch has little
    check_mask("mask", mask, shape=tuple(indices.shape))
    kept = indices if mask is None else torch.where(mask, indices, 0)
    check_range(kept, num_codes=num_codes, least=0)
    return indices if mask is None else torch.where(mask, indices, -1)


def check_whole(indices: Tensor) -> None:
    """Raise unless indices are whole numbers.

    Raises:
        ValueError: With the dtype that came.

    Example:
        >>> check_whole(torch.tensor([3]))
    """
    if not isinstance(indices, Tensor):
        raise ValueError(f"indices must be a tensor; got {type(indices).__name__}.")
    if indices.is_floating_point() or indices.is_complex() or indices.dtype == torch.bool:
        raise ValueError(f"indices must be whole numbers; got {indices.dtype}.")


def check_range(indices: Tensor, *, num_codes: int, least: int) -> None:
    """Raise if an index is out of [least, K); in a compiled graph nobody looks.

    Raises:
        ValueError: With the range that came.

    Example:
        >>> check_range(torch.tensor([3]), num_codes=4, least=0)
    """
    readable = indices.device.type != "meta" and not torch.compiler.is_compiling()
    if not indices.numel() or not readable:
        return
    low, high = (int(end) for end in indices.aminmax())
    if low < least or high >= num_codes:
        raise ValueError(
            f"indices must lie in [{least}, {num_codes}), the codes of this codebook; got values "
            f"from {low} to {high}. Take special tokens out first, and give mask= where positions "
            "were masked."
        )
