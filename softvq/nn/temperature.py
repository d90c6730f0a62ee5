"""The temperature of a soft codebook: what is asked of it, and the state that meets it."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from softvq.checks import check_count, check_number, choose
from softvq.functional.distances import squared_distances
from softvq.functional.schedules import (
    geometric_path,
    nearest_spacing,
    solve_temperature,
)
from softvq.nn.alarms import CodebookWarning
from softvq.nn.buffers import apply_keeping_dtypes

UNITS = ("nats", "critical", "variance", "nearest", "absolute")
SOLVE_ELEMENTS = 2**18
LEAST_OF_CRITICAL = 1e-6
LEAST, MOST = 1e-36, 1e36


@dataclass(frozen=True, kw_only=True)
class Temperature:
    """What the temperature should be over a run; a pair is a geometric path from start to end.

    Attributes:
        gradient: Of the weights whose mean is decoded, or whose mean's gradient is followed. None
            is 2.5 nats for ``forward_value="hard"``, whose gradient is poor at few codes a row, and
            the prototypes' elsewhere.
        prototypes: Of the free energy that moves the codes; None uses the same for both.
        noise: Of ``forward_value="blurred"``, against the quantization error, so without a unit; 0
            blurs nothing.
        anneal_steps: Updates in a run. Past the end the values stay.
        anneal_share: Share of the run over which the paths are walked.
        warmup_share: Share of the run, at its start, in which training decodes the rows themselves;
            the codes are placed on data when it ends. Codes that move before the encoder has found
            its scale cost quality that is not won back (`eval/NOTES.md`).
        unit: "nats": a target for the mean entropy of a row's weights, for which T is solved at
            every update (exp of it reads as codes per row; held under 0.5 log K). "critical": a
            share of the critical temperature. "variance": of the rows' total variance. "nearest":
            of the mean squared distance to the nearest code. "absolute": T itself, which means
            nothing apart from the data's scale.
    """

    gradient: float | tuple[float, float] | None = None
    prototypes: float | tuple[float, float] | None = (0.3, 0.1)
    noise: float | tuple[float, float] = (6.0, 0.5)
    anneal_steps: int = 2000
    anneal_share: float = 0.7
    warmup_share: float = 0.1
    unit: str = "nats"

    def __post_init__(self) -> None:
        check_count("Temperature.anneal_steps", self.anneal_steps)
        check_number("Temperature.anneal_share", self.anneal_share, above=0, most=1)
        check_number("Temperature.warmup_share", self.warmup_share, least=0, most=1)
        choose("Temperature.unit", self.unit, UNITS)
        if self.gradient is None and self.prototypes is None:
            raise ValueError(
                "Temperature.gradient and Temperature.prototypes are both None: give one of them, "
                "a number or a pair (start, end)."
            )
        for name in ("gradient", "prototypes"):
            if getattr(self, name) is not None:
                _check_path(f"Temperature.{name}", getattr(self, name))
        if self.noise != 0:
            _check_path("Temperature.noise", self.noise)

    @property
    def warmup_steps(self) -> int:
        """Updates in the warm-up."""
        return round(self.anneal_steps * self.warmup_share)

    def targets(self, updates: int) -> list[float]:
        """What is asked for after so many updates: one value, or two with the prototypes' last.

        Example:
            >>> path = Temperature(prototypes=(0.4, 0.1), anneal_steps=10, anneal_share=1.0)
            >>> path.targets(5), Temperature(gradient=2.5, prototypes=0.2).targets(5)
            ([0.2], [2.5, 0.2])
        """
        position = self._position(updates)
        paths = [path for path in (self.gradient, self.prototypes) if path is not None]
        return [geometric_path(*_ends(path), position=position) for path in paths]

    def noise_after(self, updates: int) -> float:
        """The noise after so many updates.

        Example:
            >>> Temperature(noise=(4.0, 1.0), anneal_steps=20, anneal_share=0.5).noise_after(5)
            2.0
        """
        if self.noise == 0:
            return 0.0
        return geometric_path(*_ends(self.noise), position=self._position(updates))

    def _position(self, updates: int) -> float:
        return updates / (self.anneal_steps * self.anneal_share)


class TemperatureState(nn.Module):
    """T of each path and the scales of the data that it hangs on, as buffers.

    ``levels`` (S,) holds T of the gradient path and, last, of the prototypes; ``noise`` that of the
    blur; all float32. ``warming`` says whether rows still pass as they are.
    """

    levels: Tensor
    noise: Tensor
    warming: Tensor
    critical: Tensor
    variance: Tensor

    def __init__(self, options: Temperature) -> None:
        super().__init__()
        self.options = options
        self.register_buffer("levels", torch.ones(len(options.targets(0)), dtype=torch.float32))
        self.register_buffer("noise", torch.tensor(options.noise_after(0), dtype=torch.float32))
        # No bool: in a copy that averages buffers, what was true once would stay true.
        warming = torch.tensor(int(options.warmup_steps > 0), dtype=torch.uint8)
        self.register_buffer("warming", warming)
        self.register_buffer("critical", torch.tensor(math.nan, dtype=torch.float32))
        self.register_buffer("variance", torch.tensor(math.nan, dtype=torch.float32))
        self._warned = False

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "TemperatureState":
        """Follow the device; stay float32 through ``half()`` and the like."""
        apply_keeping_dtypes(self, lambda: super(TemperatureState, self)._apply(fn, recurse))
        return self

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Take states of another number of temperatures, and of before there was a warm-up."""
        levels = state_dict.get(f"{prefix}levels")
        if levels is not None:
            # A codebook that was saved is placed.
            state_dict.setdefault(f"{prefix}warming", torch.zeros_like(self.warming))
            own = len(self.levels)
            state_dict[f"{prefix}levels"] = levels[-own:].expand(own)
        super()._load_from_state_dict(
            state_dict,
            prefix,
            local_metadata,
            strict,
            missing_keys,
            unexpected_keys,
            error_msgs,
        )

    def guess_(self, codebook: Float[Tensor, "k d"]) -> None:
        """Set T from the spacing of the codes, where no data has been seen."""
        codes = codebook.detach().float()[:512]
        if codes.device.type == "meta":
            return
        self.variance.copy_(codes.var(0, unbiased=False).sum())
        self.critical.copy_(2 * self.variance)
        if len(codes) < 2:
            return
        distances = squared_distances(codes, codes)
        distances.fill_diagonal_(torch.inf)
        spacing = max(nearest_spacing(distances), 1e-30)
        targets = self.options.targets(0)
        absolute = self.options.unit == "absolute"
        self._set_(targets if absolute else [spacing] * len(targets))

    def observe_(self, rows: Float[Tensor, "n d"], critical: Tensor, *, memory: float) -> None:
        """Follow the scales of the rows: total variance and critical temperature.

        Args:
            rows: Recent valid rows.
            critical: T_c of these rows.
            memory: Weight of the past, in [0, 1); 0 forgets it.
        """
        variance = rows.var(0, unbiased=False).sum().float()
        for buffer, new in ((self.variance, variance), (self.critical, critical)):
            past = memory if bool(torch.isfinite(buffer)) else 0.0
            buffer.copy_(buffer.lerp(new, 1 - past) if past else new)

    def solve_(
        self, rows: Float[Tensor, "n d"], codebook: Float[Tensor, "k d"], *, updates: int
    ) -> None:
        """Set T of each path to what is asked for now.

        Args:
            rows: Recent valid rows in random order; the first of them are used, 64 at least.
            codebook: Codes.
            updates: Position in the schedule.
        """
        self.noise.fill_(self.options.noise_after(updates))
        targets = self.options.targets(updates)
        if self.options.unit == "absolute":
            self._set_(targets)
            return
        if self.options.unit in ("critical", "variance"):
            unit = self.critical if self.options.unit == "critical" else self.variance
            self._set_(_as_levels(targets).to(unit.device) * unit)
            return
        sample = rows[: count_solved(len(codebook))]
        distances = squared_distances(sample, codebook.detach().to(sample.dtype))
        if self.options.unit == "nearest":
            unit = max(nearest_spacing(distances), 1e-30)
            self._set_([target * unit for target in targets])
            return
        self._solve_entropy(distances, targets)

    def _set_(self, levels: Tensor | list[float]) -> None:
        """Take new values of T, but stay positive and finite: forward never raises on values."""
        levels = (
            (_as_levels(levels) if isinstance(levels, list) else levels)
            .to(self.levels)
            .clamp(LEAST, MOST)
        )
        self.levels.copy_(torch.where(levels.isnan(), self.levels, levels))

    def _solve_entropy(self, distances: Tensor, targets: list[float]) -> None:
        critical = self.critical.nan_to_num(1.0).clamp(LEAST / LEAST_OF_CRITICAL, MOST).item()
        solved = [
            solve_temperature(
                distances,
                target=target,
                start=start,
                least=LEAST_OF_CRITICAL * critical,
                most=critical,
            )
            for target, start in zip(targets, self.levels.tolist(), strict=True)
        ]
        self._set_([each.temperature for each in solved])
        if any(each.at_bound for each in solved) and not self._warned:
            self._warned = True
            reached = ", ".join(f"{each.entropy:.3g}" for each in solved)
            asked = ", ".join(f"{target:.3g}" for target in targets)
            warnings.warn(
                f"The temperature hit a bound of [{LEAST_OF_CRITICAL:g}, 1] x T_c = "
                f"{critical:.3g}: entropies of {asked} nats were asked for and {reached} reached. "
                "With few codes, or data without structure, that is as far as T goes: ask for less "
                "by Temperature(gradient=...). Otherwise codes are equal or out of the data's "
                "reach: look at distinct_codes and dead_codes in the output's stats.",
                CodebookWarning,
                stacklevel=3,
            )


def count_solved(num_codes: int) -> int:
    """Rows on which the entropy is solved: fewer where there are more codes, 64 at least.

    Example:
        >>> count_solved(512), count_solved(65_536)
        (512, 64)
    """
    return max(64, SOLVE_ELEMENTS // num_codes)


def _as_levels(values: list[float]) -> Tensor:
    # Whatever the default device and dtype are.
    return torch.tensor(values, dtype=torch.float32, device="cpu")


def _ends(path: float | tuple[float, float]) -> tuple[float, float]:
    return path if isinstance(path, tuple) else (path, path)


def _check_path(argument: str, path: float | tuple[float, float]) -> None:
    if isinstance(path, tuple) and len(path) != 2:
        raise ValueError(f"{argument} must be a number or a pair (start, end); got {path!r}.")
    for value in _ends(path):
        check_number(argument, value, above=0)
