"""What every back end gives back."""

from typing import NamedTuple

from torch import Tensor


class Assigned(NamedTuple):
    """Soft assignment of N rows at S temperatures, before masks and shapes are put back.

    ``mean`` (S, N, D), ``spread``, ``free_energy`` and ``entropy`` (S, N), ``indices`` (N,) int64,
    ``use`` (S, K).
    """

    mean: Tensor
    spread: Tensor
    free_energy: Tensor
    entropy: Tensor
    indices: Tensor
    use: Tensor
