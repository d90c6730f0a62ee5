"""FD-VGG16 of made pictures against the first test pictures."""

from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from softvq.data import ImageSet, to_model_range
from softvq.measures.frechet import FeatureSums, FrechetDistance
from softvq.measures.vgg import VggFeatures
from softvq.models import VQVAE
from train.images import ImagePair
from train.perceptual import NotAvailableError, get_net

BATCH = 250


class Distances:
    """Distances to the same test pictures, whose features are taken once.

    Args:
        images: Training and test pictures.
        device: Where to work.
    """

    def __init__(self, images: ImagePair, *, device: torch.device) -> None:
        self.images, self.device = images, device
        self._reference: FeatureSums | None = None

    def of_pictures(
        self, pictures: Iterable[Float[Tensor, "b c h w"]], *, count: int
    ) -> float | None:
        """The distance of pictures; None where it has no value, which is printed with the reason.

        Args:
            pictures: In batches, in [-1, 1].
            count: How many, and how many test pictures they are held against.
        """
        try:
            if count <= VggFeatures.dim:
                raise NotAvailableError(f"{count} pictures are no more than {VggFeatures.dim}")
            measure = FrechetDistance(VggFeatures(get_net("vgg")), reference=self._reference)
        except NotAvailableError as reason:
            print(f"FD-VGG16 is not available: {reason}")
            return None
        if self._reference is None:
            for images in _read(self.images.test, count=count):
                measure.update(images.to(self.device), side="reference")
        for images in pictures:
            measure.update(images.to(self.device), side="made")
        self._reference = measure.reference
        return measure.compute().distance

    def of_reconstructions(self, model: VQVAE, *, count: int) -> float | None:
        """The distance of what a model makes of the test pictures themselves."""
        return self.of_pictures(self._reconstruct(model, count=count), count=count)

    def of_training(self, *, count: int) -> float | None:
        """The distance of training pictures: what no generator needs to beat."""
        return self.of_pictures(_read(self.images.train, count=count), count=count)

    @torch.no_grad()
    def _reconstruct(self, model: VQVAE, *, count: int) -> Iterator[Tensor]:
        for images in _read(self.images.test, count=count):
            yield model(images.to(self.device)).reconstruction.float()


def _read(images: ImageSet, *, count: int) -> Iterator[Tensor]:
    for begin in range(0, count, BATCH):
        yield to_model_range(images.batch(torch.arange(begin, min(begin + BATCH, count))))
