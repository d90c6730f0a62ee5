import math

import pytest
import torch

from eval.paper.orbits import (
    EARTH_KM,
    REGIMES,
    find_regime,
    load_real,
    make_features,
    mean_motion,
    simulate,
)


def test_keplers_third_law_by_the_iss_and_the_clarke_belt():
    """420 km up: 15.5 revolutions a day; 42,164 km: one a sidereal day of 86,164.1 s."""
    assert float(mean_motion(torch.tensor(EARTH_KM + 420.0))) == pytest.approx(15.5, abs=0.02)
    geo = float(mean_motion(torch.tensor(42_164.17, dtype=torch.float64)))
    assert geo == pytest.approx(86_400 / 86_164.0905, rel=1e-5)


def test_apogee_and_perigee_of_a_transfer_orbit():
    axis = torch.tensor([(EARTH_KM + 300 + 42_164) / 2], dtype=torch.float64)
    eccentricity = (42_164 - EARTH_KM - 300) / (42_164 + EARTH_KM + 300)
    features = make_features(mean_motion(axis), torch.tensor([eccentricity]), torch.zeros(1))
    assert math.exp(features[0, 4]) == pytest.approx(300, rel=1e-3)
    assert math.exp(features[0, 3]) == pytest.approx(42_164 - EARTH_KM, rel=1e-4)


def test_simulated_objects_obey_the_usual_rule_but_for_noise():
    objects = simulate(4000, seed=1)
    found = [find_regime(float(n), float(e)) for n, e in objects.features[:, :2]]
    same = torch.tensor(found) == objects.regimes
    # One percent of noise on the mean motion takes GEO out of the rule's narrow band.
    others = objects.regimes != REGIMES.index("GEO")
    assert same[others].float().mean() > 0.99


def test_a_seed_is_a_set():
    assert torch.equal(simulate(100, seed=2).features, simulate(100, seed=2).features)
    assert not torch.equal(simulate(100, seed=2).features, simulate(100, seed=3).features)


def test_the_real_elements_are_sgp4s_verification_cases():
    real = load_real()
    assert len(real.regimes) == 33
    assert real.features.isfinite().all()
    assert torch.bincount(real.regimes, minlength=4).min() > 0
