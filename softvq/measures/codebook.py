"""Use of a codebook over a data set, by hard and by soft assignment.

Soft use is 100 % even for a codebook whose codes are all equal: read it beside hard use, never
instead of it.
"""

import math
from typing import ClassVar, NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softvq.checks import check_count
from softvq.functional.assign import count_codes
from softvq.functional.diagnostics import distinct_codes, perplexity
from softvq.measures.state import Measure

SOFT_SHARE = 0.1
NEVER = 2**62


class UseReport(NamedTuple):
    """Use of K codes by N rows; shares in 0..1, soft figures None without a soft assignment."""

    use_hard: float
    perplexity_hard: float
    use_soft: float | None
    perplexity_soft: float | None
    counts: Tensor
    rows: int
    codes_used: int
    """Codes that are the nearest of a row."""
    entropy_hard: float
    """Of the counts, in nats; its exp is the perplexity."""
    entropy_soft: float | None
    bits_per_token: float
    """log2 K: what a token costs where every code has a name of the same length."""
    entropy_bits_hard: float
    """What it costs on average where frequent codes have shorter names."""
    entropy_bits_soft: float | None
    dead_since: Tensor
    """Rows since the last one of each code; all rows where there was none."""
    zipf_hard: Tensor
    """Counts, most frequent first."""
    zipf_soft: Tensor | None
    """Mean weights, greatest first."""


@final
class CodebookUse(Measure):
    """Hard counts and soft weights of each code, exact over batches and processes.

    A code is in hard use if it is the nearest of at least one row, in soft use if its mean weight
    exceeds 0.1 / K. Over processes, whose shares run side by side, ``dead_since`` counts the rows
    of one share.

    Args:
        num_codes: K.

    Example:
        >>> measure = CodebookUse(8)
        >>> measure.update(torch.tensor([0, 0, 0, 0, 0, 0]))
        >>> measure.update(torch.tensor([2, 2, -1]))
        >>> report = measure.compute()
        >>> report.use_hard, round(report.perplexity_hard, 4), report.rows
        (0.25, 1.7548, 8)
        >>> report.dead_since.tolist(), report.bits_per_token
        ([2, 8, 0, 8, 8, 8, 8, 8], 3.0)
    """

    _least: ClassVar[frozenset[str]] = frozenset({"since"})

    def __init__(self, num_codes: int) -> None:
        self.num_codes = check_count("num_codes", num_codes)
        super().__init__()

    def _zeros(self) -> dict[str, Tensor]:
        return {
            "counts": torch.zeros(self.num_codes, dtype=torch.int64),
            "weights": torch.zeros(self.num_codes, dtype=torch.float64),
            "soft_rows": torch.zeros((), dtype=torch.int64),
            "since": torch.full((self.num_codes,), NEVER, dtype=torch.int64),
        }

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
        counts = count_codes(indices, num_codes=self.num_codes)
        self._add("counts", counts)
        self._pass_rows(indices)
        if mean_weights is None:
            return
        rows = counts.sum()
        self._add("weights", mean_weights.double() * rows)
        self._add("soft_rows", rows)

    def _pass_rows(self, indices: Tensor) -> None:
        kept = indices.flatten().to(torch.int64)
        kept = kept[kept >= 0]
        since = self._state["since"].to(kept.device) + len(kept)
        ago = torch.arange(len(kept) - 1, -1, -1, device=kept.device)
        self._state["since"] = since.scatter_reduce(0, kept, ago, "amin")

    def compute(self) -> UseReport:
        """Use over all rows so far, on the CPU.

        Returns:
            The report; perplexities are 0 for no rows.
        """
        state = {name: value.cpu() for name, value in self._state.items()}
        counts, rows = state["counts"], int(state["counts"].sum())
        soft = None
        if int(state["soft_rows"]):
            soft = state["weights"] / state["soft_rows"]
        hard_nats = entropy_of(counts)
        soft_nats = None if soft is None else entropy_of(soft)
        return UseReport(
            use_hard=(counts > 0).double().mean().item(),
            perplexity_hard=perplexity(counts).item(),
            use_soft=None
            if soft is None
            else (soft > SOFT_SHARE / self.num_codes).double().mean().item(),
            perplexity_soft=None if soft is None else perplexity(soft).item(),
            counts=counts.clone(),
            rows=rows,
            codes_used=int((counts > 0).sum()),
            entropy_hard=hard_nats,
            entropy_soft=soft_nats,
            bits_per_token=math.log2(self.num_codes),
            entropy_bits_hard=hard_nats / math.log(2),
            entropy_bits_soft=None if soft_nats is None else soft_nats / math.log(2),
            dead_since=torch.where(counts > 0, state["since"], rows),
            zipf_hard=counts.sort(descending=True).values,
            zipf_soft=None if soft is None else soft.sort(descending=True).values,
        )


def entropy_of(counts: Float[Tensor, " k"] | Int[Tensor, " k"]) -> float:
    """Entropy in nats of the shares; 0 for no rows.

    Args:
        counts: Rows, or weight, per code.

    Example:
        >>> round(entropy_of(torch.tensor([6, 2, 0])), 6), entropy_of(torch.tensor([0, 0]))
        (0.562335, 0.0)
    """
    total = counts.double().sum()
    if total == 0:
        return 0.0
    return torch.special.entr(counts.double() / total).sum().item()


@final
class DistinctCodes(Measure):
    """How many codes differ by more than 1e-3 of the data's deviation; the rest are repetitions.

    Args:
        dim: Features of a row.

    Example:
        >>> measure = DistinctCodes(1)
        >>> measure.update(torch.tensor([[-1.0], [1.0]]))
        >>> measure.compute(torch.tensor([[0.0], [0.0], [1.0]]))
        2
    """

    def __init__(self, dim: int) -> None:
        self.dim = check_count("dim", dim)
        super().__init__()

    def _zeros(self) -> dict[str, Tensor]:
        return {
            "rows": torch.zeros((), dtype=torch.int64),
            "first": torch.zeros(self.dim, dtype=torch.float64),
            "second": torch.zeros(self.dim, dtype=torch.float64),
        }

    def update(self, rows: Float[Tensor, "n d"]) -> None:
        """Add rows of the data that the codebook is for.

        Args:
            rows: Latents.

        Raises:
            ValueError: If they have another number of features.
        """
        if rows.shape[-1] != self.dim:
            raise ValueError(f"rows must have {self.dim} features; got shape {tuple(rows.shape)}.")
        exact = rows.double()
        self._add("rows", torch.tensor(len(rows), device=rows.device))
        self._add("first", exact.sum(0))
        self._add("second", exact.square().sum(0))

    def compute(self, codebook: Float[Tensor, "k d"]) -> int:
        """Distinct codes of a codebook, by the variance of all rows so far."""
        count = self._state["rows"].clamp_min(1)
        mean = self._state["first"] / count
        variance = (self._state["second"] / count - mean.square()).sum()
        return int(distinct_codes(codebook.detach().cpu(), variance.float().cpu()))
