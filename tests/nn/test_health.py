import math

import pytest
import torch
from torch import nn

from softvq import DDCLAttention, HardVQ, HealthMonitor, SoftVQ, Temperature
from softvq.nn.health import HealthReading, find_trend, judge
from tests.contracts.quantizer import waves

WELL = HealthReading(
    separation=1.2,
    entropy=0.3,
    entropy_share=0.2,
    spread_share=0.1,
    temperature_ratio=0.2,
    distinct=1.0,
    dead=0.0,
)


@pytest.fixture
def head():
    options = Temperature(gradient=0.5, prototypes=0.3, unit="absolute", warmup_share=0.0)
    vq = SoftVQ(4, 3, temperature=options)
    vq(waves(60, 3))
    return vq


def test_a_reading_is_what_its_names_say(head):
    monitor = HealthMonitor(head)
    out = head(waves(60, 3))
    reading = monitor.read()
    assert reading.entropy_share == pytest.approx(out.stats["entropy"].item() / math.log(4))
    share = (out.stats["spread"] / out.stats["distortion"]).item()
    assert reading.spread_share == pytest.approx(share)
    assert reading.separation == pytest.approx(out.stats["separation"].item())
    assert reading.temperature_ratio == pytest.approx(0.5 / head.schedule.critical.item())
    assert (reading.distinct, reading.dead) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "healthy"),
        ({"spread_share": 0.9}, "soft: V is 90%"),
        ({"dead": 0.5}, "unused: 50%"),
        ({"entropy_share": 0.95, "dead": 0.5}, "undecided: H"),
        ({"distinct": 0.25, "entropy_share": 0.95}, "merged: 25%"),
        ({"separation": 0.02}, "merged: 100% of the prototypes are told apart, and they lie 0.02"),
        ({"temperature_ratio": 1.5, "distinct": 0.25}, r"merging: T is 1.50"),
        ({"separation": math.nan, "distinct": 0.25}, "not finite"),
    ],
    ids=["well", "soft", "dead", "uniform", "merged", "near", "hot", "nan"],
)
def test_the_worst_finding_is_the_verdict(changes, word):
    assert judge(WELL._replace(**changes)).startswith(word)


def test_a_collapsed_codebook_is_called_merged():
    """All prototypes equal: soft use is 100 %, and the monitor must not be taken in by it."""
    options = Temperature(gradient=0.5, prototypes=None, unit="absolute", warmup_share=0.0)
    vq = SoftVQ(4, 3, temperature=options, revival=None)
    vq(waves(60, 3))
    with torch.no_grad():
        vq.codebook.copy_(vq.codebook[:1].expand(4, 3))
    monitor = HealthMonitor(vq)
    out = vq(waves(60, 3))
    assert out.stats["perplexity_soft_batch"].item() == pytest.approx(4)
    assert monitor.read().distinct == 0.25
    assert monitor.verdict().startswith("merged: 25%")


def test_prototypes_that_differ_by_a_hundredth_are_merged(head):
    """Too far apart for the thousandth of the data's deviation that makes equal codes equal."""
    deviation = head.schedule.variance.sqrt()
    with torch.no_grad():
        head.codebook.copy_(0.01 * deviation * waves(4, 3, phase=2.0))
    monitor = HealthMonitor(head)
    head(waves(60, 3))
    head.update_()
    assert head(waves(60, 3)).stats["distinct_codes"] == 4
    assert monitor.read().distinct == 0.25
    assert monitor.verdict().startswith("merged: 25%")


def test_prototypes_of_nan_are_not_finite(head):
    monitor = HealthMonitor(head)
    with torch.no_grad():
        head.codebook[1] = math.nan
    head(waves(60, 3))
    assert monitor.verdict().startswith("not finite")


def test_the_monitor_of_several_heads_names_the_worst(head):
    layer = DDCLAttention(8, 4, heads=2, temperature=Temperature(gradient=0.1, prototypes=None))
    model = nn.ModuleDict({"first": layer})
    monitor = HealthMonitor(model)
    assert monitor.verdict() == "no data yet"
    layer(waves(4, 30, 8))
    assert set(monitor.read_each()) == {
        "first.prototypes.heads.0",
        "first.prototypes.heads.1",
    }
    worst = layer.prototypes.heads[1]
    worst.schedule.levels.fill_(10 * float(worst.schedule.critical))
    layer(waves(4, 30, 8))
    assert monitor.verdict().startswith("first.prototypes.heads.1: merging")


def test_the_trend_compares_the_last_quarter_with_the_first():
    history = [WELL._replace(separation=1.0 + step, entropy=1.0 / (1 + step)) for step in range(8)]
    trend = find_trend(history)
    assert (trend["separation"], trend["entropy"], trend["dead"]) == ("rises", "falls", "holds")
    assert set(find_trend(history[:3]).values()) == {"holds"}


def test_history_grows_with_readings_and_hooks_come_off(head):
    monitor = HealthMonitor(head)
    with pytest.raises(RuntimeError, match="forward pass"):
        monitor.read()
    for _ in range(3):
        head(waves(60, 3))
        monitor.read()
    assert len(monitor.history) == 3
    monitor.detach()
    before = monitor.read()
    head(waves(60, 3, phase=2.0))
    assert monitor.read() == before


@pytest.mark.bad_input
@pytest.mark.parametrize("model", [nn.Linear(2, 2), HardVQ(4, 2)], ids=["none", "hard"])
def test_a_model_without_soft_quantizers_is_refused(model):
    with pytest.raises(ValueError, match="holds no soft quantizer"):
        HealthMonitor(model)
