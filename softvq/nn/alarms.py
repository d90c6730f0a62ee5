"""What goes wrong with a codebook while it trains, noticed early: each told once, with its cure.

K codes. Nothing here is state of the model: a resumed run looks again.
"""

from jaxtyping import Float
from torch import Tensor

from softvq.functional.diagnostics import DISTINCT_SHARE

IDLE_HITS = 1e-3
FEW_ROWS = 0.075
PATIENT_CHECKS = 5


class CodebookWarning(UserWarning):
    """A codebook goes wrong, is set to, or is not used as it should be; the message has the cure.

    The category of every warning that a quantizer gives, so that
    ``warnings.simplefilter("ignore", softvq.CodebookWarning)`` silences these and nothing else.

    Example:
        >>> issubclass(CodebookWarning, UserWarning)
        True
    """


class Alarms:
    """What a quantizer remembers between checks, so as to tell a change from a state.

    The checks give messages by name; whoever calls them says each once.
    """

    def __init__(self) -> None:
        self.checks_above = 0
        self.widest = 0.0
        self.checks_idle = 0

    def check_codes(self, hits: Float[Tensor, " k"], *, distinct: int, rows: int) -> dict[str, str]:
        """Look for codes that coincide, and for codes that died one by one.

        Args:
            hits: Running hits of each code, in units of their mean.
            distinct: Codes that differ from all others.
            rows: Rows of an update; with few of them for K codes, idle codes are chance.

        Returns:
            Messages by name.

        Example:
            >>> import torch
            >>> list(Alarms().check_codes(torch.ones(8), distinct=5, rows=64))
            ['duplicates']
        """
        num_codes, found = len(hits), {}
        if num_codes - distinct > 0.01 * num_codes:
            found["duplicates"] = (
                f"{num_codes - distinct} of {num_codes} codes lie within {DISTINCT_SHARE:g} of the "
                "data's deviation of another one, because T is or was too high to part them or the "
                "data has so few distinct vectors: lower the temperature, keep revival on, or take "
                "fewer codes."
            )
        if rows < FEW_ROWS * num_codes:
            return found
        idle = int((hits < IDLE_HITS).sum())
        # None is idle at the start, and revival lets none become so.
        self.checks_idle = self.checks_idle + 1 if idle > 0.05 * num_codes else 0
        if self.checks_idle >= 2:
            found["idle"] = (
                f"{idle} of {num_codes} codes have died, without a vector for long, because "
                "vectors gather at fewer codes and nothing brings the others back: give the "
                "quantizer revival=Revival(), longer by its until=, or take fewer codes."
            )
        return found

    def check_temperature(
        self, temperature: float, *, critical: float, variance: float
    ) -> dict[str, str]:
        """Look for a temperature at which codes merge, and for data that shrinks under it.

        Args:
            temperature: The highest T in use.
            critical: T_c of the rows.
            variance: Their total variance.

        Returns:
            Messages by name.

        Example:
            >>> alarms = Alarms()
            >>> _ = alarms.check_temperature(1.0, critical=8.0, variance=4.0)
            >>> list(alarms.check_temperature(1.0, critical=1.5, variance=0.75))
            ['shrinking']
        """
        found = {}
        ratio = temperature / max(critical, 1e-36)
        self.widest = max(self.widest, variance)
        # Strictly above: a solved temperature may be held at the critical one, and says so.
        self.checks_above = self.checks_above + 1 if ratio > 1.001 else 0
        if ratio > 0.5 and variance < 0.5 * self.widest:
            found["shrinking"] = (
                f"The vectors' variance has fallen from {self.widest:.3g} to {variance:.3g} and T "
                f"is now {ratio:.2g} of the critical temperature, because the encoder is drawn "
                "together faster than the decoder needs it apart: lower Loss(weight=..., "
                "beta=...), or let T follow the data by Temperature(unit='nats')."
            )
        if self.checks_above >= PATIENT_CHECKS:
            found["above"] = (
                f"T has been above the critical temperature of the vectors for a while (now "
                f"{ratio:.3g} times), where all codes merge, because it is set too high for their "
                "scale: lower Temperature(gradient=..., prototypes=...), or use unit='nats', "
                "which stays below; if T comes down from there on purpose, all is well."
            )
        return found
