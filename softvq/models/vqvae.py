"""A VQ-VAE for images of any size, around any quantizer that returns a `QuantizerOutput`."""

from dataclasses import asdict, dataclass
from typing import NamedTuple

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from softvq.checks import check_count, check_floating
from softvq.models.blocks import decoder, encoder
from softvq.types import QuantizerOutput

DOWNSAMPLINGS = {4: 2, 8: 3, 16: 4}


@dataclass(frozen=True, kw_only=True)
class VQVAEConfig:
    """Sizes of the net; the defaults are the public recipe (8 x 8 codes for a 32 x 32 image).

    Attributes:
        channels: Of the images, 1 or 3.
        dim: D, features of a latent vector.
        hidden: Channels of the convolutions.
        residual_hidden: Channels inside a residual block.
        blocks: Residual blocks on each side.
        downsampling: Pixels to a code along each side: 4, 8 or 16.
    """

    channels: int = 3
    dim: int = 64
    hidden: int = 128
    residual_hidden: int = 32
    blocks: int = 2
    downsampling: int = 4

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            check_count(name, value, least=0 if name == "blocks" else 1)
        if self.channels not in (1, 3):
            raise ValueError(f"channels must be 1 (grey) or 3 (RGB); got {self.channels}.")
        if self.downsampling not in DOWNSAMPLINGS:
            raise ValueError(f"downsampling must be 4, 8 or 16; got {self.downsampling}.")
        if self.hidden % 2:
            raise ValueError(f"hidden must be even, as half of it is used; got {self.hidden}.")


class Reconstructed(NamedTuple):
    """What `VQVAE` returns."""

    reconstruction: Tensor
    quantizer: QuantizerOutput


class VQVAE(nn.Module):
    """Encoder, quantizer, decoder.

    Images are float in [-1, 1]; reconstructions are not clamped.

    Args:
        quantizer: Takes (B, D, h, w), returns a `QuantizerOutput`; has ``codes(indices)``.
        config: Sizes of the net.

    Raises:
        ValueError: If the quantizer is known to work on another feature size or layout.

    Example:
        >>> import torch
        >>> from softvq import SoftVQ
        >>> model = VQVAE(SoftVQ(512, 64, layout="channels_first"))
        >>> model.encode(torch.zeros(1, 3, 30, 32)).shape
        torch.Size([1, 8, 8])
    """

    def __init__(self, quantizer: nn.Module, config: VQVAEConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or VQVAEConfig()
        dim, layout = getattr(quantizer, "dim", None), getattr(quantizer, "layout", None)
        if dim not in (None, config.dim):
            raise ValueError(
                f"quantizer has dim={dim}, config has dim={config.dim}: make them equal."
            )
        if layout not in (None, "channels_first"):
            raise ValueError(
                f"quantizer has layout={layout!r}; a VQVAE needs layout='channels_first'."
            )
        sizes = {
            "hidden": config.hidden,
            "residual_hidden": config.residual_hidden,
            "blocks": config.blocks,
            "halvings": DOWNSAMPLINGS[config.downsampling],
        }
        self.encoder = encoder(config.channels, config.dim, **sizes)
        self.quantizer = quantizer
        self.decoder = decoder(config.channels, config.dim, **sizes)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Reconstructed:
        """Reconstruct images.

        Args:
            images: Float in [-1, 1], any height and width.

        Returns:
            Reconstruction of the same shape, and what the quantizer returned.

        Raises:
            ValueError: For a wrong channel count or dtype.
        """
        out = self.quantizer(self.latents(images))
        height, width = images.shape[-2:]
        return Reconstructed(self._decode(out.quantized)[..., :height, :width], out)

    def encode(self, images: Float[Tensor, "b c h w"]) -> Int[Tensor, "b gh gw ..."]:
        """Indices of the codes of each image, row by row: (B, ceil(H / f), ceil(W / f)) int64.

        Of a quantizer that gives a vector several, (B, h, w, ...).
        """
        # Indices carry no gradient: detached, so that eval mode need not warn that none arrives.
        return self.quantizer(self.latents(images).detach()).indices

    def decode(
        self, indices: Int[Tensor, "b gh gw ..."], *, size: tuple[int, int] | None = None
    ) -> Float[Tensor, "b c h w"]:
        """Images of a grid of indices.

        Args:
            indices: (B, grid height, grid width), and the indices of a vector last where it has
                several; a flat list has lost its grid and is refused.
            size: (H, W) to crop to, where the images were no multiple of the downsampling.

        Returns:
            Images, (B, channels, grid height x f, grid width x f) or cropped.

        Raises:
            ValueError: For indices that are not a grid, or out of range.
        """
        if indices.ndim != 3 + len(getattr(self.quantizer, "index_tail", ())):
            raise ValueError(
                f"indices must be (B, grid height, grid width); got shape {tuple(indices.shape)}. "
                "Give a flat list its grid back first, row by row."
            )
        images = self._decode(self.quantizer.codes(indices))  # pyright: ignore[reportCallIssue]
        return images if size is None else images[..., : size[0], : size[1]]

    def _decode(self, codes: Float[Tensor, "b d gh gw"]) -> Float[Tensor, "b c h w"]:
        # In one order in memory, as convolutions round differently for another; in the net's own
        # dtype, as averages of codes keep theirs whatever the model is cast to.
        weight = next(self.decoder.parameters())
        return self.decoder(codes.contiguous().to(weight.dtype))

    def latents(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d gh gw"]:
        """The encoder's output (B, D, h, w); images are padded at their edge to a multiple."""
        check_floating("images", images)
        fits = images.ndim == 4 and images.shape[1] == self.config.channels
        if not fits or 0 in images.shape[2:]:
            raise ValueError(
                f"images must be (B, {self.config.channels}, H, W) with H and W at least 1; got "
                f"{tuple(images.shape)}."
            )
        factor = self.config.downsampling
        height, width = images.shape[-2:]
        pad = (0, -width % factor, 0, -height % factor)
        if any(pad):
            images = F.pad(images, pad, mode="replicate")
        return self.encoder(images)
