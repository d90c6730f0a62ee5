"""Drawing tokens from a prior: temperature, top-k, top-p, classifier-free guidance.

Ho and Salimans, "Classifier-Free Diffusion Guidance", https://arxiv.org/abs/2207.12598; Holtzman et
al., "The Curious Case of Neural Text Degeneration", https://arxiv.org/abs/1904.09751 (top-p).

Shape letters: B items, K codes.
"""

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from train.prior.config import Sampling
from train.prior.net import Prior
from train.prior.vocabulary import NO_CLASS


def guide(
    conditional: Float[Tensor, "b k"], unconditional: Float[Tensor, "b k"], *, scale: float
) -> Float[Tensor, "b k"]:
    """Log-probabilities, up to a constant, that lean to the class by ``scale``.

    Args:
        conditional: Logits with the class told.
        unconditional: Logits without.
        scale: 0 forgets the class, 1 tells it, more overstates it.

    Example:
        >>> guide(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, -100.0]]), scale=0.0).softmax(1)
        tensor([[1.0000e+00, 3.7835e-44]])
    """
    told, untold = conditional.log_softmax(-1), unconditional.log_softmax(-1)
    return torch.lerp(untold, told, scale)


def keep_likely(
    logits: Float[Tensor, "b k"], *, top_k: int | None, top_p: float
) -> Float[Tensor, "b k"]:
    """Logits with those of unlikely codes at minus infinity; the likeliest always stays.

    Args:
        logits: Of all codes.
        top_k: How many stay, of equals those of the lower numbers; None for all.
        top_p: Of what top-k leaves, as many of the likeliest stay as are needed for this mass.

    Example:
        >>> keep_likely(torch.tensor([[2.0, 1.0, 0.0]]), top_k=2, top_p=1.0)
        tensor([[2., 1., -inf]])
    """
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    kept = (rank < (top_k or len(rank))).expand_as(ordered)
    if top_p < 1:  # at 1 rounding in the sum must not cut off the tail
        weights = ordered.masked_fill(~kept, -torch.inf).double().softmax(-1)
        kept = kept & (weights.cumsum(-1) - weights < top_p)
    return logits.masked_fill(~kept.gather(-1, order.argsort(-1)), -torch.inf)


@torch.no_grad()
def sample(
    prior: Prior,
    labels: Int[Tensor, " b"],
    *,
    sampling: Sampling,
    generator: torch.Generator,
    cached: bool = True,
) -> Int[Tensor, "b ..."]:
    """Draw one item for each label.

    Args:
        prior: Put in eval mode for the time.
        labels: Classes; -1 where none is told.
        sampling: How.
        generator: On the CPU; draws B codes a position.
        cached: Whether keys and values are kept from position to position; the answer does not
            depend on it, but for rounding.

    Returns:
        Codes (B, *grid), int64, on the CPU; never a special token.

    Raises:
        ValueError: For a class without a token, more top_k than codes, guidance where there is no
            class to lean to, or a prior that never saw items without their class and is asked for
            them, as guidance does.
    """
    vocabulary = prior.vocabulary
    _check_request(prior, labels, sampling)
    guided = sampling.guidance != 1
    starts = vocabulary.starts(labels.cpu().long())
    if guided:
        starts = torch.cat([starts, torch.full_like(starts, vocabulary.bos)])
    training = prior.training
    prior.eval()
    device = next(prior.parameters()).device
    seen = rearrange(starts, "b -> b 1").to(device)
    cache = prior.new_cache()
    for _ in range(vocabulary.length):
        logits = prior.step(seen[:, -1:], cache) if cached else prior(seen)[:, -1]
        drawn = _draw(logits.cpu(), sampling=sampling, generator=generator)
        repeated = drawn.repeat(2 if guided else 1)
        seen = torch.cat([seen, rearrange(repeated, "b -> b 1").to(device)], dim=1)
    prior.train(training)
    names = {f"g{i}": size for i, size in enumerate(vocabulary.grid)}
    return rearrange(
        seen[: len(labels), 1:].cpu(), f"b ({' '.join(names)}) -> b {' '.join(names)}", **names
    )


def _check_request(prior: Prior, labels: Tensor, sampling: Sampling) -> None:
    num_codes = prior.vocabulary.num_codes
    if sampling.top_k is not None and sampling.top_k > num_codes:
        raise ValueError(f"top_k is {sampling.top_k}; there are {num_codes} codes.")
    has_untold = bool((labels == NO_CLASS).any())
    if sampling.guidance != 1 and (has_untold or not prior.vocabulary.classes):
        raise ValueError(
            f"guidance is {sampling.guidance:g} and an item has no class to be led to: give it "
            "one, or leave guidance at 1."
        )
    if not prior.knows_bos and (has_untold or sampling.guidance != 1):
        raise ValueError(
            f"guidance is {sampling.guidance:g} and labels have {int(labels.min())} at least, but "
            "the prior was trained with drop_labels=0 and knows no item without its class. Train "
            "it with drop_labels=0.1."
        )


def _draw(
    logits: Float[Tensor, "b k"], *, sampling: Sampling, generator: torch.Generator
) -> Int[Tensor, " b"]:
    if sampling.guidance != 1:
        told, untold = logits.chunk(2)
        logits = guide(told, untold, scale=sampling.guidance)
    likely = keep_likely(logits / sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p)
    drawn = torch.multinomial(likely.softmax(-1), 1, generator=generator)
    return rearrange(drawn, "b 1 -> b")
