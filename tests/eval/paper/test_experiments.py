"""One small run of each experiment that needs no download, on sets made here."""

import json
from dataclasses import replace

import pytest
import torch

from eval.paper import debris, rates, readout, stack
from eval.paper.features import TokenSet
from eval.paper.sizes import SIZES
from eval.paper.store import Store
from tests.contracts.quantizer import waves


@pytest.fixture(scope="module")
def tokens():
    """Two classes that differ in the mean of their tokens, in a way that LayerNorm leaves."""
    labels = torch.arange(48) % 2
    held = waves(48, 9, 384) + 1.5 * (2 * labels - 1)[:, None, None] * waves(384, phase=2.0).sign()
    mask = torch.arange(9).repeat(48, 1) < 4 + (torch.arange(48) % 6)[:, None]
    return TokenSet(
        tokens=(held * mask[..., None]).half(),
        mask=mask,
        ids=torch.zeros(48, 9, dtype=torch.int64),
        labels=labels,
        classes=("low", "high"),
        num_train=32,
    )


@pytest.mark.parametrize("method", ["mean", "DDCLReadout", "DDCLAttention, mean", "Slot Attention"])
def test_classes_that_the_mean_tells_apart_are_learned(tokens, method):
    row = readout.train(tokens, method, seed=0, epochs=4)
    assert row["accuracy"] == 1.0
    again = readout.train(tokens, method, seed=0, epochs=4)
    assert again == row


def test_logistic_regression_on_the_mean(tokens):
    assert readout.regress(tokens)["accuracy"] == 1.0


def test_debris_is_clustered_and_checked_on_real_elements(tmp_path):
    store = Store(tmp_path, "clusters", sizes=SIZES["smoke"].take("objects"))
    rows = debris.run_debris(store, SIZES["smoke"])
    single = rows[0]
    assert single["accuracy"] == pytest.approx(0.88)
    assert single["real"] == pytest.approx(8 / 33)
    assert {row["method"] for row in rows[1:]} == {debris.INFORMED, *debris.METHODS}
    assert all(row["ari"] > 0.05 and 0 <= row["real"] <= 1 for row in rows[1:])
    assert len(json.loads((tmp_path / "clusters.json").read_text())["rows"]) == len(rows)


@pytest.mark.parametrize("recipe", rates.RECIPES)
def test_a_rate_run_reads_its_health(recipe):
    row = rates.train(waves(200, 12), recipe, epsilon=0.1, seed=0, steps=8)
    assert 0 < row["use_hard"] <= 1
    assert row["temperature_ratio"] > 0
    assert row["latent_scale"] > 0
    assert isinstance(row["verdict"], str)


@pytest.fixture(scope="module")
def unit_tokens():
    """Full windows of tokens in four of 384 directions, which LayerNorm leaves as they are."""
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(stack.DIM, 4, generator=generator)
    basis = torch.linalg.qr(basis - basis.mean(0)).Q.T
    where = torch.nn.functional.normalize(torch.randn(60, 16, 4, generator=generator), dim=-1)
    mask = torch.arange(16).repeat(60, 1) < 8 + 8 * (torch.arange(60) % 2)[:, None]
    return TokenSet(
        tokens=stack.DIM**0.5 * (where @ basis) * mask[..., None],
        mask=mask,
        ids=torch.zeros(60, 16, dtype=torch.int64),
        labels=torch.arange(60) % 2,
        classes=("low", "high"),
        num_train=40,
    )


@pytest.mark.parametrize("level", [0, 1])
def test_a_line_gives_back_what_passes_a_level_and_nothing_of_what_does_not(unit_tokens, level):
    torch.manual_seed(0)
    model = stack.Model(steps=4, seed=0)
    with torch.no_grad():
        model(unit_tokens.tokens, unit_tokens.mask)  # prototypes start
        model.stack.levels[1].attention.norm = torch.nn.Identity()  # means have no unit length
        assert stack.give_back(model, unit_tokens)[level] > 0.99
        model.stack.levels[level].attention.norm = torch.nn.LayerNorm(stack.DIM)
        model.stack.levels[level].attention.norm.weight.zero_()
        assert stack.give_back(model, unit_tokens)[level] < 0.01


def test_the_line_is_fit_on_training_documents_and_measured_on_the_others(unit_tokens):
    """Documents for training that are all alike teach it nothing of the others."""
    torch.manual_seed(0)
    model = stack.Model(steps=4, seed=0)
    alike = unit_tokens.tokens.clone()
    alike[:40] = torch.where(unit_tokens.mask[:40, :, None], alike[40, :1], 0)
    data = replace(unit_tokens, tokens=alike)
    with torch.no_grad():
        model(unit_tokens.tokens, unit_tokens.mask)
    assert max(stack.give_back(model, data)) < 0.01


def test_a_level_gives_back_what_it_holds(tokens):
    torch.manual_seed(0)
    model = stack.Model(steps=4, seed=0)
    z, mask = tokens.tokens.float(), tokens.mask
    with torch.no_grad():
        out, lost = model(z, mask)
    assert [float(each) > 0 for each in lost] == [True, True]
    row = stack.describe(out, 1, float(lost[1]), labels=tokens.labels, mask=mask)
    assert row["V_over_L_q"] == pytest.approx(
        row["spread_V"] / (row["spread_V"] + row["residual_OLS"])
    )
    assert row["prototypes"] == stack.PROTOTYPES[1]
    lines = stack.list_classes(out, tokens.labels, tokens.classes)
    assert len(lines) == stack.PROTOTYPES[1]
