import math

import numpy as np
import pytest
import torch

from tests.train.prior.conftest import make_sequences
from train.prior.nats import count_codes, measure_nats, measure_unigram
from train.prior.net import Prior
from train.prior.vocabulary import take_vocabulary


def make_prior(tokens, config, *, conditional=True):
    torch.manual_seed(0)
    prior = Prior(take_vocabulary(tokens, conditional=conditional), config.net).double()
    with torch.no_grad():
        prior.net.get_input_embeddings().weight.mul_(20)
    return prior


def test_nothing_known_is_log_k(pair, make_prior_config):
    prior = make_prior(pair["test"], make_prior_config())
    with torch.no_grad():
        prior.net.get_input_embeddings().weight.zero_()
    found = measure_nats(prior, pair["test"])
    assert found.per_token == pytest.approx(math.log(6), rel=1e-6)
    assert found.per_image == pytest.approx(6 * math.log(6), rel=1e-6)
    assert found.images == 9


@pytest.mark.parametrize("conditional", [True, False])
@pytest.mark.parametrize(("num", "batch"), [(None, 4), (5, 2)])
def test_nats_are_those_of_loops(pair, make_prior_config, conditional, num, batch):
    prior = make_prior(pair["test"], make_prior_config(), conditional=conditional)
    tokens, labels = make_sequences(num or 9)
    total = 0.0
    for item, label in zip(tokens.flatten(1).tolist(), labels.tolist(), strict=True):
        start = 7 + label if conditional else 6
        logits = prior.eval()(torch.tensor([[start, *item[:-1]]]))[0].detach().numpy()
        for row, code in zip(logits, item, strict=True):
            total -= row[code] - np.log(np.exp(row).sum())
    found = measure_nats(prior, pair["test"], num_images=num, batch_size=batch)
    assert found.per_image == pytest.approx(total / len(tokens), rel=1e-5)
    assert found.per_token == pytest.approx(total / len(tokens) / 6, rel=1e-5)
    assert abs(found.per_token - math.log(6)) > 0.01


def test_unigram_figures_are_those_of_counting():
    train, test = torch.tensor([3, 0, 5]), torch.tensor([2, 2, 0])
    found = measure_unigram(train, test)
    assert found.entropy == pytest.approx(math.log(2))
    assert found.cross_entropy == pytest.approx(-0.5 * math.log(4 / 11) - 0.5 * math.log(1 / 11))


def test_counts_are_those_of_the_tokens(pair):
    tokens, _ = make_sequences(24)
    assert torch.equal(count_codes(pair["train"]), tokens.flatten().bincount(minlength=6))


def test_the_mode_of_the_prior_stays(pair, make_prior_config):
    prior = make_prior(pair["test"], make_prior_config()).train()
    measure_nats(prior, pair["test"], num_images=1)
    assert prior.training


@pytest.mark.bad_input
def test_tokens_of_another_vocabulary_are_refused(pair, export, make_prior_config):
    other = export(*make_sequences(3), num_codes=7, name="other")
    with pytest.raises(ValueError, match=r"vocabulary that the prior learns; has num_codes 7 in"):
        measure_nats(make_prior(pair["test"], make_prior_config()), other)
