"""vector-quantize-pytorch's quantizers as published, behind the contract of softvq's own."""

from typing import Any, cast

import torch
from einops import rearrange
from torch import Tensor, nn

from softvq.checks import check_number, choose
from softvq.types import QuantizerOutput

try:
    import vector_quantize_pytorch as published
except ImportError:  # the extra `peers` is not installed; asking for a peer says so
    published = None

DEAD_SHARE = 0.25
FSQ_LEVELS = {512: [8, 8, 8], 1024: [8, 5, 5, 5], 4096: [7, 5, 5, 5, 5], 16384: [8, 8, 8, 6, 5]}


class Peer(nn.Module):
    """A peer's quantizer for (B, D, h, w), returning a `QuantizerOutput`.

    Args:
        inner: The peer's module; returns (quantized, indices) or (quantized, indices, loss).
        num_codes: K.
    """

    has_soft = False

    def __init__(self, inner: nn.Module, *, num_codes: int) -> None:
        super().__init__()
        self.inner = inner
        self.num_codes = num_codes

    def forward(self, z: Tensor) -> QuantizerOutput:
        """Quantize (B, D, h, w)."""
        quantized, indices, *rest = self.inner(z)
        loss = rest[0].sum() if rest else z.new_zeros(())
        return QuantizerOutput(quantized, indices.long(), loss, {})

    @property
    def codebook(self) -> Tensor:
        """Codes (K, D) as they are decoded; for FSQ its grid of levels."""
        inner: Any = self.inner
        if hasattr(inner, "implicit_codebook"):
            return inner.implicit_codebook.detach()
        if hasattr(inner, "project_out"):
            return inner.project_out(inner.codebook).detach()
        return inner.codebook.detach()

    def codes(self, indices: Tensor) -> Tensor:
        """The vectors (B, D, h, w) of a grid of indices."""
        inner: Any = self.inner
        if hasattr(inner, "indices_to_codes"):
            return inner.indices_to_codes(indices)
        # Its own get_output_from_indices projects a channels-first map along the wrong axis.
        return inner.project_out(inner.codebook[indices]).movedim(-1, 1)


class ResidualPeer(Peer):
    """A peer's stages of K codes each: indices (B, h, w, stages).

    Args:
        inner: The peer's ResidualVQ.
        num_codes: K.
        num_stages: How many.
    """

    def __init__(self, inner: nn.Module, *, num_codes: int, num_stages: int) -> None:
        super().__init__(inner, num_codes=num_codes**num_stages)
        self.index_tail = (num_stages,)
        self.codes_per_index = (num_codes,) * num_stages

    def forward(self, z: Tensor) -> QuantizerOutput:
        """Quantize (B, D, h, w), as a sequence: its own way with maps fails for residual stages."""
        quantized, indices, losses = self.inner(rearrange(z, "b d h w -> b (h w) d"))
        grid = {"h": z.shape[2], "w": z.shape[3]}
        return QuantizerOutput(
            rearrange(quantized, "b (h w) d -> b d h w", **grid),
            rearrange(indices, "b (h w) q -> b h w q", **grid),
            losses.sum(),
            {},
        )

    @property
    def codebook(self) -> Tensor:
        """Codes (K, D) of the first stage."""
        inner: Any = self.inner
        return inner.codebooks[0].detach()

    def codes(self, indices: Tensor) -> Tensor:
        """The vectors (B, D, h, w) of a grid of indices (B, h, w, stages)."""
        inner: Any = self.inner
        vectors = inner.get_output_from_indices(indices.flatten(1, 2))
        return vectors.unflatten(1, indices.shape[1:3]).movedim(-1, 1)


def _package() -> Any:  # noqa: ANN401 - a module without types
    if published is None:
        raise ValueError(
            "methods named lucid-* need vector-quantize-pytorch: pip install 'softvq[peers]'."
        )
    return published


def _reset_below(num_codes: int, rows: int, options: dict[str, object]) -> dict[str, object]:
    """``dead_share`` is the dead-code threshold as a share of the mean hits; theirs is a count."""
    rest = dict(options)
    share = cast(float, rest.pop("dead_share", DEAD_SHARE))
    check_number("dead_share", share, least=0)
    return {"kmeans_init": True, "threshold_ema_dead_code": share * rows / num_codes, **rest}


def _vector_quantize(num_codes: int, dim: int, rows: int, **options: object) -> Peer:
    options = {"accept_image_fmap": True, **_reset_below(num_codes, rows, options)}
    return Peer(_package().VectorQuantize(dim, num_codes, **options), num_codes=num_codes)


def lucid_ema(*, num_codes: int, dim: int, rows: int, **options: object) -> Peer:
    """EMA codebook, k-means, reset; commitment 1."""
    options = {"commitment_weight": 1.0, "rotation_trick": False, **options}
    return _vector_quantize(num_codes, dim, rows, **options)


def lucid_rotation(*, num_codes: int, dim: int, rows: int, **options: object) -> Peer:
    """EMA codebook with the rotation trick; commitment 0.05."""
    options = {"commitment_weight": 0.05, "rotation_trick": True, **options}
    return _vector_quantize(num_codes, dim, rows, **options)


def lucid_diveq(*, num_codes: int, dim: int, rows: int, **options: object) -> Peer:
    """DiVeQ: directional reparametrization, learned codebook."""
    fixed = {"directional_reparam": True, "learnable_codebook": True, "ema_update": False}
    return _vector_quantize(num_codes, dim, rows, **{**fixed, **options})


def lucid_cosine(*, num_codes: int, dim: int, rows: int, **options: object) -> Peer:
    """Codes and rows on the unit sphere, EMA, k-means, reset; commitment 1."""
    fixed = {"use_cosine_sim": True, "commitment_weight": 1.0, "rotation_trick": False}
    return _vector_quantize(num_codes, dim, rows, **{**fixed, **options})


def lucid_lowdim(*, num_codes: int, dim: int, rows: int, **options: object) -> Peer:
    """Codes of few features between two linear maps, EMA, k-means, reset; commitment 0.05."""
    fixed = {"codebook_dim": 8, "commitment_weight": 0.05, "rotation_trick": False}
    return _vector_quantize(num_codes, dim, rows, **{**fixed, **options})


def lucid_simvq(*, num_codes: int, dim: int, rows: int, **options: object) -> Peer:
    """SimVQ: a frozen table through a learned map."""
    options = {"channel_first": True, **options}
    inner = _package().SimVQ(dim=dim, codebook_size=num_codes, **options)
    return Peer(inner, num_codes=num_codes)


def lucid_fsq(*, num_codes: int, dim: int, rows: int, **options: object) -> Peer:
    """FSQ on levels whose product is K, or next to it where the paper has no exact one."""
    levels = FSQ_LEVELS[int(choose("num_codes for FSQ", str(num_codes), map(str, FSQ_LEVELS)))]
    inner = _package().FSQ(levels=levels, dim=dim, channel_first=True, **options)
    return Peer(inner, num_codes=int(torch.tensor(levels).prod()))


def lucid_lfq(*, num_codes: int, dim: int, rows: int, **options: object) -> Peer:
    """LFQ: the sign of log2 K projected features, with its entropy losses; K a power of two."""
    if num_codes < 2 or num_codes & (num_codes - 1):
        raise ValueError(f"num_codes for LFQ must be a power of two; got {num_codes}.")
    inner = _package().LFQ(codebook_size=num_codes, dim=dim, channel_first=True, **options)
    return Peer(inner, num_codes=num_codes)


def lucid_residual(
    *, num_codes: int, dim: int, rows: int, num_stages: int, **options: object
) -> ResidualPeer:
    """Stages of EMA codebooks, k-means, reset; commitment 0.25."""
    options = {"commitment_weight": 0.25, "rotation_trick": False, **options}
    inner = _package().ResidualVQ(
        dim=dim,
        num_quantizers=num_stages,
        codebook_size=num_codes,
        **_reset_below(num_codes, rows, options),
    )
    return ResidualPeer(inner, num_codes=num_codes, num_stages=num_stages)
