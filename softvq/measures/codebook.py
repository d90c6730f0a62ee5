"""Use of a codebook over a data set, by hard and by soft assignment.

Soft use is 100 % even for a codebook whose codes are all equal: read it beside hard use, never
instead of it.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softvq.checks import check_count
from softvq.functional.assign import count_codes
from softvq.functional.diagnostics import perplexity

SOFT_SHARE = 0.1


class UseReport(NamedTuple):
    """Use of K codes by N rows; shares in 0..1, soft figures None without a soft assignment."""

    use_hard: float
    perplexity_hard: float
    use_soft: float | None
    perplexity_soft: float | None
    counts: Tensor
    rows: int


class CodebookUse:
    """Hard counts and soft weights of each code, exact over batches.

    A code is in hard use if it is the nearest of at least one row, in soft use if its mean weight
    exceeds 0.1 / K.

    Args:
        num_codes: K.

    Example:
        >>> measure = CodebookUse(8)
        >>> measure.update(torch.tensor([0, 0, 0, 0, 0, 0]))
        >>> measure.update(torch.tensor([2, 2, -1]))
        >>> report = measure.compute()
        >>> report.use_hard, round(report.perplexity_hard, 4), report.rows
        (0.25, 1.7548, 8)
    """

    def __init__(self, num_codes: int) -> None:
        self.num_codes = check_count("num_codes", num_codes)
        self.reset()

    def reset(self) -> None:
        """Forget all rows."""
        self._counts = torch.zeros(self.num_codes, dtype=torch.int64)
        self._weights = torch.zeros(self.num_codes, dtype=torch.float64)
        self._soft_rows = 0

    def update(
        self, indices: Int[Tensor, "..."], mean_weights: Float[Tensor, " k"] | None = None
    ) -> None:
        """Add a batch.

        Args:
            indices: Code of each row; -1 counts nowhere.
            mean_weights: Mean soft weight of each code over these rows, where there is one.

        Raises:
            ValueError: For an index out of [-1, K), or weights of another shape; nothing is added.
        """
        low, high = (int(end) for end in indices.aminmax()) if indices.numel() else (0, 0)
        if low < -1 or high >= self.num_codes:
            raise ValueError(
                f"indices must lie in [0, {self.num_codes}), or be -1 where none counts; got "
                f"values from {low} to {high}."
            )
        if mean_weights is not None and tuple(mean_weights.shape) != (self.num_codes,):
            raise ValueError(
                f"mean_weights must have one entry for each of {self.num_codes} codes; got shape "
                f"{tuple(mean_weights.shape)}."
            )
        counts = count_codes(indices, num_codes=self.num_codes).cpu()
        self._counts += counts
        if mean_weights is None:
            return
        rows = int(counts.sum())
        self._weights += mean_weights.double().cpu() * rows
        self._soft_rows += rows

    def compute(self) -> UseReport:
        """Use over all rows so far.

        Returns:
            The report; perplexities are 0 for no rows.
        """
        soft = None
        if self._soft_rows:
            soft = self._weights / self._soft_rows
        return UseReport(
            use_hard=(self._counts > 0).double().mean().item(),
            perplexity_hard=perplexity(self._counts).item(),
            use_soft=None
            if soft is None
            else (soft > SOFT_SHARE / self.num_codes).double().mean().item(),
            perplexity_soft=None if soft is None else perplexity(soft).item(),
            counts=self._counts.clone(),
            rows=int(self._counts.sum()),
        )
