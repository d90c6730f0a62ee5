import math

import pytest

from train.rate import find_rate


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (0, 0.25),
        (3, 1.0),
        (50, 1.0),
        (75, 0.5 * (1 + math.cos(math.pi / 2))),
        (99, 0.5 * (1 + math.cos(math.pi * 0.98))),
    ],
)
def test_the_rate_climbs_stays_and_falls(step, expected):
    found = find_rate(step, steps=100, warmup_steps=4, decay_from=0.5)
    assert found == pytest.approx(expected, abs=1e-12)


def test_no_climb_and_no_fall_is_a_plain():
    found = {find_rate(step, steps=5, warmup_steps=0, decay_from=1.0) for step in range(5)}
    assert found == {1.0}
