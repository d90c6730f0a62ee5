"""Where the features are: rows out of any tensor, and back."""

from einops import rearrange
from torch import Tensor

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
