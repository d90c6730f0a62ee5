"""Token grids over a data set: which codes stand side by side, and what the tokens cost.

Shape letters: B grids, H W tokens of a grid, P pairs of codes that occur.
"""

import math
from typing import NamedTuple, final

import torch
from einops import rearrange
from jaxtyping import Int, Int64
from torch import Tensor

from softvq.checks import check_count
from softvq.measures.codebook import UseReport
from softvq.measures.reconstruction import PsnrReport
from softvq.measures.state import Measure
from softvq.nn.processes import gather_rows


class CooccurrenceReport(NamedTuple):
    """Pairs that occur, the most frequent first: rows of (code, its neighbour, times)."""

    horizontal: Int64[Tensor, "p 3"]
    """The neighbour stands on the right."""
    vertical: Int64[Tensor, "q 3"]
    """The neighbour stands below."""
    grids: int


@final
class Cooccurrence(Measure):
    """Counts of neighbouring codes; only pairs that occur are kept, at most K^2 of them.

    Args:
        num_codes: K.

    Example:
        >>> measure = Cooccurrence(4)
        >>> measure.update(torch.tensor([[[0, 1, 0, 1], [2, 2, 2, -1]]]))
        >>> report = measure.compute()
        >>> report.horizontal.tolist(), report.vertical.tolist()
        ([[0, 1, 2], [2, 2, 2], [1, 0, 1]], [[0, 2, 2], [1, 2, 1]])
    """

    def __init__(self, num_codes: int) -> None:
        self.num_codes = check_count("num_codes", num_codes)
        super().__init__()

    def _zeros(self) -> dict[str, Tensor]:
        none = torch.zeros(0, 2, dtype=torch.int64)
        return {
            "horizontal": none,
            "vertical": none,
            "grids": torch.zeros((), dtype=torch.int64),
        }

    def update(self, indices: Int[Tensor, "b h w"]) -> None:
        """Add a batch of token grids.

        Args:
            indices: Code of each token; a pair with -1 counts nowhere.

        Raises:
            ValueError: For an index out of [-1, K); nothing is added.
        """
        low, high = (int(end) for end in indices.aminmax()) if indices.numel() else (0, 0)
        if low < -1 or high >= self.num_codes:
            raise ValueError(
                f"indices must lie in [0, {self.num_codes}), or be -1 where none counts; got "
                f"values from {low} to {high}."
            )
        self._add_pairs("horizontal", indices[:, :, :-1], indices[:, :, 1:])
        self._add_pairs("vertical", indices[:, :-1], indices[:, 1:])
        self._add("grids", torch.tensor(len(indices), device=indices.device))

    def _add_pairs(self, name: str, first: Tensor, second: Tensor) -> None:
        first, second = first.flatten().to(torch.int64), second.flatten().to(torch.int64)
        kept = (first >= 0) & (second >= 0)
        pairs = first[kept] * self.num_codes + second[kept]
        rows = torch.stack([pairs, torch.ones_like(pairs)], dim=1)
        self._state[name] = _collect(torch.cat([self._state[name].to(rows.device), rows]))

    def merge(self, other: Measure) -> None:
        """Take in what another measure has seen; see `Measure.merge`.

        Raises:
            ValueError: If it is of another kind, or of another number of codes.
        """
        if not isinstance(other, Cooccurrence) or other.num_codes != self.num_codes:
            raise ValueError(
                f"other must be a Cooccurrence of {self.num_codes} codes; got "
                f"{type(other).__name__} of {getattr(other, 'num_codes', 'no')}."
            )
        for name in ("horizontal", "vertical"):
            mine = self._state[name]
            both = torch.cat([mine, other._state[name].to(mine.device)])
            self._state[name] = _collect(both)
        self._add("grids", other._state["grids"])

    def over_processes(self) -> "Cooccurrence":
        """A measure of what all processes have seen; collective."""
        whole = Cooccurrence(self.num_codes)
        for name in ("horizontal", "vertical"):
            whole._state[name] = _collect(gather_rows(self._state[name]))
        grids = gather_rows(rearrange(self._state["grids"], "-> 1 1"))
        whole._state["grids"] = grids.sum()
        return whole

    def compute(self) -> CooccurrenceReport:
        """All pairs so far, on the CPU."""
        state = self._state
        return CooccurrenceReport(
            self._sorted(state["horizontal"]), self._sorted(state["vertical"]), int(state["grids"])
        )

    def _sorted(self, rows: Tensor) -> Tensor:
        rows = rows.cpu()
        rows = rows[rows[:, 1].argsort(descending=True, stable=True)]
        pairs, times = rows.unbind(1)
        return torch.stack([pairs // self.num_codes, pairs % self.num_codes, times], dim=1)


def _collect(rows: Tensor) -> Tensor:
    """Rows of (pair, times), each pair once."""
    pairs, place = rows[:, 0].unique(return_inverse=True)
    times = torch.zeros_like(pairs).index_add_(0, place, rows[:, 1])
    return torch.stack([pairs, times], dim=1)


def find_neighbours(
    report: CooccurrenceReport, *, code: int, most: int = 8
) -> list[tuple[int, int]]:
    """Codes that stand beside, above or below a code most often.

    Args:
        report: Of a data set.
        code: The code; it may be its own neighbour.
        most: How many to give.

    Returns:
        (code, times), the most frequent first and equal ones by code.

    Example:
        >>> measure = Cooccurrence(4)
        >>> measure.update(torch.tensor([[[0, 1, 0, 1], [2, 2, 2, 2]]]))
        >>> find_neighbours(measure.compute(), code=0)
        [(1, 3), (2, 2)]
    """
    times: dict[int, int] = {}
    for pairs in (report.horizontal, report.vertical):
        for first, second, count in pairs[(pairs[:, :2] == code).any(1)].tolist():
            other = second if first == code else first
            times[other] = times.get(other, 0) + count
    return sorted(times.items(), key=lambda item: (-item[1], item[0]))[:most]


class RatePoint(NamedTuple):
    """A point of the rate-distortion plane: what the tokens cost, and what they give."""

    bits_per_pixel: float
    """Names of equal length, log2 K a token."""
    entropy_bits_per_pixel: float
    """Names as short as the frequencies of the codes allow."""
    error: float
    """Mean squared error over all images, in units of the range's width."""
    psnr_of_mean: float
    psnr_mean_over_images: float
    tokens_per_image: int
    pixels_per_image: int
    images: int


def rate_point(
    use: UseReport, quality: PsnrReport, *, tokens_per_image: int, pixels_per_image: int
) -> RatePoint:
    """The rate-distortion point of a model on a data set.

    Args:
        use: Of its codebook.
        quality: Of its hard reconstructions.
        tokens_per_image: H W of the token grid, times the codes of a token where it has several.
        pixels_per_image: Height times width.

    Returns:
        The point.

    Raises:
        ValueError: For numbers that are not positive.

    Example:
        >>> from softvq.measures import CodebookUse, Psnr
        >>> use, quality = CodebookUse(512), Psnr(low=0.0, high=1.0)
        >>> use.update(torch.arange(64))
        >>> quality.update(torch.full((1, 1, 32, 32), 0.5), torch.full((1, 1, 32, 32), 0.6))
        >>> point = rate_point(
        ...     use.compute(), quality.compute(), tokens_per_image=64, pixels_per_image=1024
        ... )
        >>> point.bits_per_pixel, point.entropy_bits_per_pixel, round(point.error, 6)
        (0.5625, 0.375, 0.01)
    """
    tokens = check_count("tokens_per_image", tokens_per_image)
    pixels = check_count("pixels_per_image", pixels_per_image)
    error = math.nan if math.isnan(quality.of_mean) else 10 ** (-quality.of_mean / 10)
    return RatePoint(
        bits_per_pixel=use.bits_per_token * tokens / pixels,
        entropy_bits_per_pixel=use.entropy_bits_hard * tokens / pixels,
        error=error,
        psnr_of_mean=quality.of_mean,
        psnr_mean_over_images=quality.mean_over_images,
        tokens_per_image=tokens,
        pixels_per_image=pixels,
        images=quality.images,
    )
