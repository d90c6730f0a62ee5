"""What the forward passes since the last update leave for it: counts, and the rows themselves.

Kept outside the buffers on purpose: distributed wrappers broadcast buffers, and would overwrite the
counts of every process but the first.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor

from softvq.functional.assign import count_codes, sum_by_code
from softvq.functional.precision import at_least_float32
from softvq.nn.processes import gather_rows, num_processes, sum_over_processes

SAMPLE_LIMIT = 65_536


def are_finite(rows: Tensor) -> Tensor:
    """Whether rows (..., D) have a finite squared length; else no distance to a code is known.

    Example:
        >>> are_finite(torch.tensor([[1.0], [torch.nan], [torch.inf], [1e30]])).tolist()
        [True, False, False, False]
    """
    squares = at_least_float32(rows).square().sum(-1)
    return squares * 0 == 0  # 0 * NaN and 0 * inf are NaN


def is_mapped(tensor: Tensor) -> bool:
    """Whether ``tensor`` is one item of many, inside `torch.func.vmap`.

    Example:
        >>> _ = torch.func.vmap(lambda row: print(is_mapped(row)) or row)(torch.zeros(2, 3))
        True
    """
    while is_functorch_wrapped_tensor(tensor):
        if is_batchedtensor(tensor):
            return True
        tensor = get_unwrapped(tensor)
    return False


class Tally:
    """Pending statistics of a quantizer: rows per code (K,), recent rows, sums of rows per code.

    Counts and sums add up over passes; ``recent`` holds the last ``passes`` of them, for samples:
    one, or as many as a step has where stages share a codebook.
    """

    def __init__(self, num_codes: int, *, with_sums: bool) -> None:
        self.num_codes = num_codes
        self.with_sums = with_sums
        self.passes = 1
        self._held = 0
        self.counts: Tensor | None = None
        self.sums: Tensor | None = None
        self.recent: Tensor | None = None
        self.dropped: Tensor | None = None
        self._stale = False

    def __bool__(self) -> bool:
        """Whether a forward pass has left anything."""
        return self.recent is not None

    def add(self, rows: Tensor, indices: Tensor) -> None:
        """Add one forward pass; rows that are masked (index -1) or not finite count nowhere.

        Args:
            rows: (N, D), no gradient is kept.
            indices: (N,), -1 for masked rows.
        """
        if self._stale:
            self.clear()
        rows = rows.detach()
        finite = are_finite(rows)
        dropped = ((indices >= 0) & ~finite).sum()
        self.dropped = dropped if self.dropped is None else self.dropped + dropped
        indices = torch.where(finite, indices, -1)
        counts = count_codes(indices, num_codes=self.num_codes)
        self.counts = counts if self.counts is None else self.counts + counts
        if self.with_sums:
            sums = sum_by_code(rows, indices, num_codes=self.num_codes)
            self.sums = sums if self.sums is None else self.sums + sums
        # A dropped row becomes NaN, so that one tensor says both what and whether.
        recent = torch.where(indices[:, None] >= 0, rows, torch.nan)
        if self.recent is not None and self._held < self.passes:
            recent = torch.cat([self.recent, recent])
        else:
            self._held = 0
        self.recent = recent
        self._held += 1

    def clear(self) -> None:
        """Forget everything."""
        self.counts = self.sums = self.recent = self.dropped = None
        self._stale = False
        self._held = 0

    def expire(self) -> None:
        """Forget everything once another pass comes; an update before that still gets it."""
        self._stale = bool(self)

    def apply(self, move: Callable[[Tensor], Tensor]) -> None:
        """Move what is held to another device; dtypes stay as they are."""
        for name in ("counts", "sums", "recent", "dropped"):
            held = getattr(self, name)
            if held is not None:
                setattr(self, name, held.to(move(held.new_empty(0)).device))

    def sample(self, *, limit: int = SAMPLE_LIMIT) -> Tensor:
        """Recent valid rows over all processes in float32 at least, at most ``limit`` of each."""
        if self.recent is None:
            raise RuntimeError("sample() needs a forward pass first.")
        valid = ~torch.isnan(self.recent[:, 0])
        rows = self.recent if bool(valid.all()) else self.recent[valid]
        if num_processes() > 1:
            rows = rows[:limit]
        return gather_rows(at_least_float32(rows))

    def num_dropped(self) -> int:
        """Rows of this process that were neither masked nor finite."""
        return 0 if self.dropped is None else int(self.dropped)

    def totals(self) -> tuple[Tensor, Tensor | None]:
        """Counts, and sums where they are kept, over all processes; collective."""
        if self.counts is None:
            raise RuntimeError("totals() needs a forward pass first.")
        sums = None if self.sums is None else sum_over_processes(self.sums)
        return sum_over_processes(self.counts), sums
