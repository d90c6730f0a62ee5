"""The course of a learning rate: a climb, a plain, a fall."""

import math


def find_rate(step: int, *, steps: int, warmup_steps: int, decay_from: float) -> float:
    """Factor on the rate at a step, counted from 0.

    Args:
        step: Which.
        steps: Of the run.
        warmup_steps: Steps of the climb.
        decay_from: Share of the run at which the fall begins, as a cosine to 0.

    Example:
        >>> [find_rate(step, steps=8, warmup_steps=2, decay_from=0.5) for step in (0, 2, 6)]
        [0.5, 1.0, 0.5]
    """
    climb = min(1.0, (step + 1) / max(warmup_steps, 1))
    share = step / steps
    if share <= decay_from:
        return climb
    fall = (share - decay_from) / (1 - decay_from)
    return climb * 0.5 * (1 + math.cos(math.pi * fall))
