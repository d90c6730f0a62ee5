"""DDCL-Attention: tokens read through learned prototypes, at a cost linear in their number.

"Collapse-Free Prototype Readout Layer for Transformer Encoders" (Cirrincione and Kumar,
https://arxiv.org/abs/2604.03850, 2026). B batch, N tokens, D features, H heads, K prototypes.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from softvq.functional.windows import masked_mean
from softvq.nn.loss import Loss
from softvq.nn.prototypes import PrototypeHeads
from softvq.nn.revival import Revival
from softvq.nn.temperature import Temperature
from softvq.types import DDCLOutput, ReadoutOutput


class DDCLAttention(nn.Module):
    """LayerNorm(z + W_o concat_h mu_h), mu_h the soft centroid of the token among K prototypes.

    Every token is read on its own: no product of tokens with tokens, no iteration.
    ``softvq.attach`` updates temperature, counts and revival after each optimizer step.

    W_o is ``output`` with each of its features times ``gate``, which starts at zero: the layer
    begins as LayerNorm(z), and lets in of the prototypes what the task asks for ("ReZero is All You
    Need", Bachlechner et al., https://arxiv.org/abs/2003.04887, 2020). Without it W_o, which has D
    x D weights, hides z before a few hundred examples have said anything (`eval/NOTES.md`).

    Args:
        dim: D.
        num_prototypes: K of each head.
        heads: H, a divisor of D; each has D / H features and prototypes of its own.
        temperature: What T should be over the run, see `softvq.Temperature`; by default 0.5 nats a
            token, held under half of log K.
        revival: When unused prototypes are put back among the tokens; None never does.
        loss: Weights of the loss.
        seed: Of the start, revival and sampling.

    Raises:
        ValueError: For sizes that do not fit.

    Example:
        >>> layer = DDCLAttention(dim=8, num_prototypes=4, heads=2)
        >>> out = layer(torch.sin(torch.arange(80.0)).reshape(2, 5, 8))
        >>> out.tokens.shape, out.assignment.shape
        (torch.Size([2, 5, 8]), torch.Size([2, 2, 5, 4]))
    """

    def __init__(
        self,
        dim: int,
        num_prototypes: int,
        *,
        heads: int = 1,
        temperature: Temperature | None = None,
        revival: Revival | None = Revival(),  # noqa: B008 - frozen
        loss: Loss | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.prototypes = PrototypeHeads(
            dim,
            num_prototypes,
            heads=heads,
            temperature=temperature,
            revival=revival,
            loss=loss,
            seed=seed,
        )
        self.output = nn.Linear(dim, dim)
        self.gate = nn.Parameter(torch.zeros(dim))
        self.norm = nn.LayerNorm(dim)

    def forward(
        self, tokens: Float[Tensor, "b n d"], *, mask: Bool[Tensor, "b n"] | None = None
    ) -> DDCLOutput:
        """Read the tokens.

        Args:
            tokens: Tokens.
            mask: True keeps a token. Dropped ones come back as zeros and reach nothing.

        Returns:
            Tokens typed as the input, weights, loss and stats.

        Raises:
            ValueError: For a wrong shape, dtype or mask.
        """
        read = self.prototypes(tokens, mask=mask)
        kept = tokens if mask is None else torch.where(mask[..., None], tokens, 0)
        dtype = self.output.weight.dtype
        added = self.gate * self.output(read.mean.to(dtype))
        mixed = self.norm(kept.to(dtype) + added).to(tokens.dtype)
        if mask is not None:
            mixed = torch.where(mask[..., None], mixed, 0)
        return DDCLOutput(mixed, read.assignment, read.loss, read.stats)


class DDCLReadout(nn.Module):
    """One vector of a sequence: the mean soft centroid, and the mean weight of each prototype.

    The weights are a bag of K prototypes, which says what the sequence holds; the mean is the same
    bag in feature space: ``assignment @ prototypes``.

    Args:
        dim: D.
        num_prototypes: K.
        temperature: As in `DDCLAttention`.
        revival: As in `DDCLAttention`.
        loss: As in `DDCLAttention`.
        seed: Of the start, revival and sampling.

    Raises:
        ValueError: For sizes that are not whole numbers of at least 1.

    Example:
        >>> head = DDCLReadout(dim=8, num_prototypes=4)
        >>> out = head(torch.sin(torch.arange(80.0)).reshape(2, 5, 8))
        >>> out.mean.shape, out.assignment.sum(-1).tolist()
        (torch.Size([2, 8]), [1.0, 1.0])
    """

    def __init__(
        self,
        dim: int,
        num_prototypes: int,
        *,
        temperature: Temperature | None = None,
        revival: Revival | None = Revival(),  # noqa: B008 - frozen
        loss: Loss | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.prototypes = PrototypeHeads(
            dim,
            num_prototypes,
            temperature=temperature,
            revival=revival,
            loss=loss,
            seed=seed,
        )

    def forward(
        self, tokens: Float[Tensor, "b n d"], *, mask: Bool[Tensor, "b n"] | None = None
    ) -> ReadoutOutput:
        """Read the sequences.

        Args:
            tokens: Tokens.
            mask: True keeps a token; a sequence of which none is kept gives zeros.

        Returns:
            Mean typed as ``tokens``, weights in float32 at least, loss and stats.

        Raises:
            ValueError: For a wrong shape, dtype or mask.
        """
        read = self.prototypes(tokens, mask=mask)
        mean = masked_mean(read.mean, mask).to(tokens.dtype)
        return ReadoutOutput(mean, masked_mean(read.assignment[:, 0], mask), read.loss, read.stats)
