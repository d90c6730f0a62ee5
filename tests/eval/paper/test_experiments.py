"""One small run of each experiment that needs no download, on sets made here."""

import json

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
    assert {row["method"] for row in rows[1:]} == set(debris.METHODS)
    assert all(row["ari"] > 0.05 and 0 <= row["real"] <= 1 for row in rows[1:])
    assert len(json.loads((tmp_path / "clusters.json").read_text())["rows"]) == len(rows)


@pytest.mark.parametrize("recipe", rates.RECIPES)
def test_a_rate_run_reads_its_health(recipe):
    row = rates.train(waves(200, 12), recipe, epsilon=0.1, seed=0, steps=8)
    assert 0 < row["use_hard"] <= 1
    assert row["temperature_ratio"] > 0
    assert row["latent_scale"] > 0
    assert isinstance(row["verdict"], str)


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
