"""What is asked of the temperature of a soft codebook; `softvq.nn.schedule` meets it."""

from dataclasses import dataclass

from softvq.checks import check_count, check_number, choose
from softvq.functional.schedules import geometric_path

UNITS = ("nats", "critical", "variance", "nearest", "absolute")


@dataclass(frozen=True, kw_only=True)
class Temperature:
    """What the temperature should be over a run; a pair is a geometric path from start to end.

    Attributes:
        gradient: Of the weights whose mean is decoded, or whose mean's gradient is followed. None
            is 2.5 nats for ``forward_value="hard"``, whose gradient is poor at few codes a row, and
            the prototypes' elsewhere.
        prototypes: Of the free energy that moves the codes; None uses the same for both.
        noise: Of ``forward_value="blurred"``, against the quantization error, so without a unit; 0
            blurs nothing. Some of the row shows through it beside its code, and the decoder learns
            to use that: it should end near 0 (`eval/NOTES.md`).
        anneal_steps: Updates in a run. Past the end the values stay.
        anneal_share: Share of the run over which the paths are walked.
        warmup_share: Share of the run, at its start, in which training decodes the rows themselves;
            the codes are placed on data when it ends. What the encoder has not learned to tell by
            then is smaller than a code's cell, and hardly comes after: a thousand steps are well
            spent where there are thousands of codes (`eval/NOTES.md`).
        unit: "nats": a target for the mean entropy of a row's weights, for which T is solved at
            every update (exp of it reads as codes per row; held under 0.5 log K). "critical": a
            share of the critical temperature. "variance": of the rows' total variance. "nearest":
            of the mean squared distance to the nearest code. "absolute": T itself, which means
            nothing apart from the data's scale.
    """

    gradient: float | tuple[float, float] | None = None
    prototypes: float | tuple[float, float] | None = (0.3, 0.1)
    noise: float | tuple[float, float] = (6.0, 0.05)
    anneal_steps: int = 2000
    anneal_share: float = 0.7
    warmup_share: float = 0.4
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


def _ends(path: float | tuple[float, float]) -> tuple[float, float]:
    return path if isinstance(path, tuple) else (path, path)


def _check_path(argument: str, path: float | tuple[float, float]) -> None:
    if isinstance(path, tuple) and len(path) != 2:
        raise ValueError(f"{argument} must be a number or a pair (start, end); got {path!r}.")
    for value in _ends(path):
        check_number(argument, value, above=0)
