"""SoftFSQ: finite scalar quantization with soft levels, to compare with."""

from typing import Any

import torch
from jaxtyping import Integer
from torch import Tensor

from softvq.checks import check_count, check_number, choose
from softvq.functional.assign import count_codes
from softvq.functional.diagnostics import perplexity
from softvq.functional.losses import mean_of_rows
from softvq.functional.precision import at_least_float32
from softvq.nn.arrangement import AnyQuantizer, Arrangement
from softvq.nn.kinds import register
from softvq.types import QuantizerOutput


@register
class SoftFSQ(Arrangement):
    """A fixed grid: each feature is bounded and takes one of a few levels, softly in training.

    "Finite Scalar Quantization: VQ-VAE Made Simple" (Mentzer et al., 2023) rounds and passes the
    gradient on as it is. Here the gradient is that of the soft mean of the levels, with weights
    softmax(-(x - l)^2 / T), x bounded by tanh. There is nothing to learn, start or update and the
    loss is 0. Features few in number: put `Projected` around it.

    Args:
        levels: Levels of each feature, at least 2; their product is the number of codes.
        temperature: T in units of the squared distance between levels.
        forward_value: "hard" decodes the level in training, "soft" the soft mean.
        layout: "channels_last" (..., N, D) or "channels_first" (B, D, ...).

    Raises:
        ValueError: For levels or a temperature that make no sense.

    Example:
        >>> fsq = SoftFSQ([3, 5]).eval()
        >>> out = fsq(torch.tensor([[0.0, 0.0], [9.0, -9.0]]))
        >>> out.indices.tolist(), out.quantized.tolist()
        ([7, 10], [[0.0, 0.0], [1.0, -1.0]])
    """

    grid: Tensor
    there: Tensor
    has_soft = True

    def __init__(
        self,
        levels: list[int] | tuple[int, ...],
        *,
        temperature: float = 0.25,
        forward_value: str = "hard",
        layout: str = "channels_last",
    ) -> None:
        if not isinstance(levels, list | tuple):
            raise ValueError(f"levels must be a list of whole numbers; got {levels!r}.")
        if not levels:
            raise ValueError(f"levels must name at least one feature; got {levels!r}.")
        super().__init__(len(levels), layout=layout)
        self.levels = tuple(check_count("levels", each, least=2) for each in levels)
        self.level_temperature = check_number("temperature", temperature, above=0)
        self.forward_value = choose("forward_value", forward_value, ("hard", "soft"))
        self.mode: str | None = None
        self.index_tail, self.optional = (), (False,)
        num = 1
        for each in self.levels:
            num *= each
        self.codes_per_index = (num,)
        most = max(self.levels)
        grid = torch.full((len(levels), most), torch.nan, dtype=torch.float32)
        for row, each in zip(grid, self.levels, strict=True):
            row[:each] = torch.linspace(-1, 1, each, dtype=torch.float32)
        self.register_buffer("grid", grid.nan_to_num(), persistent=False)
        self.register_buffer("there", ~grid.isnan(), persistent=False)

    def config(self) -> dict[str, Any]:
        """What the constructor was given, as plain JSON values."""
        return {
            "levels": list(self.levels),
            "temperature": self.level_temperature,
            "forward_value": self.forward_value,
            "layout": self.layout,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "SoftFSQ":
        """A fresh SoftFSQ of the levels and options that ``config`` names."""
        parts = dict(config)
        return cls(parts.pop("levels"), **parts)

    def look_up(self, indices: Integer[Tensor, "..."]) -> Tensor:
        """The grid point of each index, (..., D)."""
        digits, rest = [], indices
        for radix in reversed(self.levels):
            digits.append(rest % radix)
            rest = rest.div(radix, rounding_mode="floor")
        chosen = torch.stack(digits[::-1], -1)
        return torch.where((indices >= 0)[..., None], at_least_float32(self._at(chosen)), 0)

    def stored_dtype(self) -> torch.dtype:
        """The grid's."""
        return self.grid.dtype

    def books(self) -> list[AnyQuantizer]:
        """Itself: the number is of all features together."""
        return [self]

    def fits(self, tail: tuple[int, ...]) -> bool:
        """Whether it is one number."""
        return tail == ()

    def _at(self, chosen: Tensor) -> Tensor:
        feature = torch.arange(self.dim, device=chosen.device)
        return self.grid[feature, chosen]

    def _arrange(self, rows: Tensor, mask: Tensor | None) -> QuantizerOutput:
        steps = (torch.tensor(self.levels, device=rows.device) - 1).to(rows.dtype)
        # In units of the distance between levels, so that one T fits all features.
        apart = (rows.tanh()[..., None] - self.grid.to(rows.dtype)) * (steps / 2)[:, None]
        logits = torch.where(self.there, -apart.square() / self.level_temperature, -torch.inf)
        weights = logits.softmax(-1)
        mean = (weights * self.grid.to(rows.dtype)).sum(-1)
        chosen = logits.detach().argmax(-1)
        hard = self._at(chosen).to(rows.dtype)
        quantized = hard
        mode = self.mode or (self.forward_value if self.training else "hard")
        if mode == "soft":
            quantized = mean
        elif self.training:
            quantized = hard + (mean - mean.detach())
        indices = torch.zeros_like(chosen[..., 0])
        for radix, digit in zip(self.levels, chosen.unbind(-1), strict=True):
            indices = indices * radix + digit
        if mask is not None:
            indices = torch.where(mask, indices, -1)
        return QuantizerOutput(
            quantized, indices, rows.new_zeros(()), self._stats(rows, hard, weights, indices, mask)
        )

    @torch.no_grad()
    def _stats(
        self, rows: Tensor, hard: Tensor, weights: Tensor, indices: Tensor, mask: Tensor | None
    ) -> dict[str, Tensor]:
        counts = count_codes(indices.reshape(-1), num_codes=self.num_codes)
        error = (rows.tanh() - hard).square().sum(-1).float().reshape(-1)
        entropy = torch.special.entr(weights).sum((-1, -2)).float().reshape(-1)
        keep = None if mask is None else mask.reshape(-1)
        return {
            "ols": mean_of_rows(error, keep),
            "entropy": mean_of_rows(entropy, keep),
            "use_hard_batch": (counts > 0).float().mean(),
            "perplexity_hard_batch": perplexity(counts),
        }

    def _start(self, rows: Tensor, mask: Tensor | None) -> None:
        """Nothing: the grid is where it is."""
