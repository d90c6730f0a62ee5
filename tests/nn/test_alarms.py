import warnings

import pytest
import torch
from torch import nn

from softvq import (
    CodebookWarning,
    DDCLReadout,
    HardVQ,
    ImplicitVQ,
    Learning,
    Loss,
    ResidualVQ,
    SoftVQ,
    Temperature,
    attach,
)
from softvq.nn.alarms import Alarms, advise_frozen
from tests.contracts.quantizer import waves


def train(model, *, steps, lr=1e-2, codebook_lr="10x", reconstruct=1.0, far=0.0, adam=True):
    """Steps on the same rows; the loss is the quantizer's and ``reconstruct`` times the error."""
    make = torch.optim.Adam if adam else torch.optim.SGD
    optimizer = make(model.parameters(), lr=lr)
    attach(model, optimizer, codebook_lr=codebook_lr)
    rows = waves(128, 4) + far
    for _ in range(steps):
        out = model(rows)
        loss = out.loss + reconstruct * (out.quantized - rows).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def find_warnings(run):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(each.message) for each in caught if each.category is CodebookWarning]


@pytest.mark.parametrize("unit", ["critical", "absolute"])
def test_a_temperature_above_critical_is_told_once(unit):
    vq = SoftVQ(
        8, 4, temperature=Temperature(gradient=5.0, prototypes=None, unit=unit, warmup_share=0.0)
    )
    found = find_warnings(lambda: train(nn.Sequential(vq), steps=60))
    assert vq.temperature > vq.schedule.critical
    assert len(found) == 1
    assert "above the critical temperature" in found[0]
    assert "unit='nats'" in found[0]


def test_a_passing_temperature_above_critical_is_not_told():
    path = Temperature(
        warmup_share=0.0,
        gradient=(2.0, 0.1),
        prototypes=None,
        unit="critical",
        anneal_steps=50,
        anneal_share=1.0,
    )
    vq = SoftVQ(8, 4, temperature=path)
    assert find_warnings(lambda: train(nn.Sequential(vq), steps=60)) == []


def test_codes_that_merge_are_told():
    vq = SoftVQ(
        8,
        4,
        temperature=Temperature(gradient=5.0, prototypes=None, unit="critical", warmup_share=0.0),
        loss=Loss(weight=0.25, unit="absolute"),
        revival=None,
    )
    options = {"lr": 10.0, "codebook_lr": "1x", "reconstruct": 0.0, "adam": False}
    found = find_warnings(lambda: train(nn.Sequential(vq), steps=101, **options))
    assert int(vq.distinct) == 1
    assert len(found) == 2
    assert "7 of 8 codes lie within" in found[1]


def test_an_encoder_that_shrinks_under_the_temperature_is_told():
    """The loss of the assignment alone, with T fixed, draws everything together."""
    torch.manual_seed(0)  # of the map before it
    vq = SoftVQ(
        8,
        4,
        temperature=Temperature(gradient=0.4, prototypes=None, unit="absolute", warmup_share=0.0),
        loss=Loss(weight=1.0, beta=1.0, unit="absolute"),
    )
    model = nn.Sequential(nn.Linear(4, 4), vq)
    found = find_warnings(lambda: train(model, steps=100, reconstruct=0.0))
    assert "variance has fallen from" in found[0]
    assert "lower Loss(weight=" in found[0]


def test_plain_vq_whose_codes_starve_is_told():
    """All rows are on one side of the codes, which the nearest few of them take for good."""
    vq = HardVQ(32, 4, codebook="gradient", learning=Learning(start="uniform"), revival=None)
    options = {"codebook_lr": "1x", "far": 3.0}
    found = find_warnings(lambda: train(nn.Sequential(vq), steps=201, **options))
    idle = int((vq.hits < 1e-3).sum())
    assert idle > 8
    assert len(found) == 1
    assert f"{idle} of 32 codes have died, " in found[0]
    assert "revival=Revival()" in found[0]


def fail_codes(vq):
    """What is told of codes that all coincide, and get no row at two checks."""
    vq.hits.fill_(0.0)
    vq.distinct.fill_(1)
    equal, idle = find_warnings(lambda: [vq._check_codes(1000) for _ in range(2)])
    assert "lie within 0.001" in equal
    assert "have died" in idle
    return equal, idle


NO_WARM_UP = Temperature(warmup_share=0.0)


@pytest.mark.parametrize(
    ("vq", "equal", "idle"),
    [
        (HardVQ(8, 4), "keep revival on, place the codes by k-means", "by Revival(threshold=...)"),
        (
            HardVQ(8, 4, revival=None, learning=Learning(start="uniform")),
            "give the quantizer revival=Revival(), start them by Learning(start='kmeans')",
            "give the quantizer revival=Revival(), start them by Learning(start='kmeans')",
        ),
        (SoftVQ(8, 4, temperature=NO_WARM_UP), "lower the temp", "by Revival(until=...)"),
        (
            SoftVQ(8, 4, temperature=NO_WARM_UP, revival=None),
            "lower the temperature, give the quantizer revival=Revival()",
            "give the quantizer revival=Revival()",
        ),
        (ImplicitVQ(8, 4, temperature=NO_WARM_UP), "lower the temp", "take SoftVQ, which revives"),
        (
            DDCLReadout(4, 8, temperature=NO_WARM_UP).prototypes.quantizers[0],
            "lower the temperature, keep revival on",
            "by Revival(until=...)",
        ),
    ],
    ids=["hard", "hard, bare", "soft", "soft, bare", "implicit", "readout"],
)
def test_the_advice_is_of_what_the_quantizer_has(vq, equal, idle):
    found = fail_codes(vq)
    for message, cure in zip(found, (equal, idle), strict=True):
        assert cure in message
        assert message.endswith(", or take fewer codes.")
        if isinstance(vq, ImplicitVQ):
            assert "revival" not in message.lower()  # it takes none
        if isinstance(vq, HardVQ):
            assert "temperature" not in message
            assert "T is" not in message
            assert "until" not in message  # its revival does not end


@pytest.mark.parametrize("make", [SoftVQ, HardVQ])
def test_of_frozen_codes_neither_revival_nor_temperature_is_advised(make):
    vq = make(8, 4, **({"temperature": NO_WARM_UP} if make is SoftVQ else {}))
    vq.freeze_()
    for message in fail_codes(vq):
        assert message.endswith("let the codes move again by freeze_(False), or take fewer codes.")
        assert "evival" not in message
        assert "T is" not in message


def test_a_temperature_in_nats_is_not_told_to_be_in_nats():
    alarms = Alarms()
    told = {}
    for variance in (4.0, *[0.5] * 5):
        told |= alarms.check_temperature(3.0, critical=1.0, variance=variance, unit="nats")
    assert set(told) == {"shrinking", "above"}
    for message in told.values():
        assert "nats" not in message
        assert "lower Temperature(gradient=..., prototypes=...)" in message


@pytest.mark.parametrize(("make", "has_path"), [(SoftVQ, True), (HardVQ, False)])
def test_stages_placed_on_few_rows_hear_of_a_temperature_where_they_have_one(make, has_path):
    vq = ResidualVQ([make(16, 4), make(16, 4)])
    (told,) = {each for each in find_warnings(lambda: vq(waves(8, 4))) if "placed on" in each}
    assert ("Temperature(" in told) == has_path


def test_codes_slower_than_the_encoder_are_told():
    model = nn.Sequential(nn.Linear(4, 4), SoftVQ(8, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with pytest.warns(CodebookWarning, match=r"'0.5x' makes codes learn slower than the enc"):
        attach(model, optimizer, codebook_lr="0.5x")


@pytest.mark.parametrize("codebook_lr", ["1x", "10x", 1e-5])
def test_codes_as_fast_as_the_encoder_are_not_told(codebook_lr):
    model = nn.Sequential(nn.Linear(4, 4), SoftVQ(8, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    assert find_warnings(lambda: attach(model, optimizer, codebook_lr=codebook_lr)) == []


def test_the_hosts_rate_is_told_in_the_same_category():
    model = nn.Sequential(SoftVQ(8, 4))
    optimizer = torch.optim.Adam(model.parameters())
    with pytest.warns(CodebookWarning, match="host's rate"):
        attach(model, optimizer, codebook_lr="keep")


@pytest.mark.parametrize("make", [SoftVQ, HardVQ])
def test_a_healthy_codebook_is_silent(make):
    model = nn.Sequential(nn.Linear(4, 4), make(16, 4))
    assert find_warnings(lambda: train(model, steps=202, lr=1e-3)) == []


def test_idle_codes_are_chance_where_rows_are_few():
    alarms = Alarms()
    hits = torch.zeros(1000)
    hits[:10] = 100.0
    for _ in range(3):
        assert alarms.check_codes(hits, distinct=1000, rows=50, advice=advise_frozen()) == {}


def test_they_are_silenced_by_their_category():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CodebookWarning)
        vq = SoftVQ(
            8,
            4,
            temperature=Temperature(
                gradient=5.0, prototypes=None, unit="critical", warmup_share=0.0
            ),
        )
        train(nn.Sequential(vq), steps=60)


def test_codes_that_wait_for_the_end_of_the_warm_up_are_no_fault():
    """The encoder grows away from the codes, which are placed on it when the warm-up ends."""
    path = Temperature(anneal_steps=2000, warmup_share=0.5)
    vq = SoftVQ(64, 4, temperature=path, revival=None)

    def drift():
        for step in range(202):
            vq(waves(128, 4) * (1 + step))
            vq.update_()

    assert find_warnings(drift) == []
    assert (vq.hits < 1e-3).sum() > 4
