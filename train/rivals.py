"""Rivals that no package offers as published, written here small: Gumbel-softmax, SQ-VAE, IBQ.

N rows, D features, K codes. They hold N x K buffers and draw from torch's global generator, whose
state a run's checkpoint keeps. Their codes learn at the net's rate, as published.
"""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from softvq.checks import check_count, check_number
from softvq.functional.distances import squared_distances
from softvq.functional.losses import use_entropy
from softvq.functional.precision import at_least_float32
from softvq.functional.schedules import geometric_path
from softvq.functional.start import kmeans
from softvq.nn.layout import from_rows, index_shape, to_rows
from softvq.types import QuantizerOutput


class Trained(NamedTuple):
    """What a rival makes of rows while it trains."""

    quantized: Tensor
    indices: Tensor
    loss: Tensor


class Rival(nn.Module, ABC):
    """A quantizer for (B, D, h, w) that scores all codes for each row.

    In eval mode the code with the highest score is decoded; in training what the subclass says.

    Args:
        num_codes: K.
        dim: D.
        steps: Training passes over which a temperature, where there is one, falls.
        temperature: Its start and end, on a geometric path.
    """

    has_soft = False
    passes: Tensor
    started: Tensor

    def __init__(
        self,
        num_codes: int,
        dim: int,
        *,
        steps: int,
        temperature: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        super().__init__()
        self.num_codes = check_count("num_codes", num_codes)
        self.dim = check_count("dim", dim)
        self.steps = check_count("steps", steps)
        for name, value in zip(("start", "end"), temperature, strict=True):
            check_number(f"temperature_{name}", value, above=0)
        self.path = temperature
        self.codebook = nn.Parameter(torch.randn(num_codes, dim))
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))
        self.register_buffer("started", torch.zeros((), dtype=torch.bool))

    @property
    def temperature(self) -> float:
        """Of the Gumbel noise, by the training passes so far."""
        return geometric_path(*self.path, position=int(self.passes) / self.steps)

    def forward(self, z: Float[Tensor, "b d h w"]) -> QuantizerOutput:
        """Quantize (B, D, h, w)."""
        rows = to_rows(z, layout="channels_first")
        rows = at_least_float32(rows)
        if self.training:
            if not self.started:
                self._start(rows.detach())
                self.started.fill_(True)
            out = self._train_on(rows)
            self.passes += int(torch.is_grad_enabled())
        else:
            indices = self._score(rows).argmax(-1)
            out = Trained(self.codebook[indices], indices, rows.new_zeros(()))
        return QuantizerOutput(
            from_rows(out.quantized.to(z.dtype), like=z, layout="channels_first"),
            out.indices.reshape(index_shape(z, layout="channels_first")),
            out.loss,
            {},
        )

    def codes(self, indices: Int[Tensor, "b h w"]) -> Float[Tensor, "b d h w"]:
        """The vectors of a grid of indices, as eval decodes them."""
        return self.codebook[indices].movedim(-1, 1)

    def _start(self, rows: Tensor) -> None:
        """Place the codebook on the rows of the first training pass, where that is wanted."""

    @abstractmethod
    def _score(self, rows: Tensor) -> Tensor:
        """Scores (N, K), log-probabilities up to a constant a row."""

    @abstractmethod
    def _train_on(self, rows: Tensor) -> Trained:
        """What training decodes for these rows, and the loss."""


class GumbelVQ(Rival):
    """Gumbel-softmax, straight-through, with learned logits and a KL term to the even prior.

    "Categorical Reparameterization with Gumbel-Softmax" (Jang, Gu and Poole, arXiv 1611.01144) as
    the discrete VAE of DALL-E (arXiv 2102.12092) and VQGAN have it: a linear map gives the logits,
    the temperature falls from 1 to 1/16.

    Args:
        num_codes: K.
        dim: D.
        steps: Training passes of the run.
        kl_weight: Of the mean over rows of KL(q, even).
        temperature_start: Temperature of the first pass.
        temperature_end: Of the last.

    Example:
        >>> vq = GumbelVQ(8, 4, steps=10)
        >>> vq(torch.zeros(2, 4, 3, 3)).indices.shape
        torch.Size([2, 3, 3])
    """

    def __init__(
        self,
        num_codes: int,
        dim: int,
        *,
        steps: int,
        kl_weight: float = 5e-4,
        temperature_start: float = 1.0,
        temperature_end: float = 1 / 16,
    ) -> None:
        super().__init__(
            num_codes, dim, steps=steps, temperature=(temperature_start, temperature_end)
        )
        self.kl_weight = check_number("kl_weight", kl_weight, least=0)
        self.logits = nn.Linear(dim, num_codes)

    def _score(self, rows: Tensor) -> Tensor:
        return self.logits(rows)

    def _train_on(self, rows: Tensor) -> Trained:
        scores = self._score(rows)
        soft = ((scores + draw_gumbel(scores)) / self.temperature).softmax(-1)
        indices = soft.argmax(-1)
        quantized = straight_through(soft, indices) @ self.codebook
        log_q = scores.log_softmax(-1)
        divergence = (log_q.exp() * (log_q + math.log(self.num_codes))).sum(-1).mean()
        return Trained(quantized, indices, self.kl_weight * divergence)


class StochasticVQ(Rival):
    """SQ-VAE, Gaussian with one learned variance (Takida and others, arXiv 2205.07547).

    The posterior of a code is softmax(-|z - p|^2 / (2 s^2)) with s^2 learned; training decodes a
    Gumbel-softmax sample of it, and s^2 falls by itself as the decoder asks for sharper codes.
    Codes start by k-means on the first batch and 2 s^2 at the mean distance to the nearest, since
    from the published start, N(0, 1) and 20, latents this small learn nothing in some hundred
    steps. The loss is the latent part of the paper's bound: sum q log q + |z - sample|^2 / (2 s^2).
    The paper divides the error by the decoder's variance, estimated from it; here the error stands
    alone, as for every method, so that variance is a fixed ``weight``. At an error e a pixel of
    [-1, 1] and 64 codes an image of 3,072 values the paper's would be e / 24.

    Args:
        num_codes: K.
        dim: D.
        steps: Training passes of the run.
        weight: Of the latent part, a mean over rows.
        temperature_start: Of the Gumbel noise at the first pass.
        temperature_end: At the last.

    Example:
        >>> vq = StochasticVQ(8, 4, steps=10)
        >>> vq(torch.zeros(2, 4, 3, 3)).quantized.shape
        torch.Size([2, 4, 3, 3])
    """

    def __init__(
        self,
        num_codes: int,
        dim: int,
        *,
        steps: int,
        weight: float = 1e-3,
        temperature_start: float = 1.0,
        temperature_end: float = 0.2,
    ) -> None:
        super().__init__(
            num_codes, dim, steps=steps, temperature=(temperature_start, temperature_end)
        )
        self.weight = check_number("weight", weight, least=0)
        self.log_variance = nn.Parameter(torch.zeros(()))

    @property
    def precision(self) -> Tensor:
        """1 / (2 s^2)."""
        return 0.5 / self.log_variance.exp().clamp_min(1e-10)

    def _score(self, rows: Tensor) -> Tensor:
        return -self.precision * squared_distances(rows, self.codebook)

    @torch.no_grad()
    def _start(self, rows: Tensor) -> None:
        seed = int(torch.randint(2**31, ()))
        codes = kmeans(rows, self.num_codes, generator=torch.Generator().manual_seed(seed))
        self.codebook.copy_(codes)
        nearest = squared_distances(rows, codes).amin(-1).mean()
        self.log_variance.copy_((0.5 * nearest).clamp_min(1e-10).log())

    def _train_on(self, rows: Tensor) -> Trained:
        scores = self._score(rows)
        soft = ((scores + draw_gumbel(scores)) / self.temperature).softmax(-1)
        quantized = soft @ self.codebook
        log_q = scores.log_softmax(-1)
        discrete = (log_q.exp() * log_q).sum(-1)
        continuous = self.precision * (rows - quantized).square().sum(-1)
        return Trained(quantized, scores.argmax(-1), self.weight * (discrete + continuous).mean())


class IndexVQ(Rival):
    """IBQ: the straight-through step on the whole one-hot vector, so that all codes learn.

    "Scalable Image Tokenization with Index Backpropagation Quantization" (Shi and others, arXiv
    2412.02692): scores are products of row and code, the decoded code is the best one with the
    gradient of the softmax's mean. The loss is |z_q - z|^2 with that gradient, |z - sg p|^2,
    ``commitment`` |sg z - p|^2, and the entropy of a row's sharpened weights less that of their
    mean.

    Args:
        num_codes: K.
        dim: D.
        steps: Training passes of the run; nothing depends on them.
        commitment: Weight of the codes' own term, beta in the paper.
        entropy_weight: Weight of the entropies.
        entropy_temperature: At which the weights are sharpened for them.

    Example:
        >>> vq = IndexVQ(8, 4, steps=10)
        >>> out = vq(torch.zeros(2, 4, 3, 3))
        >>> torch.equal(out.quantized, vq.codes(out.indices))
        True
    """

    def __init__(
        self,
        num_codes: int,
        dim: int,
        *,
        steps: int,
        commitment: float = 0.25,
        entropy_weight: float = 0.05,
        entropy_temperature: float = 0.01,
    ) -> None:
        super().__init__(num_codes, dim, steps=steps)
        self.commitment = check_number("commitment", commitment, least=0)
        self.entropy_weight = check_number("entropy_weight", entropy_weight, least=0)
        self.entropy_temperature = check_number("entropy_temperature", entropy_temperature, above=0)

    def _score(self, rows: Tensor) -> Tensor:
        return rows @ self.codebook.to(rows.dtype).mT

    def _train_on(self, rows: Tensor) -> Trained:
        scores = self._score(rows)
        indices = scores.argmax(-1)
        quantized = straight_through(scores.softmax(-1), indices) @ self.codebook
        code = self.codebook[indices]
        loss = F.mse_loss(quantized, rows) + F.mse_loss(rows, code.detach())
        loss = loss + self.commitment * F.mse_loss(code, rows.detach())
        if self.entropy_weight > 0:
            log_sharp = (scores / self.entropy_temperature).log_softmax(-1)
            sharp = log_sharp.exp()
            of_a_row = -(sharp * log_sharp).sum(-1).mean()
            loss = loss + self.entropy_weight * (of_a_row - use_entropy(sharp.mean(0)))
        return Trained(quantized, indices, loss)


def straight_through(
    soft: Float[Tensor, "n k"], indices: Int[Tensor, " n"]
) -> Float[Tensor, "n k"]:
    """One-hot vectors of ``indices`` with the gradient of ``soft``.

    Example:
        >>> straight_through(torch.tensor([[0.4, 0.6]]), torch.tensor([1])).tolist()
        [[0.0, 1.0]]
    """
    hard = F.one_hot(indices, soft.shape[-1]).to(soft.dtype)
    return hard + (soft - soft.detach())


def draw_gumbel(like: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """Standard Gumbel numbers, -log of exponential ones, from torch's global generator.

    Example:
        >>> draw_gumbel(torch.zeros(2, 3)).shape
        torch.Size([2, 3])
    """
    tiny = torch.finfo(like.dtype).tiny
    return -torch.empty_like(like).exponential_().clamp_min(tiny).log()
