"""Heads of prototypes over token sequences: what readout, attention and stack are made of.

B batch, N tokens, D features, H heads, K prototypes a head.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from softvq.checks import check_count, check_features, check_kind, check_mask
from softvq.functional.weights import soft_weights
from softvq.nn.loss import Loss
from softvq.nn.revival import Revival
from softvq.nn.soft import SoftVQ
from softvq.nn.temperature import Temperature

SUMMED = ("ols", "spread", "distortion")
READOUT_TEMPERATURE = Temperature(gradient=0.5, prototypes=(0.3, 0.1))
READOUT_LOSS = Loss(weight=0.25, unit="absolute")


class HeadsOutput(NamedTuple):
    """Soft centroids of all heads side by side, and the weights behind them."""

    mean: Float[Tensor, "b n d"]
    assignment: Float[Tensor, "b h n k"]
    loss: Float[Tensor, ""]
    stats: dict[str, Tensor]


class PrototypeHeads(nn.Module):
    """H codebooks, each on its own D / H features of every token.

    Each head is a `softvq.SoftVQ` that answers with soft means in training and in eval, since
    nothing is shipped as indices here; `softvq.quantize_mode` asks for hard codes. So
    `softvq.attach` updates heads like any quantizer: schedule, revival, a rate of their own.

    Args:
        dim: D.
        num_prototypes: K of each head.
        heads: H, a divisor of D.
        temperature: What T should be over the run; by default 0.5 nats a token for the weights and
            0.3 to 0.1 for the prototypes, held under half of log K. Its warm-up and noise are left
            out: a readout gives soft means from the first step on, and prototypes that were placed
            anew after a warm-up would mean something else to what reads them.
        revival: When unused prototypes are put back among the tokens; None never does.
        loss: Weights of the loss; by default `softvq.Loss` with a weight of 0.25 in absolute terms,
            as tokens come at the scale of their model.
        seed: Of the start, revival and sampling.

    Raises:
        ValueError: For sizes that do not fit.

    Example:
        >>> heads = PrototypeHeads(8, 4, heads=2).eval()
        >>> heads(torch.zeros(2, 5, 8)).assignment.shape
        torch.Size([2, 2, 5, 4])
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
        asked = READOUT_TEMPERATURE if temperature is None else temperature
        check_kind("temperature", asked, Temperature)
        options = replace(asked, noise=0.0, warmup_share=0.0)
        self.dim = check_count("dim", dim)
        self.num_prototypes = check_count("num_prototypes", num_prototypes)
        self.num_heads = check_count("heads", heads)
        check_count("seed", seed, least=0)
        if dim % heads:
            fitting = [str(size) for size in range(1, min(dim, 64) + 1) if dim % size == 0]
            raise ValueError(
                f"heads must divide dim; got heads={heads} for dim={dim}. "
                f"Up to 64, these do: {', '.join(fitting)}."
            )
        self.heads = nn.ModuleList(
            SoftVQ(
                num_prototypes,
                dim // heads,
                temperature=options,
                revival=revival,
                loss=READOUT_LOSS if loss is None else loss,
                forward_value="soft",
                seed=seed + place,
            )
            for place in range(heads)
        )
        for head in self.quantizers:
            head.mode = "soft"

    def forward(
        self, tokens: Float[Tensor, "b n d"], *, mask: Bool[Tensor, "b n"] | None = None
    ) -> HeadsOutput:
        """Assign every token in every head.

        Args:
            tokens: Tokens.
            mask: True keeps a token; dropped ones give zeros and touch no loss and no count.

        Returns:
            Means in the dtype of ``tokens``, weights in float32 at least, the heads' mean loss, and
            stats: residual, spread and distortion summed over heads (so that they split the
            distance in all D features), the rest averaged.

        Raises:
            ValueError: For a wrong shape, dtype or mask.
        """
        check_tokens(tokens, mask, dim=self.dim)
        parts = rearrange(tokens, "b n (h d) -> h b n d", h=self.num_heads)
        heads = self.quantizers
        outs = [head(part, mask=mask) for head, part in zip(heads, parts, strict=True)]
        weights = []
        for head, part, out in zip(heads, parts, outs, strict=True):
            if head.mode == "hard":
                weights.append(_one_hot(out.indices, num_codes=self.num_prototypes))
            else:
                level = head.temperature
                weights.append(soft_weights(part, head.codebook, temperature=level, mask=mask))
        return HeadsOutput(
            rearrange([out.quantized for out in outs], "h b n d -> b n (h d)"),
            rearrange(weights, "h b n k -> b h n k"),
            torch.stack([out.loss for out in outs]).mean(),
            _combine_stats([out.stats for out in outs]),
        )

    @property
    def quantizers(self) -> list[SoftVQ]:
        """The codebook of each head."""
        return [head for head in self.heads if isinstance(head, SoftVQ)]


def check_tokens(tokens: Tensor, mask: Tensor | None, *, dim: int) -> None:
    """Raise unless ``tokens`` is a floating-point (B, N, D) and the mask a bool (B, N).

    Raises:
        ValueError: With what came.

    Example:
        >>> check_tokens(torch.zeros(2, 3, 4), None, dim=4)
    """
    check_features("tokens", tokens, dim=dim, axis=-1)
    if tokens.ndim != 3:
        raise ValueError(
            f"tokens must be (B, N, {dim}): batch, tokens, features; got shape "
            f"{tuple(tokens.shape)}. A single sequence goes in as tokens[None]."
        )
    check_mask("mask", mask, shape=tuple(tokens.shape[:2]))


def _one_hot(indices: Tensor, *, num_codes: int) -> Tensor:
    """Weights of hard codes; zeros where a token was dropped (index -1)."""
    return (indices[..., None] == torch.arange(num_codes, device=indices.device)).float()


def _combine_stats(stats: list) -> dict[str, Tensor]:
    combined = {}
    for name in stats[0]:
        values = torch.stack([each[name] for each in stats])
        combined[name] = values.sum() if name in SUMMED else values.mean()
    return combined
