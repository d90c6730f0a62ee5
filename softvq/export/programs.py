"""`encode` and `decode` as graphs for other runtimes: torch.export, and what `onnx.py` starts from.

What a graph holds is the hard path alone: encoder, nearest code, code, decoder; no loss and no
statistics. Both take any batch, height and width; of torch.export's, from two codes a side on.
"""

import copy
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from softvq.export.codebook import Codebook
from softvq.export.source import IMAGE_RANGE, check_eval, take_codebook
from softvq.files import replacing
from softvq.functional import nearest_code
from softvq.models.vqvae import VQVAE
from softvq.nn import Quantizer
from softvq.nn.layout import to_rows

FORMAT = "softvq-graph"
FORMAT_VERSION = 1
NAMES = ("encode", "decode")
GRID = (3, 5)
"""To trace with: two different sizes, neither 1, which would be built in."""


class Graphs(NamedTuple):
    """Both ways through a model, traced, and what the next program must know."""

    encode: ExportedProgram
    """``images`` (B, channels, H, W) to ``indices`` (B, ceil(H / f), ceil(W / f)) int64."""
    decode: ExportedProgram
    """``indices`` (B, h, w) to ``images`` (B, channels, h f, w f), not cropped."""
    facts: dict[str, Any]


class EncodeGraph(nn.Module):
    """Images to the indices of their nearest codes, ties to the lowest.

    Args:
        model: With one codebook.

    Example:
        >>> from softvq import HardVQ
        >>> model = VQVAE(HardVQ(8, 64, layout="channels_first")).eval()
        >>> EncodeGraph(model)(torch.zeros(1, 3, 7, 9)).shape
        torch.Size([1, 2, 3])
    """

    first_equal: Tensor

    def __init__(self, model: VQVAE) -> None:
        super().__init__()
        self.model = model
        # Equal codes get equal scores only where a product rounds each column alike. Where runtimes
        # do not, this keeps the promise.
        self.register_buffer("first_equal", find_first_equal(model.quantizer.codebook))  # pyright: ignore[reportArgumentType]

    def forward(self, images: Float[Tensor, "b c h w"]) -> Int[Tensor, "b gh gw"]:
        """Pad always, also by nothing: whether is no question for a graph of any size."""
        factor = self.model.config.downsampling
        pad = (0, -images.shape[3] % factor, 0, -images.shape[2] % factor)
        latents = self.model.latents(F.pad(images, pad, mode="replicate"))
        rows = to_rows(latents, layout="channels_first")
        indices = nearest_code(rows, self.model.quantizer.codebook)  # pyright: ignore[reportArgumentType]
        return self.first_equal[indices].reshape(latents.shape[0], *latents.shape[2:])


class DecodeGraph(nn.Module):
    """Indices to images.

    Args:
        model: With one codebook.

    Example:
        >>> from softvq import HardVQ
        >>> model = VQVAE(HardVQ(8, 64, layout="channels_first")).eval()
        >>> DecodeGraph(model)(torch.zeros(1, 2, 3, dtype=torch.int64)).shape
        torch.Size([1, 3, 8, 12])
    """

    def __init__(self, model: VQVAE) -> None:
        super().__init__()
        self.model = model

    def forward(self, indices: Int[Tensor, "b gh gw"]) -> Float[Tensor, "b c h w"]:
        """Negative numbers would count from the end: sent past it, they fail as others do."""
        num_codes = self.model.quantizer.codebook.shape[0]  # pyright: ignore
        return self.model.decode(torch.where(indices < 0, num_codes, indices))


def find_first_equal(codebook: Float[Tensor, "k d"]) -> Int[Tensor, " k"]:
    """For each code the lowest index of one that equals it.

    Example:
        >>> find_first_equal(torch.tensor([[2.0], [1.0], [2.0]])).tolist()
        [0, 1, 0]
    """
    _, group = codebook.detach().unique(dim=0, return_inverse=True)
    places = torch.arange(len(codebook), device=group.device)
    first = torch.full_like(places, len(codebook))
    return first.scatter_reduce(0, group, places, "amin")[group]


def trace_graphs(model: VQVAE) -> Graphs:
    """Trace a model for any batch, height and width, in float32 on the CPU.

    Args:
        model: In eval mode, with a quantizer of softvq.

    Raises:
        ValueError: For another kind of model, in training mode, or with a codebook that was never
            placed on data.

    Example:
        >>> from softvq import HardVQ
        >>> model = VQVAE(HardVQ(8, 64, layout="channels_first"))
        >>> trace_graphs(model)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: model (VQVAE) is in training mode... Call model.eval() first.
    """
    if not isinstance(model, VQVAE) or not isinstance(model.quantizer, Quantizer):
        raise ValueError(
            f"model must be a softvq.models.VQVAE with one codebook of softvq; got "
            f"{type(model).__name__}. Trace another one with torch.export itself."
        )
    check_eval(model)
    facts = _tell(model, take_codebook(model))
    held = copy.deepcopy(model).to("cpu", torch.float32).requires_grad_(False)
    factor = model.config.downsampling
    images = torch.zeros(2, model.config.channels, GRID[0] * factor - 1, GRID[1] * factor)
    indices = torch.zeros(2, *GRID, dtype=torch.int64)
    encode = torch.export.export(
        EncodeGraph(held), (images,), dynamic_shapes=({axis: Dim.AUTO for axis in (0, 2, 3)},)
    )
    decode = torch.export.export(
        DecodeGraph(held), (indices,), dynamic_shapes=({axis: Dim.AUTO for axis in (0, 1, 2)},)
    )
    return Graphs(encode, decode, facts)


def export_programs(model: VQVAE, folder: Path | str) -> Path:
    """Write ``encode.pt2`` and ``decode.pt2``, for `torch.export.load`. See FORMAT.md.

    Args:
        model: As for `trace_graphs`.
        folder: To write to.

    Returns:
        The folder.

    Raises:
        ValueError: As `trace_graphs`.
    """
    graphs, folder = trace_graphs(model), Path(folder)
    for name in NAMES:
        content = io.BytesIO()
        told = {"softvq.json": json.dumps(graphs.facts)}
        torch.export.save(getattr(graphs, name), content, extra_files=told)
        with replacing(folder / f"{name}.pt2") as beside:
            beside.write_bytes(content.getbuffer())
    return folder


def _tell(model: VQVAE, codebook: Codebook) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "num_codes": codebook.num_codes,
        "dim": model.config.dim,
        "channels": model.config.channels,
        "downsampling": model.config.downsampling,
        "image_range": IMAGE_RANGE,
        "codebook_digest": codebook.digest,
        "model_digest": codebook.source_digest,
    }
