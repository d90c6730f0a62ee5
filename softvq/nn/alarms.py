"""What goes wrong with a codebook while it trains, noticed early: each told once, with its cure.

K codes. Nothing here is state of the model: a resumed run looks again.
"""

from collections.abc import Iterable
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from softvq.functional.diagnostics import DISTINCT_SHARE

IDLE_HITS = 1e-3
FEW_ROWS = 0.075
PATIENT_CHECKS = 5
IN_WARMUP = "The codes are in their warm-up"


class CodebookWarning(UserWarning):
    """A codebook goes wrong, is set to, or is not used as it should be; the message has the cure.

    The category of every warning that a quantizer gives, so that
    ``warnings.simplefilter("ignore", softvq.CodebookWarning)`` silences these and nothing else.

    Example:
        >>> issubclass(CodebookWarning, UserWarning)
        True
    """


class Advice(NamedTuple):
    """What to do about codes that coincide or die: it hangs on what the quantizer has.

    Attributes:
        why_equal: What may have made codes coincide.
        equal: Cures of codes that coincide, each a clause.
        idle: Cures of codes that have died.
    """

    why_equal: str
    equal: tuple[str, ...]
    idle: tuple[str, ...]


FEWER = "take fewer codes"
REVIVE = "give the quantizer revival=Revival()"
KEEP_REVIVING = "keep revival on"


def advise_frozen() -> Advice:
    """Of a codebook that is frozen, which neither learns nor is revived.

    Example:
        >>> advise_frozen().idle
        ('let the codes move again by freeze_(False)', 'take fewer codes')
    """
    cures = ("let the codes move again by freeze_(False)", FEWER)
    return Advice("they were so when it was frozen", cures, cures)


def describe_warmup(updates: int, *, steps: int, share: float) -> str:
    """What the codes of a codebook are worth that is used in its warm-up, and what to do.

    Example:
        >>> describe_warmup(300, steps=800, share=0.4)[:49]
        'The codes are in their warm-up (update 300 of 800'
    """
    return (
        f"{IN_WARMUP} (update {updates} of {steps}): they lie where the first "
        "batch was and nothing has been learned for them, so that what they decode, or an export "
        "of them, says nothing yet. Train on; or, if this is the end of the run, give its updates "
        f"by Temperature(anneal_steps=...), of which the warm-up takes {100 * share:.3g} %."
    )


class Alarms:
    """What a quantizer remembers between checks, so as to tell a change from a state.

    The checks give messages by name; whoever calls them says each once.
    """

    def __init__(self) -> None:
        self.checks_above = 0
        self.widest = 0.0
        self.checks_idle = 0

    def check_codes(
        self, hits: Float[Tensor, " k"], *, distinct: int, rows: int, advice: Advice
    ) -> dict[str, str]:
        """Look for codes that coincide, and for codes that died one by one.

        Args:
            hits: Running hits of each code, in units of their mean.
            distinct: Codes that differ from all others.
            rows: Rows of an update; with few of them for K codes, idle codes are chance.
            advice: What the quantizer can do about it.

        Returns:
            Messages by name.

        Example:
            >>> import torch
            >>> found = Alarms().check_codes(
            ...     torch.ones(8), distinct=5, rows=64, advice=advise_frozen()
            ... )
            >>> list(found)
            ['duplicates']
        """
        num_codes, found = len(hits), {}
        if num_codes - distinct > 0.01 * num_codes:
            found["duplicates"] = (
                f"{num_codes - distinct} of {num_codes} codes lie within {DISTINCT_SHARE:g} of the "
                f"data's deviation of another one, because {advice.why_equal} or the data has so "
                f"few distinct vectors: {_list(advice.equal)}."
            )
        if rows < FEW_ROWS * num_codes:
            return found
        idle = int((hits < IDLE_HITS).sum())
        # None is idle at the start, and revival lets none become so.
        self.checks_idle = self.checks_idle + 1 if idle > 0.05 * num_codes else 0
        if self.checks_idle >= 2:
            found["idle"] = (
                f"{idle} of {num_codes} codes have died, without a vector for long, because "
                "vectors gather at fewer codes and nothing brings the others back: "
                f"{_list(advice.idle)}."
            )
        return found

    def check_temperature(
        self, temperature: float, *, critical: float, variance: float, unit: str
    ) -> dict[str, str]:
        """Look for a temperature at which codes merge, and for data that shrinks under it.

        Args:
            temperature: The highest T in use.
            critical: T_c of the rows.
            variance: Their total variance.
            unit: What the temperature is asked for in, see `softvq.Temperature`.

        Returns:
            Messages by name.

        Example:
            >>> alarms = Alarms()
            >>> _ = alarms.check_temperature(1.0, critical=8.0, variance=4.0, unit="absolute")
            >>> list(alarms.check_temperature(1.0, critical=1.5, variance=0.75, unit="absolute"))
            ['shrinking']
        """
        found = {}
        lower = "lower Temperature(gradient=..., prototypes=...)"
        # nats follow the data as they are, and stay below.
        follow = "use unit='nats', by which T follows the data" if unit != "nats" else lower
        ratio = temperature / max(critical, 1e-36)
        self.widest = max(self.widest, variance)
        # Strictly above: a solved temperature may be held at the critical one, and says so.
        self.checks_above = self.checks_above + 1 if ratio > 1.001 else 0
        if ratio > 0.5 and variance < 0.5 * self.widest:
            found["shrinking"] = (
                f"The vectors' variance has fallen from {self.widest:.3g} to {variance:.3g} and T "
                f"is now {ratio:.2g} of the critical temperature, because the encoder is drawn "
                "together faster than the decoder or the task needs it apart: "
                f"{_list(('lower Loss(weight=..., beta=...)', follow))}."
            )
        if self.checks_above >= PATIENT_CHECKS:
            found["above"] = (
                f"T has been above the critical temperature of the vectors for a while (now "
                f"{ratio:.3g} times), where all codes merge, because it is set too high for their "
                f"scale: {_list(dict.fromkeys((lower, follow)))}; if T comes down from there on "
                "purpose, all is well."
            )
        return found


def _list(cures: Iterable[str]) -> str:
    *first, last = cures
    return f"{', '.join(first)}, or {last}" if first else last
