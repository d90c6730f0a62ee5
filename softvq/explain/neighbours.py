"""The tokens and inputs of a data set that lie nearest to each prototype.

B batch, N tokens, D features, K prototypes.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from softvq.checks import check_count, check_features, check_mask
from softvq.functional.distances import squared_distances
from softvq.functional.weights import soft_weights
from softvq.functional.windows import masked_mean
from softvq.nn.soft import SoftVQ


class Neighbour(NamedTuple):
    """A token near a prototype.

    Attributes:
        item: Place of its input in the data set, counted over all updates.
        position: Place of the token in the input, as it was given.
        distance: Squared distance.
    """

    item: int
    position: int
    distance: float


class PrototypeNeighbours:
    """Collects, batch by batch, what lies nearest to each prototype; memory is K x ``num``.

    Args:
        prototypes: One head, such as ``layer.prototypes.quantizers[0]``.
        num: Neighbours of each prototype that are kept.

    Example:
        >>> head = SoftVQ(2, 1)
        >>> head.codebook.data = torch.tensor([[-1.0], [1.0]])
        >>> found = PrototypeNeighbours(head, num=1)
        >>> found.update(torch.tensor([[[0.9], [-3.0]], [[-1.1], [5.0]]]))
        >>> [(each[0].item, each[0].position) for each in found.tokens()]
        [(1, 0), (0, 0)]
    """

    def __init__(self, prototypes: SoftVQ, *, num: int = 5) -> None:
        self.prototypes = prototypes
        self.num = check_count("num", num)
        self._seen = 0
        empty = (prototypes.num_codes, 0)
        self._tokens = _Best(torch.zeros(empty), torch.zeros((*empty, 2), dtype=torch.int64))
        self._inputs = _Best(torch.zeros(empty), torch.zeros((*empty, 2), dtype=torch.int64))

    @torch.no_grad()
    def update(
        self, tokens: Float[Tensor, "b n d"], *, mask: Bool[Tensor, "b n"] | None = None
    ) -> None:
        """Take in a batch.

        Args:
            tokens: The head's own features.
            mask: True keeps a token.

        Raises:
            ValueError: For tokens or a mask that do not fit.
        """
        head = self.prototypes
        check_features("tokens", tokens, dim=head.dim, axis=-1)
        check_mask("mask", mask, shape=tuple(tokens.shape[:-1]))
        if mask is None:
            mask = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        weights = soft_weights(tokens, head.codebook, temperature=head.temperature, mask=mask)
        shares = masked_mean(weights, mask).cpu()
        item, position = mask.nonzero(as_tuple=True)
        rows = tokens[item, position].float()
        distances = squared_distances(rows, head.codebook.float()).clamp_min(0).cpu()
        places = torch.stack([item + self._seen, position], -1).cpu()
        self._tokens = self._tokens.merge(distances.mT, places, num=self.num)
        some = mask.any(-1).cpu()
        whole = torch.stack([torch.arange(len(tokens)) + self._seen] * 2, -1)
        self._inputs = self._inputs.merge(-shares[some].mT, whole[some], num=self.num)
        self._seen += len(tokens)

    def tokens(self) -> list[list[Neighbour]]:
        """The nearest tokens of each prototype, nearest first."""
        return [
            [
                Neighbour(int(place[0]), int(place[1]), float(score))
                for score, place in zip(scores, places, strict=True)
            ]
            for scores, places in zip(self._tokens.scores, self._tokens.places, strict=True)
        ]

    def inputs(self) -> list[list[tuple[int, float]]]:
        """The inputs in which each prototype has the largest share, and that share."""
        return [
            [(int(place[0]), -float(score)) for score, place in zip(scores, places, strict=True)]
            for scores, places in zip(self._inputs.scores, self._inputs.places, strict=True)
        ]


class _Best(NamedTuple):
    """The least scores of each prototype, ascending, and where they were found."""

    scores: Float[Tensor, "k m"]
    places: Tensor  # (K, m, 2)

    def merge(self, scores: Tensor, places: Tensor, *, num: int) -> "_Best":
        """Take in (K, n) scores found at (n, 2) places."""
        every = torch.cat([self.scores, scores], 1)
        where = torch.cat([self.places, places.expand(len(scores), *places.shape)], 1)
        order = every.argsort(dim=1, stable=True)[:, :num]
        return _Best(every.gather(1, order), where.gather(1, order[..., None].expand(-1, -1, 2)))
