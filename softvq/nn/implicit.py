"""ImplicitVQ: codes that a learned map makes of a fixed table."""

from typing import Any

import torch
from torch import Tensor, nn

from softvq.functional.start import draw_rows
from softvq.nn.alarms import Advice
from softvq.nn.kinds import register
from softvq.nn.loss import Loss
from softvq.nn.soft import SoftVQ, read_options
from softvq.nn.temperature import Temperature


@register
class ImplicitVQ(SoftVQ):
    """Soft codebook whose codes are a fixed table through a learned linear map.

    Every row trains every code, since it trains the map: none starves. "Addressing Representation
    Collapse in Vector Quantized Models with One Linear Layer" (SimVQ, Zhu et al., 2024), in soft
    form. The table is placed by the first batch, on its clusters where it has rows enough, as
    normal numbers of its mean and covariance otherwise; the map starts as the identity and learns
    at the host's rate. A subclass, against the habit of this library: only where codes come from
    differs.

    Args:
        num_codes: K.
        dim: D.
        temperature: As of `SoftVQ`.
        loss: As of `SoftVQ`.
        forward_value: As of `SoftVQ`.
        layout: "channels_last" (..., N, D) or "channels_first" (B, D, ...).
        seed: Of the table and the start.

    Raises:
        ValueError: As of `SoftVQ`.

    Example:
        >>> vq = ImplicitVQ(num_codes=8, dim=4)
        >>> vq(torch.sin(torch.arange(80.0)).reshape(2, 10, 4)).indices.shape
        torch.Size([2, 10])
        >>> sorted(name for name, _ in vq.named_parameters())
        ['change', 'shift']
    """

    table: Tensor
    change: nn.Parameter
    shift: nn.Parameter
    _stored = "table"

    def __init__(
        self,
        num_codes: int,
        dim: int,
        *,
        temperature: Temperature | None = None,
        loss: Loss | None = None,
        forward_value: str = "hard",
        layout: str = "channels_last",
        seed: int = 0,
    ) -> None:
        super().__init__(
            num_codes,
            dim,
            temperature=temperature,
            revival=None,
            loss=loss,
            forward_value=forward_value,
            layout=layout,
            seed=seed,
        )
        first = self._parameters.pop("codebook")
        assert first is not None, "SoftVQ has a codebook"
        self.register_buffer("table", first.detach().float())
        # What is added to the identity, so that weight decay leads back to the table.
        self.change = nn.Parameter(torch.zeros(dim, dim, device=first.device))
        self.shift = nn.Parameter(torch.zeros(dim, device=first.device))

    @property
    def codebook(self) -> Tensor:  # type: ignore[override]
        """The codes (K, D), with gradient to the map."""
        table = self._buffers.get("table")
        if table is None:
            raise AttributeError("codebook")  # nn.Module's own, until the table is there
        change, shift = self.change.to(table.dtype), self.shift.to(table.dtype)
        return table + table @ change + shift

    def config(self) -> dict[str, Any]:
        """What the constructor was given, as plain JSON values."""
        return {name: each for name, each in super().config().items() if name != "revival"}

    def _advise(self) -> Advice:
        """Without revival, which it has none of: no code moves by itself."""
        why, (lower, _, fewer), _ = super()._advise()
        return Advice(why, (lower, fewer), ("take SoftVQ, which revives", fewer))

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "ImplicitVQ":
        """A fresh ImplicitVQ of the sizes and options that ``config`` names."""
        return cls(**read_options(config))

    def _find_codes(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        if len(rows) >= self.num_codes:
            return super()._find_codes(rows, generator)
        # Clusters of few rows would be copies of them, which a map can never part.
        normal = draw_rows(self.num_codes, like=rows, generator=generator)
        centre = rows.mean(0)
        covariance = (rows - centre).mT @ (rows - centre) / len(rows)
        levels, axes = torch.linalg.eigh(covariance.double())
        spread = (axes * levels.clamp_min(0).sqrt()).to(rows)
        return centre + normal @ spread.mT

    def _put(self, codes: Tensor) -> None:
        self.table.copy_(codes)
        self.change.zero_()
        self.shift.zero_()
