import math

import numpy as np
import pytest
import torch

from train.prior.config import Sampling
from train.prior.sampling import guide, keep_likely, sample

LABELS = torch.arange(12) % 3


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def keep_likely_by_loops(logits, top_k, top_p):
    """Which codes stay, one row at a time, from the words of the docstring."""
    kept = []
    for row in logits.tolist():
        order = sorted(range(len(row)), key=lambda code: (-row[code], code))[:top_k]
        total = sum(math.exp(row[code]) for code in order)
        stays, mass = set(), 0.0
        for code in order:
            if mass >= top_p:
                break
            stays.add(code)
            mass += math.exp(row[code]) / total
        kept.append(stays)
    return kept


@pytest.mark.parametrize(
    ("top_k", "top_p"), [(None, 1.0), (3, 1.0), (None, 0.7), (4, 0.6), (1, 0.1), (7, 0.999)]
)
def test_what_stays_is_what_loops_keep(top_k, top_p):
    logits = 3 * torch.sin(torch.arange(35, dtype=torch.float64) ** 2).reshape(5, 7)
    got = keep_likely(logits, top_k=top_k, top_p=top_p)
    stays = [{i for i, value in enumerate(row) if value > -math.inf} for row in got.tolist()]
    assert stays == keep_likely_by_loops(logits, top_k or 7, top_p)
    assert torch.equal(got[got > -math.inf], logits[got > -math.inf])


def test_of_equals_exactly_top_k_stay():
    got = keep_likely(torch.zeros(1, 5), top_k=2, top_p=1.0)
    assert got.isfinite().tolist() == [[True, True, False, False, False]]


def test_a_long_tail_stays_where_all_shall():
    logits = torch.full((1, 4096), -20.0)
    logits[0, 0] = 0
    assert bool(keep_likely(logits, top_k=None, top_p=1.0).isfinite().all())


@pytest.mark.parametrize("scale", [0.0, 0.5, 1.0, 3.0])
def test_guidance_is_the_formula(scale):
    told, untold = torch.sin(torch.arange(8.0)).double(), torch.cos(torch.arange(8.0)).double()
    got = guide(told.reshape(2, 4), untold.reshape(2, 4), scale=scale).softmax(-1)
    for row in range(2):
        p, q = (np.exp(each.numpy()[4 * row : 4 * row + 4]) for each in (told, untold))
        p, q = p / p.sum(), q / q.sum()
        expected = p**scale * q ** (1 - scale)
        np.testing.assert_allclose(got[row].numpy(), expected / expected.sum(), rtol=1e-12)


def greedy(prior, label, scale=1.0):
    """The likeliest code, place by place, by whole passes."""
    vocabulary = prior.vocabulary
    codes = []
    for _ in range(vocabulary.length):
        starts = [vocabulary.classes[label], vocabulary.bos]
        told, untold = (prior(torch.tensor([[s, *codes]]))[0, -1].log_softmax(0) for s in starts)
        codes.append(int((scale * told + (1 - scale) * untold).argmax()))
    return codes


@pytest.mark.parametrize("scale", [1.0, 2.5])
@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-6}])
def test_the_narrowest_choice_is_the_likeliest_code(make_small, options, scale):
    prior = make_small(grid=(2, 3))
    sampling = Sampling(guidance=scale, **options)
    got = sample(prior, torch.arange(3), sampling=sampling, generator=seeded())
    assert got.shape == (3, 2, 3)
    assert got.flatten(1).tolist() == [greedy(prior, label, scale) for label in range(3)]


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_a_cache_changes_nothing(make_small, guidance):
    prior, sampling = make_small(grid=(3, 4)), Sampling(guidance=guidance, top_p=0.9)
    kept, anew = (
        sample(prior, LABELS, sampling=sampling, generator=seeded(), cached=cached)
        for cached in (True, False)
    )
    assert torch.equal(kept, anew)
    assert len(kept.unique()) > 2


def test_draws_follow_the_model(make_small):
    """Shares of the first code of 4,000 items, against its probabilities."""
    prior = make_small(grid=(1, 1))
    labels = torch.full((4_000,), 1)
    got = sample(prior, labels, sampling=Sampling(temperature=2.0), generator=seeded())
    shares = got.flatten().bincount(minlength=5) / len(labels)
    expected = (prior(torch.tensor([[prior.vocabulary.classes[1]]]))[0, 0] / 2).softmax(0)
    torch.testing.assert_close(shares.double(), expected, rtol=0, atol=0.03)


def test_a_seed_gives_the_same_again(make_small):
    prior = make_small()
    one, two, other = (
        sample(prior, LABELS, sampling=Sampling(), generator=seeded(seed)) for seed in (3, 3, 4)
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_special_tokens_are_never_drawn(make_small):
    prior = make_small()
    with torch.no_grad():  # as likely as can be, if they had a say
        table = prior.net.get_input_embeddings().weight
        table[prior.vocabulary.num_codes :] *= 1000
    got = sample(prior, LABELS, sampling=Sampling(temperature=50.0), generator=seeded())
    assert int(got.max()) < prior.vocabulary.num_codes


def test_without_a_class_items_begin_with_bos(make_small):
    prior = make_small()
    got = sample(prior, torch.tensor([-1]), sampling=Sampling(top_k=1), generator=seeded())
    first = int(prior(torch.tensor([[prior.vocabulary.bos]]))[0, 0].argmax())
    assert int(got[0, 0, 0]) == first


def test_the_mode_of_the_prior_stays(make_small):
    prior = make_small().train()
    sample(prior, LABELS[:1], sampling=Sampling(), generator=seeded())
    assert prior.training


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature must be a finite number > 0; got 0.0"),
        ({"temperature": -1.0}, "temperature must be"),
        ({"temperature": float("nan")}, "temperature must be"),
        ({"top_p": 0.0}, "top_p must be a finite number <= 1 and > 0; got 0.0"),
        ({"top_p": 1.1}, "top_p must be"),
        ({"top_k": 0}, "top_k must be a whole number of at least 1; got 0"),
        ({"guidance": -1.0}, "guidance must be a finite number >= 0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**options)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("labels", "options", "parts", "message"),
    [
        ([3], {}, {}, r"labels must be classes in \[0, 3\)"),
        ([0], {"top_k": 6}, {}, "top_k is 6; there are 5 codes"),
        ([-1], {"guidance": 2.0}, {}, "an item has no class to be led to"),
        ([-1], {"guidance": 2.0}, {"num_classes": 0}, "an item has no class to be led to"),
        ([0], {"guidance": 2.0}, {"drops_labels": False}, "was trained with drop_labels=0"),
        ([-1], {}, {"drops_labels": False}, "was trained with drop_labels=0"),
    ],
)
def test_what_the_prior_cannot_do_is_refused(make_small, labels, options, parts, message):
    with pytest.raises(ValueError, match=message):
        sample(
            make_small(**parts),
            torch.tensor(labels),
            sampling=Sampling(**options),
            generator=seeded(),
        )
