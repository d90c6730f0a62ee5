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
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn

from softvq.checks import check_count, check_finite, check_floating
from softvq.functional import nearest_code
from softvq.models.vqvae import VQVAE
from softvq.nn.layout import check_indices

STRIDE = 3
"""Every third position of a row and of a column is tried at once: their windows do not overlap."""
STEPS = (1.4, 1.0)
"""How far to go to where E says that the error is least, sweep by sweep in turn: codes are coarse,
and the one nearest to a target close by is the old one."""
POSITIONS, SIGNS = 1024, 4
"""Random codes that the metric is estimated from, and patterns of signs for each."""
FLOOR = 1e-6
MOST_CODES = 2**24

Decode = Callable[[Tensor], Tensor]


class Refined(nn.Module):
    """A VQ-VAE whose tokens are searched for: `encode` takes longer, and gives smaller errors.

    Goes wherever a model with ``encode`` and one codebook goes, `softvq.export_tokens` among them;
    the tokens are decoded by the model itself. For a decoder of another class there is
    `refine_indices`.

    Args:
        model: With one index a vector; in eval mode when it is asked.
        sweeps: How often each position is tried, at least 1. Each sweep decodes the pictures 18
            times and takes nine gradients; a call decodes 1,024 positions more, and takes four.

    Raises:
        ValueError: For a model of another class, several indices a vector, or more than 2^24 codes.

    Example:
        >>> from softvq import SoftVQ
        >>> model = Refined(VQVAE(SoftVQ(32, 64, layout="channels_first")).eval())
        >>> model.encode(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 8, 8])
    """

    sweeps: Tensor

    def __init__(self, model: VQVAE, *, sweeps: int = 1) -> None:
        super().__init__()
        if not isinstance(model, VQVAE):
            raise ValueError(
                f"model must be a softvq.models.VQVAE; got {type(model).__name__}. For another "
                "one call refine_indices with its decoder and the vectors of its codes."
            )
        name = type(model.quantizer).__name__
        if getattr(model.quantizer, "index_tail", ()):
            raise ValueError(f"{name} gives a vector several indices; refining knows one.")
        num_codes: Any = model.quantizer.num_codes
        if num_codes > MOST_CODES:
            raise ValueError(
                f"{name} has {num_codes:,} codes; refining looks at each: at most {MOST_CODES:,}."
            )
        self.model = model
        # A buffer, so that what is digested of the model tells its tokens from others.
        self.register_buffer("sweeps", torch.tensor(check_count("sweeps", sweeps), device="cpu"))
        self.training = False  # it has no mode of its own, and leaves those of the model's parts

    @torch.no_grad()
    def encode(self, images: Float[Tensor, "b c h w"]) -> Int[Tensor, "b gh gw"]:
        """Indices of `VQVAE.encode`, refined.

        Args:
            images: Float in [-1, 1].

        Returns:
            (B, ceil(H / f), ceil(W / f)) int64; up to rounding the same whatever else is in the
            batch.

        Raises:
            ValueError: Where a part of the model is in training mode, or has diverged.
        """
        for name, module in self.model.named_modules():
            if module.training:
                where = f"model.{name}" if name else "model"
                raise ValueError(
                    f"{where} ({type(module).__name__}) is in training mode, where answers depend "
                    "on the batch: call model.eval()."
                )
        return refine_indices(
            self.model.encode(images),
            images,
            table=self._table(images.device),
            decode=self.model._decode,
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
    indices: Integer[Tensor, "b gh gw"],
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
        decode: Any number of grids of vectors (B, D, gh, gw) to pictures (B, C, gh x f, gw x f),
            what is beyond the size of ``images`` to be cropped at the right and bottom;
            differentiable, and the same whenever it is called, as a model in eval mode is. Its
            parameters get no gradient.
        sweeps: How often each position is tried; 0 returns the indices.

    Returns:
        Indices, none of whose pictures has a larger squared error than before, summed in float32
        without clamping. A picture that is not finite keeps its own. On one device always the same:
        nothing is drawn from the global generator.

    Raises:
        ValueError: For shapes that do not fit, codes that are not finite, or pictures without a
            finite gradient.

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
    if images.ndim != 4:
        raise ValueError(f"images must be (B, C, H, W); got {tuple(images.shape)}.")
    indices = check_indices(indices, None, num_codes=len(table))
    check_floating("table", table)
    check_finite("table", table, remedy="The model diverged: take an earlier one.")
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
        made, (height, width) = self.decode(codes), self.images.shape[2:]
        rows, columns = self.indices.shape[1:]
        tall, wide = made.shape[-2] // rows, made.shape[-1] // columns
        fits = (
            made.shape[:2] == self.images.shape[:2]
            and made.shape[2:] == (tall * rows, wide * columns)
            and 0 <= tall * rows - height < tall
            and 0 <= wide * columns - width < wide
        )
        if not fits:
            raise ValueError(
                f"decode must give a block of pixels for each position of {rows} x {columns}, and "
                f"pictures like images, {tuple(self.images.shape)}, but for what is cropped; got "
                f"{tuple(made.shape)}."
            )
        squared = (made[..., :height, :width].float() - self.images.float()).square().sum(1)
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
    generator = torch.Generator(device="cpu").manual_seed(0)

    def draw(most: int, size: tuple[int, ...]) -> Tensor:
        return torch.randint(most, size, generator=generator, device="cpu")

    grids = max(1, POSITIONS // torch.Size(grid).numel())
    drawn = draw(len(table), (grids, *grid)).to(table.device)
    codes = rearrange(table[drawn], "b h w d -> b d h w").contiguous().requires_grad_()
    made = decode(codes)
    if not isinstance(made, Tensor):
        raise ValueError(f"decode must give one tensor of pictures; got {type(made).__name__}.")
    if not made.requires_grad:
        raise ValueError(
            "decode gives pictures without a gradient to the codes: take no_grad, detach and "
            "rounding out of it."
        )
    total = torch.zeros(table.shape[1], table.shape[1], dtype=torch.float64, device=table.device)
    for _ in range(SIGNS):
        signs = draw(2, made.shape).to(made) * 2 - 1
        (gradient,) = torch.autograd.grad(made, codes, signs, retain_graph=True)
        rows = rearrange(gradient, "b d h w -> (b h w) d").double()
        total += rows.mT @ rows / (SIGNS * len(rows))
    check_finite("gradients of decode", total, remedy="The model diverged: take an earlier one.")
    values, vectors = torch.linalg.eigh(total)
    values = values.clamp_min(max(FLOOR * values[-1].item(), torch.finfo(torch.float32).tiny))
    shrink, stretch = vectors / values.sqrt(), vectors * values.sqrt()
    return shrink.float(), stretch.float()
