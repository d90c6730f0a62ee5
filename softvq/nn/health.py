"""Whether the prototypes of a training run are well: readings, their trend, a verdict in a line."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from softvq.functional.diagnostics import told_apart
from softvq.nn.soft import SoftVQ
from softvq.types import QuantizerOutput

MOST_READINGS = 1000
FEW_DISTINCT = 0.9
LITTLE_SEPARATION = 0.1
NEAR_UNIFORM = 0.9
NEAR_CRITICAL = 0.95
WIDE_SPREAD = 0.8
MANY_DEAD = 0.2
CHANGE = 0.1


class HealthReading(NamedTuple):
    """What one batch said of one or all quantizers.

    Attributes:
        separation: S(P), root mean square distance of prototypes over the data's deviation.
        entropy: H(Q), mean entropy of a token's weights in nats.
        entropy_share: H(Q) over log K; 1 for weights that say nothing.
        spread_share: V / L_q, the part of the distortion that the weights' softness makes.
        temperature_ratio: T / T_c; at 1 and above prototypes merge.
        distinct: Share of the prototypes that are left when those that the weights hardly tell
            apart count once, see `softvq.functional.diagnostics.told_apart`; at the prototypes' T.
        dead: Share of them under the revival threshold.
    """

    separation: float
    entropy: float
    entropy_share: float
    spread_share: float
    temperature_ratio: float
    distinct: float
    dead: float


class HealthMonitor:
    """Reads the health of every soft quantizer of a model from its forward passes.

    A hook on each `softvq.SoftVQ` keeps the last pass's stats; ``read()`` turns them into numbers,
    which is the one place that waits for the device.

    Args:
        model: Holds soft quantizers, such as those in `softvq.DDCLAttention`, anywhere inside.

    Attributes:
        history: Readings, oldest first; the last 1,000 are kept.

    Raises:
        ValueError: If the model holds none.

    Example:
        >>> from softvq.nn.readout import DDCLReadout
        >>> head = DDCLReadout(dim=4, num_prototypes=4)
        >>> monitor = HealthMonitor(head)
        >>> _ = head(torch.sin(torch.arange(400.0).square()).reshape(4, 25, 4))
        >>> monitor.read().distinct
        1.0
        >>> monitor.detach()
    """

    def __init__(self, model: nn.Module) -> None:
        self.quantizers = {
            name: module for name, module in model.named_modules() if isinstance(module, SoftVQ)
        }
        if not self.quantizers:
            raise ValueError(f"model ({type(model).__name__}) holds no soft quantizer of softvq.")
        self.history: list[HealthReading] = []
        self._last: dict[str, dict[str, Tensor]] = {}
        self._hooks = [self._watch(name) for name in self.quantizers]

    def read(self) -> HealthReading:
        """The mean over all quantizers' last passes; it joins ``history``.

        Raises:
            RuntimeError: If none has seen data.
        """
        each = self.read_each()
        if not each:
            raise RuntimeError("read() needs a forward pass of the model first.")
        columns = zip(*each.values(), strict=True)
        reading = HealthReading(*(sum(column) / len(each) for column in columns))
        self.history = [*self.history[1 - MOST_READINGS :], reading]
        return reading

    def read_each(self) -> dict[str, HealthReading]:
        """A reading of each quantizer by its name in the model; those without data are left out."""
        return {
            name: read_stats(stats, codebook=self.quantizers[name].codebook)
            for name, stats in self._last.items()
        }

    def trend(self) -> dict[str, str]:
        """Whether each reading "rises", "falls" or "holds": last quarter against the first."""
        return find_trend(self.history)

    def verdict(self) -> str:
        """The worst quantizer's state in a line, see `judge`."""
        each = self.read_each()
        if not each:
            return "no data yet"
        ranked = sorted((_rank(reading), name) for name, reading in each.items())
        rank, name = ranked[-1]
        sentence = judge(each[name])
        return f"{name}: {sentence}" if rank and name and len(each) > 1 else sentence

    def detach(self) -> None:
        """Take the hooks off."""
        for hook in self._hooks:
            hook.remove()

    def _watch(self, name: str) -> torch.utils.hooks.RemovableHandle:
        def keep(module: nn.Module, inputs: tuple, output: QuantizerOutput) -> None:
            self._last[name] = dict(output.stats)

        return self.quantizers[name].register_forward_hook(keep)


def read_stats(stats: Mapping[str, Tensor], *, codebook: Float[Tensor, "k d"]) -> HealthReading:
    """A reading from the stats of one soft quantizer, and its prototypes as they are now.

    Args:
        stats: As `softvq.SoftVQ` gives them.
        codebook: Its prototypes.

    Example:
        >>> from softvq.nn.soft import SoftVQ
        >>> vq = SoftVQ(4, 2)
        >>> stats = vq(torch.sin(torch.arange(40.0).square()).reshape(20, 2)).stats
        >>> 0 < read_stats(stats, codebook=vq.codebook).spread_share < 1
        True
    """
    names = ("separation", "entropy", "spread", "distortion", "temperature_ratio", "dead_codes")
    values = [stats[name].float() for name in names]
    apart = told_apart(codebook, stats["prototype_temperature"])
    read = torch.stack([*values, apart.float()]).tolist()
    separation, entropy, spread, distortion, ratio, dead, distinct = read
    num_codes = len(codebook)
    return HealthReading(
        separation=separation,
        entropy=entropy,
        entropy_share=entropy / math.log(num_codes) if num_codes > 1 else 0.0,
        spread_share=spread / distortion if distortion > 0 else 0.0,
        temperature_ratio=ratio,
        distinct=distinct / num_codes,
        dead=dead / num_codes,
    )


def judge(reading: HealthReading) -> str:
    """A verdict in a line: what is wrong, worst first, and what helps.

    Args:
        reading: Of one quantizer.

    Example:
        >>> judge(HealthReading(1.2, 0.3, 0.2, 0.1, 0.2, 1.0, 0.0))
        'healthy'
    """
    return _FINDINGS[_rank(reading)].format(**reading._asdict())


# Worst last: the place in this list is the rank.
_FINDINGS = (
    "healthy",
    "soft: V is {spread_share:.0%} of L_q, so that means lie far from any prototype; "
    "ask for a lower entropy as training ends",
    "unused: {dead:.0%} of the prototypes win hardly a token; revive them, or take fewer",
    "undecided: H(Q) is {entropy_share:.0%} of log K; lower the target entropy",
    "merged: {distinct:.0%} of the prototypes are told apart, and they lie {separation:.2f} of the "
    "data's deviation apart; lower T and revive them",
    "merging: T is {temperature_ratio:.2f} of T_c, above which prototypes are one; lower T",
    "not finite: the tokens or the prototypes hold NaN; look at the encoder's rate",
)


def _rank(reading: HealthReading) -> int:
    findings = (
        True,
        reading.spread_share > WIDE_SPREAD,
        reading.dead > MANY_DEAD,
        reading.entropy_share > NEAR_UNIFORM,
        reading.distinct < FEW_DISTINCT or reading.separation < LITTLE_SEPARATION,
        reading.temperature_ratio >= NEAR_CRITICAL,
        not all(math.isfinite(value) for value in reading),
    )
    return max(place for place, holds in enumerate(findings) if holds)


def find_trend(history: Sequence[HealthReading]) -> dict[str, str]:
    """Whether each reading "rises", "falls" or "holds" (a change of under a tenth).

    Args:
        history: Oldest first; with fewer than four there is no trend, and all "holds".

    Example:
        >>> early, late = [HealthReading(*[value] * 7) for value in (1.0, 2.0)]
        >>> find_trend([early, early, late, late])["separation"]
        'rises'
    """
    quarter = len(history) // 4
    trends = dict.fromkeys(HealthReading._fields, "holds")
    if not quarter:
        return trends
    for place, name in enumerate(HealthReading._fields):
        first = sum(reading[place] for reading in history[:quarter]) / quarter
        last = sum(reading[place] for reading in history[-quarter:]) / quarter
        if abs(last - first) > CHANGE * max(abs(first), 1e-12):
            trends[name] = "rises" if last > first else "falls"
    return trends
