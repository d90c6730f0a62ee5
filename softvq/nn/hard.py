"""HardVQ: the quantizers that SoftVQ is measured against."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from softvq.checks import check_kind, check_number, choose
from softvq.functional.assign import count_codes, nearest_code
from softvq.functional.ema import CodebookAverages, codes_from_averages, update_averages
from softvq.functional.losses import commitment_loss, mean_of_rows
from softvq.functional.precision import at_least_float32
from softvq.functional.start import kmeans
from softvq.nn.alarms import FEWER, KEEP_REVIVING, REVIVE, Advice
from softvq.nn.base import Quantizer, RowsOutput
from softvq.nn.processes import from_first_process
from softvq.nn.revival import Revival, Revived
from softvq.nn.stats import codebook_stats
from softvq.nn.tally import Tally

ESTIMATORS = ("ste", "rotation")
CODEBOOKS = ("gradient", "ema")
STARTS = ("kmeans", "uniform")
LEAST_NORM = 1e-6


@dataclass(frozen=True, kw_only=True)
class Learning:
    """How rows and codes of a `HardVQ` learn from each other.

    Attributes:
        commitment: Weight of the rows' pull to their codes.
        decay: Of the averages of ``codebook="ema"``, in [0, 1).
        start: "kmeans" on the first training batch, or "uniform" in +-1/K as first published.
    """

    commitment: float = 0.25
    decay: float = 0.9
    start: str = "kmeans"

    def __post_init__(self) -> None:
        check_number("Learning.commitment", self.commitment, least=0)
        check_number("Learning.decay", self.decay, least=0, most=1 - 1e-6)
        choose("Learning.start", self.start, STARTS)


class HardVQ(Quantizer):
    """Nearest-code quantizer, VQ-VAE (van den Oord, Vinyals and Kavukcuoglu, 2017) and its cures.

    Args:
        num_codes: K.
        dim: D, features of a vector.
        estimator: "ste" passes the decoder's gradient on unchanged; "rotation" turns and scales it
            as the row would be turned into its code (Fifty et al., arXiv 2410.06424).
        codebook: "gradient" learns codes by the codebook loss, "ema" by averages of their rows.
        learning: Commitment, decay of the averages, and the start.
        revival: When unused codes are put back among the rows; None never does.
        layout: "channels_last" (..., N, D) or "channels_first" (B, D, ...).
        seed: Of the start and of revival.

    Raises:
        ValueError: For sizes, names or numbers that do not make sense.

    Example:
        >>> vq = HardVQ(num_codes=8, dim=4, codebook="ema")
        >>> vq(torch.sin(torch.arange(80.0)).reshape(2, 10, 4)).indices.shape
        torch.Size([2, 10])
    """

    ema_counts: Tensor
    ema_sums: Tensor

    def __init__(
        self,
        num_codes: int,
        dim: int,
        *,
        estimator: str = "ste",
        codebook: str = "ema",
        learning: Learning | None = None,
        revival: Revival | None = Revival(),  # noqa: B008 - frozen
        layout: str = "channels_last",
        seed: int = 0,
    ) -> None:
        super().__init__(num_codes, dim, revival=revival, layout=layout, seed=seed)
        self.estimator = choose("estimator", estimator, ESTIMATORS)
        self.learns_by = choose("codebook", codebook, CODEBOOKS)
        options = Learning() if learning is None else learning
        self.learning = check_kind("learning", options, Learning)
        first = self._draw(torch.rand) * 2 - 1
        if self.learns_by == "ema":
            self.register_buffer("codebook", first / num_codes)
            self.register_buffer("ema_counts", torch.ones(num_codes, dtype=torch.float32))
            self.register_buffer("ema_sums", self.codebook.clone())
            self._tally = Tally(self.num_codes, with_sums=True)
        else:
            self.codebook = nn.Parameter((first / num_codes).to(torch.get_default_dtype()))

    def config(self) -> dict[str, Any]:
        """What the constructor was given, as plain JSON values."""
        return {
            "num_codes": self.num_codes,
            "dim": self.dim,
            "estimator": self.estimator,
            "codebook": self.learns_by,
            "learning": asdict(self.learning),
            "revival": None if self.revival is None else asdict(self.revival),
            "layout": self.layout,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "HardVQ":
        """A fresh HardVQ of the sizes and options that ``config`` names.

        Example:
            >>> HardVQ.from_config(HardVQ(8, 4).config()).estimator
            'ste'
        """
        parts = dict(config)
        revival = parts.pop("revival")
        learning = parts.pop("learning", None)
        if learning is None:  # of a file that was written before they were grouped
            learning = {name: parts.pop(name) for name in ("commitment", "decay", "start")}
        return cls(
            learning=Learning(**learning),
            revival=None if revival is None else Revival(**revival),
            **parts,
        )

    def _quantize(self, rows: Tensor, keep: Tensor | None) -> RowsOutput:
        indices = nearest_code(rows.detach(), self.codebook, mask=keep)
        code = self.codebook[indices.clamp_min(0)]
        loss = commitment_loss(
            rows,
            code,
            commitment=self.learning.commitment,
            learn=self.learns_by == "gradient",
            mask=keep,
        )
        quantized = code.detach()
        if self.training:
            carrier = rotate(rows, quantized) if self.estimator == "rotation" else rows
            quantized = quantized.to(rows.dtype) + (carrier - carrier.detach())
        return RowsOutput(quantized, indices, loss, self._stats(rows, code, indices, keep))

    @torch.no_grad()
    def _stats(
        self, rows: Tensor, code: Tensor, indices: Tensor, keep: Tensor | None
    ) -> dict[str, Tensor]:
        ols = (rows - code).float().square().sum(-1)
        variance = _total_variance(rows.float(), keep)
        shared = codebook_stats(self, indices, variance=variance)
        return {"ols": mean_of_rows(ols, keep), **shared}

    def _place(self, rows: Tensor) -> None:
        if self.learning.start == "uniform" or self.is_frozen:
            return
        codes = from_first_process(
            kmeans(rows, self.num_codes, generator=self._generator(int(self.updates)))
        )
        self._put(codes)
        if self.learns_by == "ema":
            counts = count_codes(nearest_code(rows, codes), num_codes=self.num_codes)
            self.ema_counts.copy_(counts.clamp_min(1))
            self.ema_sums.copy_(codes * self.ema_counts[:, None])

    def _took_codes(self) -> None:
        if self.learns_by == "ema":
            self.ema_counts.fill_(1.0)
            self.ema_sums.copy_(self.codebook)

    def _learn(self, rows: Tensor, counts: Tensor, sums: Tensor | None) -> None:
        if self.learns_by == "gradient" or sums is None or self.is_frozen:
            return
        averages = update_averages(
            CodebookAverages(self.ema_counts, self.ema_sums),
            counts=counts.float(),
            sums=sums,
            decay=self.learning.decay,
        )
        self.ema_counts.copy_(averages.counts)
        self.ema_sums.copy_(averages.sums)
        self.codebook.copy_(codes_from_averages(averages))

    def _replace(self, revived: Revived) -> None:
        super()._replace(revived)
        if self.learns_by == "ema":
            self.ema_counts[revived.codes] = 1.0
            self.ema_sums[revived.codes] = revived.rows.to(self.ema_sums.dtype)

    def _advise(self) -> Advice:
        start = "place the codes by k-means on more rows, with start_(rows)"
        if self.learning.start == "uniform":
            start = "start them by Learning(start='kmeans')"
        keep, more = KEEP_REVIVING, "let more of them count as dead by Revival(threshold=...)"
        if self.revival is None:
            keep = more = REVIVE
        return Advice(
            "they started or were drawn together", (keep, start, FEWER), (more, start, FEWER)
        )

    def extra_repr(self) -> str:
        """Sizes, layout, estimator and codebook, for ``print(model)``."""
        kind = f"estimator={self.estimator!r}, codebook={self.learns_by!r}"
        return f"{super().extra_repr()}, {kind}"


def _total_variance(rows: Tensor, keep: Tensor | None) -> Tensor:
    """Variance over the kept rows, summed over features; masked rows hold zeros."""
    mean = rows.mean(0) if keep is None else rows.sum(0) / keep.sum().clamp_min(1)
    return mean_of_rows((rows - mean).square().sum(-1), keep)


def rotate(rows: Float[Tensor, "n d"], code: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """The code of each row, as the row turned and scaled by a constant map.

    With r the unit bisector of row and code, R = I - 2 r r' + 2 (code/|code|) (row/|row|)' turns
    one into the other; R and the ratio of norms take no gradient (arXiv 2410.06424).

    Args:
        rows: Rows, attached.
        code: Their codes.

    Returns:
        The codes up to rounding, with gradient to the rows. Rows or codes of no length have no
        direction: there the result is the row itself, and its gradient passes unchanged.

    Example:
        >>> turned = rotate(torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 1.0]]))
        >>> [round(x, 4) + 0.0 for x in turned[0].tolist()]
        [0.0, 1.0]
    """
    rows = at_least_float32(rows)
    with torch.no_grad():
        code = code.to(rows.dtype)
        row_norm, code_norm = (each.norm(dim=-1, keepdim=True) for each in (rows, code))
        directed = (row_norm > LEAST_NORM) & (code_norm > LEAST_NORM)
        unit, target = rows / row_norm.clamp_min(LEAST_NORM), code / code_norm.clamp_min(LEAST_NORM)
        bisector = unit + target
        bisector = bisector / bisector.norm(dim=-1, keepdim=True).clamp_min(LEAST_NORM)
        scale = code_norm / row_norm.clamp_min(LEAST_NORM)
    reflected = rows - 2 * (rows * bisector).sum(-1, keepdim=True) * bisector
    turned = reflected + 2 * (rows * unit).sum(-1, keepdim=True) * target
    return torch.where(directed, scale * turned, rows)
