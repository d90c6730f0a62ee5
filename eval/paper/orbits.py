"""Objects in orbit: a simulator of tracked elements in four regimes, and real ones to check with.

The paper's set is not published; this is ours. Each object gets Keplerian elements of its regime:

- LEO: mean altitude about 550, 780, 850, 1000 or 1450 km; near-circular; inclinations of the usual
  launches (53, 65.8, 74, 82.5, 86.4, 98 degrees).
- MEO: the navigation shells (GLONASS 19,130 km at 64.8 degrees, GPS 20,180 at 55, BeiDou 21,530
  at 55, Galileo 23,220 at 56).
- GEO: the semi-major axis of one sidereal day, inclination 0 to 15 degrees.
- HEO: transfer orbits (perigee 200 to 1,000 km, apogee near GEO) and Molniya (12 hours, e of 0.7).

Measured are mean motion, eccentricity and inclination, with noise; apogee and perigee altitude
follow from them. The shares, 88 / 2 / 4 / 6 %, are about those of the public catalogue. A regime is
a function of mean motion and eccentricity, so the task is easy by construction, and naming
everything LEO is right for 88 % of the objects.
"""

import itertools
import math
from pathlib import Path
from typing import NamedTuple

import sgp4
import torch
from jaxtyping import Float, Int
from sgp4.api import WGS72, Satrec
from torch import Tensor

REGIMES = ("LEO", "MEO", "GEO", "HEO")
SHARES = (0.88, 0.02, 0.04, 0.06)
EARTH_KM, GRAVITY = 6378.137, 398_600.4418
FEATURES = ("mean motion", "eccentricity", "inclination", "apogee", "perigee")
NOISE = {"motion": 0.01, "eccentricity": 0.003, "inclination": 0.5}

_LEO = ((550, 53.0), (780, 86.4), (850, 98.6), (850, 65.8), (1000, 82.9), (1450, 74.0), (700, 98.2))
_MEO = ((19_130, 64.8), (20_180, 55.0), (21_530, 55.0), (23_220, 56.0))


class Objects(NamedTuple):
    """Features of N objects and their regimes."""

    features: Float[Tensor, "n 5"]
    regimes: Int[Tensor, " n"]


def simulate(num: int, *, seed: int) -> Objects:
    """Draw objects and observe them.

    Args:
        num: N.
        seed: Of all that is drawn.

    Example:
        >>> objects = simulate(1000, seed=0)
        >>> objects.features.shape, objects.regimes.bincount().tolist()
        (torch.Size([1000, 5]), [880, 20, 40, 60])
    """
    generator = torch.Generator().manual_seed(seed)
    counts = [round(share * num) for share in SHARES]
    counts[0] += num - sum(counts)
    parts = [
        _shells(_LEO, counts[0], 60, 0.004, generator=generator),
        _shells(_MEO, counts[1], 40, 0.004, generator=generator),
        _geo(counts[2], generator=generator),
        _heo(counts[3], generator=generator),
    ]
    axis, eccentricity, inclination = (torch.cat(column) for column in zip(*parts, strict=True))
    motion = mean_motion(axis)

    def noise(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, dtype=like.dtype)

    motion = motion * (1 + NOISE["motion"] * noise(motion))
    eccentricity = (eccentricity + NOISE["eccentricity"] * noise(motion)).abs().clamp_max(0.95)
    inclination = (inclination + NOISE["inclination"] * noise(motion)).abs()
    regimes = torch.repeat_interleave(torch.arange(4), torch.tensor(counts))
    return Objects(make_features(motion, eccentricity, inclination), regimes)


def make_features(motion: Tensor, eccentricity: Tensor, inclination: Tensor) -> Tensor:
    """The five features, altitudes by logarithm.

    Args:
        motion: Revolutions a day.
        eccentricity: e.
        inclination: Degrees.

    Example:
        >>> one = torch.tensor([1.0027], dtype=torch.float64)
        >>> found = make_features(one, 0 * one, 0 * one)[0, 3]
        >>> round(float(found.exp()) / 100)
        358
    """
    axis = (GRAVITY * (86_400 / (2 * math.pi * motion)) ** 2) ** (1 / 3)
    apogee = (axis * (1 + eccentricity) - EARTH_KM).clamp_min(50).log()
    perigee = (axis * (1 - eccentricity) - EARTH_KM).clamp_min(50).log()
    return torch.stack([motion, eccentricity, inclination, apogee, perigee], -1).float()


def mean_motion(axis: Tensor) -> Tensor:
    """Revolutions a day of a semi-major axis in km, by Kepler's third law.

    Example:
        >>> round(float(mean_motion(torch.tensor(42_164.17, dtype=torch.float64))), 4)
        1.0027
    """
    return 86_400 / (2 * math.pi) * (GRAVITY / axis**3).sqrt()


def find_regime(motion: float, eccentricity: float) -> int:
    """The regime by the usual rule; its place in `REGIMES`.

    Example:
        >>> REGIMES[find_regime(15.5, 0.001)], REGIMES[find_regime(2.0, 0.7)]
        ('LEO', 'HEO')
    """
    if eccentricity >= 0.25:
        return 3
    if motion > 11.25:
        return 0
    return 2 if 0.99 <= motion <= 1.01 else 1


def load_real() -> Objects:
    """The verification cases that sgp4 ships: real two-line elements, hard ones on purpose."""
    file = Path(sgp4.__file__).with_name("SGP4-VER.TLE")
    lines = file.read_text(encoding="ascii").splitlines()
    elements = []
    for first, second in itertools.pairwise(lines):
        if first.startswith("1 ") and second.startswith("2 "):
            satellite = Satrec.twoline2rv(first[:69], second[:69], WGS72)
            motion = satellite.no_kozai * 1440 / (2 * math.pi)
            elements.append((motion, satellite.ecco, math.degrees(satellite.inclo)))
    motion, eccentricity, inclination = torch.tensor(elements, dtype=torch.float64).unbind(-1)
    regimes = [find_regime(n, e) for n, e, _ in elements]
    return Objects(make_features(motion, eccentricity, inclination), torch.tensor(regimes))


def _shells(
    shells: tuple[tuple[float, float], ...],
    num: int,
    width: float,
    eccentricity: float,
    *,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor]:
    """Semi-major axis, eccentricity and inclination of near-circular orbits about some shells."""
    places = torch.randint(len(shells), (num,), generator=generator)
    altitude, inclination = torch.tensor(shells, dtype=torch.float64)[places].unbind(-1)

    def normal() -> Tensor:
        return torch.randn(num, generator=generator, dtype=torch.float64)

    axis = EARTH_KM + altitude + width * normal()
    return axis, (eccentricity * normal()).abs(), inclination + 1.0 * normal()


def _geo(num: int, *, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.rand(3, num, generator=generator, dtype=torch.float64)
    return 42_164 + 60 * (draw[0] - 0.5), 0.001 * draw[1], 15 * draw[2]


def _heo(num: int, *, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.rand(4, num, generator=generator, dtype=torch.float64)
    perigee = EARTH_KM + 200 + 800 * draw[0]
    apogee = 42_164 + 800 * (draw[1] - 0.5)
    molniya = draw[2] < 0.3
    axis = torch.where(molniya, 26_560 + 100 * (draw[1] - 0.5), (perigee + apogee) / 2)
    eccentricity = torch.where(
        molniya, 0.68 + 0.06 * draw[0], (apogee - perigee) / (apogee + perigee)
    )
    inclination = torch.where(molniya, 62 + 3 * draw[3], 5 + 24 * draw[3])
    return axis, eccentricity, inclination
