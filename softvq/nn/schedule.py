"""The state that gives a soft codebook the temperature that is asked for.

N rows, D features, K codes, S temperatures.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from softvq.functional.diagnostics import critical_temperature
from softvq.functional.distances import squared_distances
from softvq.functional.schedules import nearest_spacing, solve_temperature
from softvq.nn.alarms import CodebookWarning
from softvq.nn.buffers import apply_keeping_dtypes
from softvq.nn.temperature import Temperature

SOLVE_ELEMENTS = 2**18
LEAST_OF_CRITICAL = 1e-6
LEAST, MOST = 1e-36, 1e36
SCALE_MEMORY = 0.9
SCALE_EVERY = 10
SCALE_ROWS = 4096


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
        spacing = max(nearest_spacing(distances), LEAST_OF_CRITICAL * self._bound())
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

    def follow_(
        self,
        rows: Float[Tensor, "n d"],
        codebook: Float[Tensor, "k d"],
        *,
        updates: int,
        generator: torch.Generator,
        assignment_grad: str,
        memory: float = SCALE_MEMORY,
    ) -> None:
        """Set T on a sample of the rows, whose scales are looked at every tenth update.

        Args:
            rows: Recent valid rows, at least one.
            codebook: Codes.
            updates: Position in the schedule.
            generator: Of the sample, on the CPU.
            assignment_grad: As of `softvq.Loss`: the critical temperature hangs on it.
            memory: Weight of the scales so far; 0, of a start, forgets them.
        """
        observes = memory == 0 or updates % SCALE_EVERY == 0 or updates < SCALE_EVERY
        wanted = SCALE_ROWS if observes else count_solved(len(codebook))
        order = torch.randperm(len(rows), generator=generator, device="cpu")[:wanted]
        sample = rows[order.to(rows.device)]
        if observes:
            critical = critical_temperature(sample, assignment_grad=assignment_grad)
            self.observe_(sample, critical, memory=memory)
        self.solve_(sample, codebook, updates=updates)

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
            # Where every row is a code the spacing is 0, and gradients by 1 / T leave float16.
            spacing, least = nearest_spacing(distances), LEAST_OF_CRITICAL * self._bound()
            self._set_([max(target * spacing, least) for target in targets])
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

    def _bound(self) -> float:
        """T_c as the upper bound of T, and a millionth of it as the lower."""
        return self.critical.nan_to_num(1.0).clamp(LEAST / LEAST_OF_CRITICAL, MOST).item()

    def _solve_entropy(self, distances: Tensor, targets: list[float]) -> None:
        critical = self._bound()
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
