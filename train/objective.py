"""What a run descends: the error of the reconstruction, what its codebook asks, and perception."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from train.config import OptimConfig


class Terms(NamedTuple):
    """The terms of the loss, 0-dim; ``lpips`` is None where the run has no such term."""

    total: Tensor
    reconstruction: Tensor
    quantizer: Tensor
    lpips: Tensor | None

    def to_scalars(self) -> dict[str, Tensor]:
        """Each as TensorBoard shows it, detached."""
        return {
            f"loss/{name}": value.detach()
            for name, value in self._asdict().items()
            if value is not None
        }


class Objective:
    """The loss of a run, in float32: call it outside of autocast.

    Args:
        optim: Says whether there is a perceptual term, by which net, and its weight.
        device: Of the pictures.

    Example:
        >>> objective = Objective(OptimConfig(), device=torch.device("cpu"))
        >>> images = torch.zeros(1, 3, 8, 8)
        >>> objective(images + 0.5, images, quantizer=torch.tensor(0.25)).total.item()
        0.5
    """

    def __init__(self, optim: OptimConfig, *, device: torch.device) -> None:
        self.weight = optim.lpips_weight
        self.perceptual = None
        if optim.loss != "mse":
            # Image nets take seconds to import, which a run with MSE spares.
            from train.perceptual import PerceptualLoss

            self.perceptual = PerceptualLoss(optim.lpips_net, device=device)

    def __call__(
        self,
        reconstruction: Float[Tensor, "b c h w"],
        images: Float[Tensor, "b c h w"],
        *,
        quantizer: Float[Tensor, ""],
    ) -> Terms:
        """The terms of one batch.

        Args:
            reconstruction: In [-1, 1], of any precision.
            images: In [-1, 1].
            quantizer: The quantizer's own loss.
        """
        reconstruction = reconstruction.float()
        error = F.mse_loss(reconstruction, images)
        total = error + quantizer
        if self.perceptual is None:
            return Terms(total, error, quantizer, None)
        seen = self.perceptual(reconstruction, images)
        return Terms(total + self.weight * seen, error, quantizer, seen)
