"""How well a prior predicts tokens that it has not seen, in nats, beside what counting alone gives.

Shape letters: K codes.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Int
from torch import Tensor

from softvq.export import TokenDataset
from train.prior.net import Prior
from train.prior.vocabulary import NO_CLASS, check_same, flat_codes, take_vocabulary

BATCH = 125


class Nats(NamedTuple):
    """Held-out nats: lower is better; log K where nothing is known of the next code."""

    per_token: float
    per_image: float
    images: int


class Unigram(NamedTuple):
    """Nats a token of codes drawn one by one, by their frequencies alone."""

    entropy: float
    """At the held-out frequencies themselves: no model without context gets below it."""
    cross_entropy: float
    """Of held-out tokens at the training frequencies, one added to each count."""


@torch.no_grad()
def measure_nats(
    prior: Prior, tokens: TokenDataset, *, num_images: int | None = None, batch_size: int = BATCH
) -> Nats:
    """Mean negative log-likelihood of tokens, each item after its own start token.

    Args:
        prior: In any mode; put in eval mode for the time.
        tokens: At best a set that training never saw.
        num_images: The first so many; None for all.
        batch_size: Items at once.

    Raises:
        ValueError: If the set has another vocabulary.
    """
    conditional = bool(prior.vocabulary.classes)
    theirs = take_vocabulary(tokens, conditional=conditional)
    check_same(prior.vocabulary, theirs, what=f"tokens in {tokens.folder}")
    training = prior.training
    prior.eval()
    device = next(prior.parameters()).device
    count = len(tokens) if num_images is None else min(num_images, len(tokens))
    total = 0.0
    for begin in range(0, count, batch_size):
        items = tokens.batch(torch.arange(begin, min(begin + batch_size, count)))
        codes = flat_codes(items.tokens).to(device)
        labels = items.label if conditional else torch.full_like(items.label, NO_CLASS)
        logits = prior(prior.vocabulary.inputs(codes, labels.to(device)))
        rows = rearrange(logits.float(), "b l k -> (b l) k")
        total += F.cross_entropy(rows, codes.flatten(), reduction="none").double().sum().item()
    prior.train(training)
    per_image = total / count
    return Nats(per_image / prior.vocabulary.length, per_image, count)


def measure_unigram(train: Int[Tensor, " k"], test: Int[Tensor, " k"]) -> Unigram:
    """What frequencies alone predict.

    Args:
        train: How often each code is in the training tokens.
        test: The same for held-out tokens.

    Example:
        >>> found = measure_unigram(torch.tensor([1, 1]), torch.tensor([5, 5]))
        >>> [round(each, 4) for each in found]
        [0.6931, 0.6931]
    """
    shares = test.double() / test.sum()
    learned = (train.double() + 1) / (train.double() + 1).sum()
    entropy = -torch.special.xlogy(shares, shares).sum()
    cross = -(shares * learned.log()).sum()
    return Unigram(entropy.item(), cross.item())


def count_codes(tokens: TokenDataset) -> Int[Tensor, " k"]:
    """How often each code is in a set, as its export counted.

    Raises:
        ValueError: If the set has several codebooks.
    """
    counts = tokens.codebook.counts
    if counts is None or len(counts) != 1:
        raise ValueError(f"tokens in {tokens.folder} must have one codebook with its counts.")
    return counts[0]
