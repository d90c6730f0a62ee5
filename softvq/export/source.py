"""What an export is taken from: a model in eval mode, its codebook, its latents and its tokens."""

from typing import Any, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from softvq.checks import check_finite
from softvq.export.codebook import Codebook
from softvq.export.digests import digest_tensors, plain_state
from softvq.export.indices import find_outermost, list_books, table_of
from softvq.export.peers import read_codebook
from softvq.export.vocabulary import check_tokens
from softvq.models.refine import Refined
from softvq.models.vqvae import VQVAE
from softvq.nn import Quantizer
from softvq.nn.layout import to_rows
from softvq.nn.soft import warn_of_warmup

IMAGE_RANGE = (-1.0, 1.0)
"""What every model of softvq takes for black and white."""


def take_codebook(vq_or_model: nn.Module) -> Codebook:
    """The codebook of a model, with what the model itself tells about it.

    Args:
        vq_or_model: A quantizer of softvq, a model that holds some, or one of another package
            whose state dict `read_codebook` knows.

    Returns:
        One codebook for each that an index is looked up in, as the quantizer holds it: before a
        scale or a projection around it; of parts that answer with one number together the table of
        all numbers. On the CPU, copied; downsampling, image range and step where they are known.

    Raises:
        ValueError: If there is no codebook, or it was never placed on data.

    Example:
        >>> from softvq import HardVQ
        >>> vq = HardVQ(8, 4)
        >>> vq.start_(torch.randn(9, 4))
        >>> take_codebook(vq).num_codes
        8
    """
    found = [each for each in vq_or_model.modules() if isinstance(each, Quantizer)]
    books = list_books(find_outermost(vq_or_model))
    state = plain_state(vq_or_model)
    if not books:
        codebooks = read_codebook(state).codebooks
    else:
        _check_started(found)
        warn_of_warmup(vq_or_model, "export")
        codebooks = tuple(table_of(each) for each in books)
    step = int(found[0].updates) if found else None
    ours = _find_ours(vq_or_model)
    return Codebook(
        codebooks=codebooks,
        downsampling=None if ours is None else ours.config.downsampling,
        image_range=None if ours is None else IMAGE_RANGE,
        step=step,
        source_digest=digest_tensors(state),
    )


def check_eval(model: nn.Module) -> None:
    """Raise unless every part of a model is in eval mode: only then are its answers repeatable.

    Raises:
        ValueError: Naming the first part that trains.

    Example:
        >>> check_eval(nn.Identity().eval())
    """
    for name, module in model.named_modules():
        if module.training:
            where = f"model.{name}" if name else "model"
            raise ValueError(
                f"{where} ({type(module).__name__}) is in training mode, where tokens depend on "
                "the batch and the codebook moves. Call model.eval() first."
            )


class Encoded(NamedTuple):
    """Tokens of a batch; its latent rows (N, D) where the model gives them."""

    tokens: Tensor
    rows: Tensor | None


@torch.no_grad()
def encode(model: Any, images: Float[Tensor, "b ..."], *, num_codes: int) -> Encoded:  # noqa: ANN401
    """Tokens of images, on the CPU.

    Args:
        model: A `softvq.models.VQVAE`, or any with ``encode(images)`` that gives whole numbers.
        images: In the model's range.
        num_codes: K, to check the answer.

    Returns:
        Tokens int64 (B, ...), and for a VQVAE the rows that they stand for.

    Raises:
        ValueError: If latents are NaN or infinite, or the answer is not one of codes.
    """
    images = images.to(find_device(model))
    ours, rows = _find_ours(model), None
    if ours is None:
        tokens = model.encode(images)
    else:
        latents = ours.latents(images)
        check_finite("latents", latents, remedy="The model diverged, or an image is not finite.")
        if ours is model:
            tokens = ours.quantizer(latents).indices
            rows = to_rows(latents, layout="channels_first")
        else:
            tokens = model.encode(images)
    if not isinstance(tokens, Tensor) or len(tokens) != len(images):
        raise ValueError(
            f"model.encode must give one tensor of tokens, a row an image; got "
            f"{type(tokens).__name__}. Wrap the model in a class whose encode does."
        )
    check_tokens("tokens of the model", tokens, num_codes=num_codes)
    return Encoded(tokens.to("cpu", torch.int64), rows)


def find_device(model: nn.Module) -> torch.device:
    """Where the model's weights are; the CPU for one without any.

    Example:
        >>> find_device(nn.Linear(1, 1))
        device(type='cpu')
    """
    return next((each.device for each in model.parameters()), torch.device("cpu"))


def give_grid(tokens: Int[Tensor, "b ..."], *, grid: tuple[int, ...]) -> Int[Tensor, "b ..."]:
    """Tokens (B, *grid) of tokens that are flat, row by row, or have their grid.

    Args:
        tokens: (B, product of grid) or (B, *grid).
        grid: Shape of one item.

    Raises:
        ValueError: For another shape.

    Example:
        >>> give_grid(torch.arange(12).reshape(2, 6), grid=(2, 3))[1].tolist()
        [[6, 7, 8], [9, 10, 11]]
    """
    length = torch.Size(grid).numel()
    if tuple(tokens.shape[1:]) not in (grid, (length,)):
        raise ValueError(
            f"tokens must be (B, {', '.join(map(str, grid))}) or (B, {length}); got "
            f"{tuple(tokens.shape)}."
        )
    names = " ".join(f"g{i}" for i in range(len(grid)))
    sizes = {f"g{i}": size for i, size in enumerate(grid)}
    return rearrange(tokens.reshape(len(tokens), length), f"b ({names}) -> b {names}", **sizes)


def _find_ours(model: nn.Module) -> VQVAE | None:
    """The VQ-VAE that a model is, or whose codes it refines."""
    inner = model.model if isinstance(model, Refined) else model
    return inner if isinstance(inner, VQVAE) else None


def _check_started(found: list[Quantizer]) -> None:
    for each in found:
        # One that a swap put in holds no codes of its own: they are the host's, started or not.
        if not each.is_started and "codebook" in each.state_dict():
            raise ValueError(
                f"{type(each).__name__} was never placed on data: its codes are random. Train it, "
                "load a checkpoint, or call start_(z)."
            )
