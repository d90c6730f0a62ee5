"""How a host's quantizer sees its input: axis of the features, projections, heads, codes."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

METRICS = ("euclidean", "unit codes", "normalised")


@dataclass(frozen=True, kw_only=True)
class CodebookAt:
    """Where a host keeps its codes.

    Attributes:
        owner: Path of the module that holds the tensor, inside the quantizer; "" is itself.
        name: Of the tensor.
        view: "rows" (K, D), "columns" (D, K), or "stacked" (H, K, D), of which this is one.
        head: Which of the stacked ones.
    """

    owner: str
    name: str
    view: str = "rows"
    head: int = 0

    @property
    def key(self) -> str:
        """Its key in the quantizer's state dict."""
        return f"{self.owner}.{self.name}".lstrip(".")

    def see(self, tensor: Tensor) -> Tensor:
        """The codes (K, D) as a view of the host's tensor, through which writing is possible.

        Example:
            >>> CodebookAt(owner="", name="embed", view="columns").see(torch.zeros(2, 5)).shape
            torch.Size([5, 2])
        """
        if self.view == "columns":
            return tensor.t()
        return tensor[self.head] if self.view == "stacked" else tensor

    def tensor(self, host: nn.Module) -> Tensor:
        """The host's own tensor."""
        return getattr(host.get_submodule(self.owner), self.name)


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """The way from a host's input to rows and from quantized rows to its output.

    Attributes:
        codebooks: One, or one for each head.
        axis: Of the features: 1 or -1.
        heads: Vectors that a position is cut into, which share the codebook where there is one.
        metric: "euclidean"; "unit codes": rows are normalised, codes kept on the unit sphere;
            "normalised": both are normalised on use.
        before: Name of a projection of the input, or None.
        after: Name of a projection of the output, or None.
    """

    codebooks: tuple[CodebookAt, ...]
    axis: int
    heads: int = 1
    metric: str = "euclidean"
    before: str | None = None
    after: str | None = None

    def rows(self, host: nn.Module, z: Tensor) -> list[Tensor]:
        """The vectors (..., D) that are compared with each codebook."""
        if self.before is not None and self.axis == 1:
            z = getattr(host, self.before)(z)
        rows = z.movedim(self.axis, -1)
        if self.before is not None and self.axis == -1:
            rows = getattr(host, self.before)(rows)
        if self.heads > 1:
            rows = rows.unflatten(-1, (self.heads, -1))
        if self.metric != "euclidean":
            # As lucidrains and torch do: a floor on the norm, where zero has no direction.
            rows = F.normalize(rows, dim=-1, eps=1e-6 if self.metric == "unit codes" else 1e-12)
        return list(rows.unbind(-2)) if len(self.codebooks) > 1 else [rows]

    def output(self, host: nn.Module, quantized: list[Tensor]) -> Tensor:
        """The host's output from quantized rows, one tensor for each codebook."""
        rows = torch.stack(quantized, -2) if len(quantized) > 1 else quantized[0]
        if self.heads > 1:
            rows = rows.flatten(-2)
        if self.after is not None and self.axis == -1:
            rows = getattr(host, self.after)(rows)
        out = rows.movedim(-1, self.axis)
        if self.after is not None and self.axis == 1:
            out = getattr(host, self.after)(out)
        return out.contiguous()

    def indices(self, found: list[Tensor]) -> Tensor:
        """Indices of a position's heads side by side: (...,) or (..., H)."""
        return torch.stack(found, -1) if len(found) > 1 else found[0]

    def codes(self, host: nn.Module) -> list[Tensor]:
        """The codes (K, D) of each codebook, as they are compared and decoded."""
        seen = [each.see(each.tensor(host)) for each in self.codebooks]
        return [F.normalize(each, dim=-1) for each in seen] if self.metric == "normalised" else seen


def in_features(module: nn.Module) -> int | None:
    """Features that a projection takes, or None where it is none.

    Example:
        >>> in_features(nn.Sequential(nn.Linear(6, 2), nn.LayerNorm(2)))
        6
    """
    for each in module.modules():
        size: Any = getattr(each, "in_features", getattr(each, "in_channels", None))
        if isinstance(size, int):
            return size
    return None
