"""Codes chosen by what the decoder makes of them, not by which is nearest to the encoder's vector.

The nearest code is a guess: an encoder knows neither the errors that the codes around a position
make nor what the decoder does with them. Here the guess is improved picture by picture, by trying
other codes and keeping what lowers the error: analysis by synthesis, as speech coders search their
codebooks, and what Yang, Bamler and Mandt ("Improving Inference for Neural Image Compression",
2020) do for latents that are rounded. The model and the number of bits stay as they are.

Shape letters: B pictures, h x w positions, K codes, D features.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from softvq.checks import check_count
from softvq.functional import nearest_code
from softvq.models.vqvae import VQVAE
from softvq.nn.layout import check_indices

STRIDE = 3
"""Every third position of a row and of a column is tried at once: their windows do not overlap."""
STEPS = (1.4, 1.0)
"""How far to go to where E says that the error is least, sweep by sweep in turn: codes are coarse,
and the one nearest to a target close by is the old one."""
GRIDS, SIGNS = 16, 4
"""Random grids, and patterns of signs for each, that the metric is estimated from."""
FLOOR = 1e-6

Decode = Callable[[Tensor], Tensor]


class Refined(nn.Module):
    """A model whose tokens are searched for: `encode` takes longer, and decodes to smaller errors.

    Goes wherever a model with ``encode`` and one codebook goes, `softvq.export_tokens` among them;
    the tokens are decoded by the model itself.

    Args:
        model: One index a vector, in eval mode when it is asked.
        sweeps: How often each position is tried, at least 1. Each sweep decodes the pictures 18
            times and takes nine gradients.

    Raises:
        ValueError: Where a vector has several indices.

    Example:
        >>> from softvq import SoftVQ
        >>> model = Refined(VQVAE(SoftVQ(32, 64, layout="channels_first")).eval())
        >>> model.encode(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 8, 8])
    """

    sweeps: Tensor

    def __init__(self, model: VQVAE, *, sweeps: int = 1) -> None:
        super().__init__()
        if getattr(model.quantizer, "index_tail", ()):
            raise ValueError(
                f"{type(model.quantizer).__name__} gives a vector several indices; refining knows "
                "one."
            )
        self.model = model
        # A buffer, so that what is digested of the model tells its tokens from others.
        self.register_buffer("sweeps", torch.tensor(check_count("sweeps", sweeps)))
        self.train(model.training)

    @torch.no_grad()
    def encode(self, images: Float[Tensor, "b c h w"]) -> Int[Tensor, "b gh gw"]:
        """Indices of `VQVAE.encode`, refined.

        Args:
            images: Float in [-1, 1].

        Returns:
            (B, ceil(H / f), ceil(W / f)) int64; the same whatever else is in the batch, as far as
            the decoder's own rounding is.

        Raises:
            ValueError: In training mode.
        """
        if self.model.training:
            raise ValueError("model is in training mode, where codes move: call model.eval().")
        height, width = images.shape[-2:]
        return refine_indices(
            self.model.encode(images),
            images,
            table=self._table(images.device),
            decode=lambda codes: self.model._decode(codes)[..., :height, :width],
            sweeps=int(self.sweeps),
        )

    def decode(
        self, indices: Int[Tensor, "b gh gw"], *, size: tuple[int, int] | None = None
    ) -> Float[Tensor, "b c h w"]:
        """As `VQVAE.decode`."""
        return self.model.decode(indices, size=size)

    def _table(self, device: torch.device) -> Float[Tensor, "k d"]:
        """What the decoder gets for each index: behind a scale or a projection, if there is one."""
        quantizer: Any = self.model.quantizer
        grid = torch.arange(quantizer.num_codes, device=device)[None, None]
        return rearrange(quantizer.codes(grid), "1 d 1 k -> k d")


def refine_indices(
    indices: Int[Tensor, "b gh gw"],
    images: Float[Tensor, "b c h w"],
    *,
    table: Float[Tensor, "k d"],
    decode: Decode,
    sweeps: int = 1,
) -> Int[Tensor, "b gh gw"]:
    """Better indices for pictures, by a decoder's own squared error.

    With E the error of a picture, c the code of a position and M the mean of J'J there, J being
    the decoder's derivative, E(c + d) is about E + g'd + d'Md. Its minimum lies at
    c - M^-1 g / 2, and the code nearest to it in the metric of M is tried. Codes of every third
    position are tried at once, each is kept if the error of the 3 x 3 positions around it falls,
    and all of a picture if its whole error does.

    Args:
        indices: Where the search begins, such as those of the nearest codes.
        images: What they are to decode to.
        table: The vector of each index, as ``decode`` takes it.
        decode: Vectors (B, D, gh, gw) to pictures like ``images``; differentiable, and the same
            whenever it is called, as a model in eval mode is. Its parameters get no gradient.
        sweeps: How often each position is tried; 0 returns the indices.

    Returns:
        Indices, none of whose pictures has a larger squared error than before. A picture that is
        not finite keeps its own. The same whenever it is called: nothing is drawn from the global
        generator.

    Raises:
        ValueError: For shapes that do not fit, or pictures without a gradient.

    Example:
        >>> table = torch.tensor([[0.0], [1.0]])
        >>> images = torch.ones(1, 1, 2, 2)
        >>> indices = torch.zeros(1, 2, 2, dtype=torch.int64)
        >>> refine_indices(indices, images, table=table, decode=lambda codes: codes).tolist()
        [[[1, 1], [1, 1]]]
    """
    check_count("sweeps", sweeps, least=0)
    if indices.ndim != 3 or table.ndim != 2:
        raise ValueError(
            "indices must be (B, h, w), one index a vector, and table (K, D); got "
            f"{tuple(indices.shape)} and {tuple(table.shape)}."
        )
    indices = check_indices(indices, None, num_codes=len(table))
    if len(indices) == 0 or sweeps == 0:
        return indices.clone()
    # Gradients are needed whatever mode the caller is in; under inference mode nothing has any.
    with torch.inference_mode(False), torch.enable_grad():
        copies = (each.detach().clone() for each in (indices, images, table))
        search = _Search(*copies, decode=decode)
        for sweep in range(sweeps):
            search.step = STEPS[sweep % len(STEPS)]
            for row in range(min(STRIDE, indices.shape[1])):
                for column in range(min(STRIDE, indices.shape[2])):
                    search.visit(row, column)
    return search.indices


class _Search:
    """Indices as they are best so far, with the error and the gradient that belong to them."""

    def __init__(self, indices: Tensor, images: Tensor, table: Tensor, *, decode: Decode) -> None:
        self.indices, self.images, self.table, self.decode = indices, images, table, decode
        self.shrink, self.stretch = _metric(table, decode, grid=tuple(indices.shape[1:]))
        self.points = table.to(self.stretch) @ self.stretch  # codes where M is the identity
        self.error, self.gradient = self._weigh(indices)
        self.step = 1.0

    def visit(self, row: int, column: int) -> None:
        """Try other codes on every third position from this one on."""
        place = (slice(None), slice(row, None, STRIDE), slice(column, None, STRIDE))
        tried = self.indices.clone()
        tried[place] = self._propose(place)
        changed = tried != self.indices
        if not changed.any():
            return
        kept = changed & (_window_sum(self._map_error(tried) - self.error) < 0)
        mixed = torch.where(kept, tried, self.indices)
        error, gradient = self._weigh(mixed)
        better = (error.sum((1, 2)) < self.error.sum((1, 2)))[:, None, None]
        self.indices = torch.where(better, mixed, self.indices)
        self.error = torch.where(better, error, self.error)
        self.gradient = torch.where(better[:, None], gradient, self.gradient)

    def _propose(self, place: tuple[slice, ...]) -> Tensor:
        """The code nearest to where the error would be least, (B, rows, columns)."""
        gradient = rearrange(self.gradient, "b d h w -> b h w d")[place].to(self.shrink)
        start = self.points[self.indices[place]]
        target = start - self.step / 2 * gradient @ self.shrink
        return nearest_code(target, self.points)

    def _weigh(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Squared error of each position (B, h, w), and its gradient by the codes (B, D, h, w)."""
        codes = self._codes(indices).requires_grad_()
        error = self._errors(codes)
        (gradient,) = torch.autograd.grad(error.sum(), codes)
        return error.detach(), gradient

    @torch.no_grad()
    def _map_error(self, indices: Tensor) -> Tensor:
        return self._errors(self._codes(indices))

    def _codes(self, indices: Tensor) -> Tensor:
        return rearrange(self.table[indices], "b h w d -> b d h w").contiguous()

    def _errors(self, codes: Tensor) -> Tensor:
        made = self.decode(codes)
        if made.shape != self.images.shape:
            raise ValueError(
                f"decode must give pictures like images, {tuple(self.images.shape)}; got "
                f"{tuple(made.shape)}."
            )
        squared = (made.float() - self.images.float()).square().sum(1)
        (height, width), (rows, columns) = squared.shape[1:], self.indices.shape[1:]
        tall, wide = -(-height // rows), -(-width // columns)
        squared = F.pad(squared, (0, wide * columns - width, 0, tall * rows - height))
        return squared.unflatten(1, (rows, tall)).unflatten(3, (columns, wide)).sum((2, 4))


def _window_sum(error: Tensor) -> Tensor:
    """Sum over the 3 x 3 positions around each, of (B, h, w)."""
    padded = F.pad(error, (1, 1, 1, 1))
    return padded.unfold(1, STRIDE, 1).unfold(2, STRIDE, 1).sum((-2, -1))


def _metric(table: Tensor, decode: Decode, *, grid: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """M^-1/2 and M^1/2 (D, D) of the mean M of J'J at one position, on grids of random codes.

    The mean over random signs r of (J'r)(J'r)' is J'J. That grids are random and not of pictures
    changes little, and makes M the model's alone.
    """
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(len(table), (GRIDS, *grid), generator=generator).to(table.device)
    codes = rearrange(table[drawn], "b h w d -> b d h w").contiguous().requires_grad_()
    made = decode(codes)
    if not made.requires_grad:
        raise ValueError(
            "decode gives pictures without a gradient to the codes: take no_grad, detach and "
            "rounding out of it."
        )
    total = torch.zeros(table.shape[1], table.shape[1], dtype=torch.float64, device=table.device)
    for _ in range(SIGNS):
        signs = torch.randint(2, made.shape, generator=generator).to(made) * 2 - 1
        (gradient,) = torch.autograd.grad(made, codes, signs, retain_graph=True)
        rows = rearrange(gradient, "b d h w -> (b h w) d").double()
        total += rows.mT @ rows / (SIGNS * len(rows))
    values, vectors = torch.linalg.eigh(total)
    values = values.clamp_min(max(FLOOR * values[-1].item(), torch.finfo(torch.float32).tiny))
    shrink, stretch = vectors / values.sqrt(), vectors * values.sqrt()
    return shrink.float(), stretch.float()
