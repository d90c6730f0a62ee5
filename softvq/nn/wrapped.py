"""Parts around one quantizer: a projection, the unit sphere, a scale."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Integer
from torch import Tensor, nn

from softvq.checks import check_count
from softvq.functional.distances import unit_rows
from softvq.functional.precision import at_least_float32
from softvq.nn.arrangement import AnyQuantizer
from softvq.nn.base import Quantizer
from softvq.nn.buffers import apply_keeping_dtypes
from softvq.nn.kinds import build, describe, register
from softvq.nn.parts import Single, check_part
from softvq.nn.processes import anywhere, gather_rows
from softvq.types import QuantizerOutput


@register
class Projected(Single):
    """Quantizes in fewer features: a learned linear map in front and another behind.

    Low-dimensional codes as in "Vector-quantized Image Modeling with Improved VQGAN" (Yu et al.,
    2021). The maps start as orthonormal ones, each the other's transpose.

    Args:
        vq: Quantizes the projected vectors.
        dim: D of the vectors that come and go.
        layout: "channels_last" (..., N, D) or "channels_first" (B, D, ...).
        seed: Of the maps' start.

    Raises:
        ValueError: For a part that is no quantizer, or sizes that make no sense.

    Example:
        >>> from softvq.nn.soft import SoftVQ
        >>> vq = Projected(SoftVQ(8, 4), dim=32)
        >>> vq(torch.sin(torch.arange(640.0)).reshape(2, 10, 32)).quantized.shape
        torch.Size([2, 10, 32])
    """

    def __init__(
        self, vq: AnyQuantizer, dim: int, *, layout: str = "channels_last", seed: int = 0
    ) -> None:
        check_part("vq", vq)
        super().__init__(vq, dim, layout=layout)
        self.seed = check_count("seed", seed, least=0)
        self.project_in = nn.Linear(dim, vq.dim)
        self.project_out = nn.Linear(vq.dim, dim)
        self._start_maps()

    @torch.no_grad()
    def _start_maps(self) -> None:
        weight = self.project_in.weight
        drawn = torch.randn(
            max(weight.shape),
            min(weight.shape),
            generator=torch.Generator().manual_seed(self.seed),
            dtype=torch.float32,
            device="cpu",
        )
        basis = torch.linalg.qr(drawn).Q
        basis = (basis if weight.shape[0] > weight.shape[1] else basis.mT).to(weight)
        weight.copy_(basis)
        self.project_out.weight.copy_(basis.mT)
        self.project_in.bias.zero_()
        self.project_out.bias.zero_()

    def config(self) -> dict[str, Any]:
        """What the constructor was given, as plain JSON values."""
        return {
            "vq": describe(self.vq),
            "dim": self.dim,
            "layout": self.layout,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Projected":
        """A fresh Projected of the part and options that ``config`` names."""
        parts = dict(config)
        return cls(build(parts.pop("vq")), parts.pop("dim"), **parts)

    def look_up(self, indices: Integer[Tensor, "..."]) -> Tensor:
        """The codes, projected back, (..., D)."""
        tail = len(self.index_tail)
        first = indices.flatten(indices.ndim - tail)[..., :1] if tail else indices[..., None]
        rows = at_least_float32(self.vq.look_up(indices))
        weight = self.project_out.weight
        vectors = _project(rows.to(torch.promote_types(rows.dtype, weight.dtype)), self.project_out)
        return torch.where(first < 0, 0, vectors)

    def stored_dtype(self) -> torch.dtype:
        """The wider of the part's and the maps'."""
        return torch.promote_types(super().stored_dtype(), self.project_out.weight.dtype)

    def _arrange(self, rows: Tensor, mask: Tensor | None) -> QuantizerOutput:
        inner = _project(rows, self.project_in)
        if not (self.training or rows.requires_grad):
            inner = inner.detach()  # else the map's own gradient would look like an encoder's
        out = self.vq(inner, mask=mask)
        return out._replace(quantized=_project(out.quantized, self.project_out))

    def _start(self, rows: Tensor, mask: Tensor | None) -> None:
        self.vq.start_(_project(rows, self.project_in), mask=mask)


@register
class Cosine(Single):
    """Assigns by the angle: vectors are put on the unit sphere, where the codes are kept.

    On the sphere the nearest code is the one of the greatest cosine, so the codebook inside needs
    nothing new. Codes go back to the sphere whenever they were moved, by `update_`. A vector of no
    length has no direction: it takes the first of the nearest codes, and no gradient.

    Args:
        vq: A SoftVQ or HardVQ.
        layout: "channels_last" (..., N, D) or "channels_first" (B, D, ...).

    Raises:
        ValueError: For a part that is not one codebook.

    Example:
        >>> from softvq.nn.soft import SoftVQ
        >>> vq = Cosine(SoftVQ(8, 4)).eval()
        >>> out = vq(torch.sin(torch.arange(80.0)).reshape(2, 10, 4))
        >>> bool((out.quantized.norm(dim=-1) - 1).abs().max() < 1e-6)
        True
    """

    def __init__(self, vq: Quantizer, *, layout: str = "channels_last") -> None:
        check_part("vq", vq)
        if not isinstance(vq, Quantizer) or vq._stored != "codebook":
            raise ValueError(
                f"vq must be one codebook of its own (SoftVQ or HardVQ) for its codes to be kept "
                f"on the sphere; got {type(vq).__name__}. Put Cosine around each codebook inside."
            )
        super().__init__(vq, vq.dim, layout=layout)
        vq.on_sphere = True
        with torch.no_grad():
            vq._settle()

    def config(self) -> dict[str, Any]:
        """What the constructor was given, as plain JSON values."""
        return {"vq": describe(self.vq), "layout": self.layout}

    @property
    def seen_variance(self) -> Tensor | None:
        """None: the part sees directions alone."""
        return None

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Cosine":
        """A fresh Cosine of the part that ``config`` names."""
        return cls(build(config["vq"]), layout=config["layout"])

    def look_up(self, indices: Integer[Tensor, "..."]) -> Tensor:
        """The unit codes, (..., D)."""
        return at_least_float32(self.vq.look_up(indices))

    def _arrange(self, rows: Tensor, mask: Tensor | None) -> QuantizerOutput:
        return self.vq(unit_rows(rows), mask=mask)

    def _start(self, rows: Tensor, mask: Tensor | None) -> None:
        self.vq.start_(unit_rows(rows), mask=mask)


@register
class Scaled(Single):
    """Quantizes vectors in units of their own deviation, as it was at the start.

    An optimizer such as Adam moves every code by about its rate, whatever the scale of the data: in
    a residual stack the last stages, whose vectors are small, would be shaken. In units of their
    deviation one rate fits all. A loss that has a unit is given back in the vectors' own.

    Args:
        vq: Quantizes the scaled vectors.
        layout: "channels_last" (..., N, D) or "channels_first" (B, D, ...).

    Raises:
        ValueError: For a part that is no quantizer.

    Example:
        >>> from softvq.nn.hard import HardVQ
        >>> vq = Scaled(HardVQ(8, 4))
        >>> vq.start_(100 * torch.sin(torch.arange(80.0)).reshape(2, 10, 4))
        >>> print(f"{vq.scale.item():.0e}")
        7e+01
    """

    scale: Tensor

    def __init__(self, vq: AnyQuantizer, *, layout: str = "channels_last") -> None:
        check_part("vq", vq)
        super().__init__(vq, vq.dim, layout=layout)
        self.register_buffer("scale", torch.ones((), dtype=torch.float32))

    def config(self) -> dict[str, Any]:
        """What the constructor was given, as plain JSON values."""
        return {"vq": describe(self.vq), "layout": self.layout}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Scaled":
        """A fresh Scaled of the part that ``config`` names."""
        return cls(build(config["vq"]), layout=config["layout"])

    @property
    def seen_variance(self) -> Tensor | None:
        """Total variance of the vectors of late in their own units, if it is followed."""
        inner = self.vq.seen_variance
        return None if inner is None else inner * self.scale.square()

    def look_up(self, indices: Integer[Tensor, "..."]) -> Tensor:
        """The codes in the vectors' own units, (..., D)."""
        return at_least_float32(self.vq.look_up(indices)) * self.scale

    def _arrange(self, rows: Tensor, mask: Tensor | None) -> QuantizerOutput:
        if self.training and self.awaits_start and anywhere(rows.numel(), device=rows.device):
            self._measure(rows, mask)
        out = self.vq(rows / self.scale, mask=mask)
        loss = out.loss if self.vq.has_free_loss else out.loss * self.scale.square()
        return out._replace(quantized=out.quantized * self.scale, loss=loss)

    def _start(self, rows: Tensor, mask: Tensor | None) -> None:
        self._measure(rows, mask)
        self.vq.start_(rows / self.scale, mask=mask)

    @torch.no_grad()
    def _measure(self, rows: Tensor, mask: Tensor | None) -> None:
        kept = rows.reshape(-1, rows.shape[-1]) if mask is None else rows[mask]
        kept = kept[kept.isfinite().all(1)]
        gathered = gather_rows(kept.detach())
        deviation = gathered.var(0, unbiased=False).mean().sqrt() if len(gathered) else None
        if deviation is not None and bool(deviation.isfinite()) and bool(deviation > 0):
            self.scale.copy_(deviation)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Scaled":
        """Follow the device; the scale stays float32 through ``half()`` and the like."""
        apply_keeping_dtypes(self, lambda: super(Scaled, self)._apply(fn, recurse))
        return self


def _project(rows: Tensor, linear: nn.Linear) -> Tensor:
    """A linear map of rows, in their dtype whatever that of the weights."""
    flat = F.linear(
        rows.reshape(-1, rows.shape[-1]), linear.weight.to(rows.dtype), linear.bias.to(rows.dtype)
    )
    return flat.reshape(*rows.shape[:-1], flat.shape[-1])
