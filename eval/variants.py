"""Forms of `SoftVQ` that `eval.factors` tries and that are not shipped, since none was better."""

from typing import Any

import torch
from torch import Tensor

from softvq import Cosine, Projected, Scaled, SoftVQ
from softvq.functional import count_codes, nearest_code, soft_assign
from softvq.functional.ema import CodebookAverages, codes_from_averages, update_averages
from softvq.functional.estimators import draw_normal
from softvq.functional.losses import mean_of_rows
from softvq.nn.base import RowsOutput
from softvq.nn.revival import Revived
from softvq.nn.tally import Tally
from softvq.types import SoftCodes
from train.quantizers import Setting, build_softvq

AVERAGES_DECAY = 0.8  # the best of EMA codebooks in this comparison
OTHER_DRAWS = 1 << 48  # a key that the blur's draws never have


class StraightThrough(SoftVQ):
    """The reconstruction's gradient reaches the row whole, and no code."""

    share = 1.0

    def _decode(self, rows: Tensor, book: Tensor, codes: SoftCodes) -> Tensor:
        decoded = super()._decode(rows, book, codes)
        if not self.training or self.mode is not None:
            return decoded
        straight = decoded.detach() + (rows - rows.detach())
        return torch.lerp(decoded, straight, self.share)


class HalfStraight(StraightThrough):
    """Half of that gradient, and half of the blur's."""

    share = 0.5


class CodesOnEnergy(SoftVQ):
    """Codes learn by the free energy alone, not by the reconstruction."""

    def _decode(self, rows: Tensor, book: Tensor, codes: SoftCodes) -> Tensor:
        return super()._decode(rows, book.detach(), codes)


class MixedValues(SoftVQ):
    """Half of the tokens, drawn anew at each step, decode the soft mean."""

    def _decode(self, rows: Tensor, book: Tensor, codes: SoftCodes) -> Tensor:
        decoded = super()._decode(rows, book, codes)
        if not self.training or self.mode is not None:
            return decoded
        key = self.updates + (self.seed << 32) + OTHER_DRAWS
        coin = draw_normal(rows[:, :1].detach(), key=key)
        return torch.where(coin > 0, codes.mean, decoded)


class Sampled(SoftVQ):
    """Training draws a code by its weight instead of taking the nearest."""

    def _quantize(self, rows: Tensor, keep: Tensor | None) -> RowsOutput:
        self.sampler = self._generator(int(self.updates)) if self.training else None
        return super()._quantize(rows, keep)


class SpreadTwice(SoftVQ):
    """V is weighed twice, as a loss of its own whose gradient goes through the weights."""

    def _quantize(self, rows: Tensor, keep: Tensor | None) -> RowsOutput:
        out = super()._quantize(rows, keep)
        if not self.training or bool(self.schedule.warming):
            return out
        soft = soft_assign(rows, self.codebook, temperature=self.schedule.levels[-1], mask=keep)
        spread = mean_of_rows(soft.spread, keep) / self.schedule.variance
        return out._replace(loss=out.loss + self.loss.weight * spread)


class RandomStart(SoftVQ):
    """Codes start on rows drawn at random, not by k-means."""

    def _find_codes(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        if len(rows) < self.num_codes:
            return super()._find_codes(rows, generator)
        return rows[torch.randperm(len(rows), generator=generator)[: self.num_codes]]


class AveragedToo(SoftVQ):
    """Codes are brought to running averages of their rows after each step of the optimizer."""

    average_counts: Tensor
    average_sums: Tensor

    def __init__(self, num_codes: int, dim: int, **options: Any) -> None:  # noqa: ANN401 - SoftVQ's
        super().__init__(num_codes, dim, **options)
        self.register_buffer("average_counts", torch.ones(num_codes))
        self.register_buffer("average_sums", self.codebook.detach().clone())
        self._tally = Tally(num_codes, with_sums=True)

    def _place(self, rows: Tensor) -> None:
        super()._place(rows)
        codes = self.codebook.detach()
        counts = count_codes(nearest_code(rows, codes), num_codes=self.num_codes)
        self.average_counts.copy_(counts.clamp_min(1))
        self.average_sums.copy_(codes * self.average_counts[:, None])

    @torch.no_grad()
    def _learn(self, rows: Tensor, counts: Tensor, sums: Tensor | None) -> None:
        super()._learn(rows, counts, sums)
        if sums is None or bool(self.schedule.warming):
            return
        averages = update_averages(
            CodebookAverages(self.average_counts, self.average_sums),
            counts=counts.float(),
            sums=sums,
            decay=AVERAGES_DECAY,
        )
        self.average_counts.copy_(averages.counts)
        self.average_sums.copy_(averages.sums)
        self.codebook.copy_(codes_from_averages(averages))

    @torch.no_grad()
    def _replace(self, revived: Revived) -> None:
        super()._replace(revived)
        self.average_counts[revived.codes] = 1.0
        self.average_sums[revived.codes] = revived.rows.to(self.average_sums.dtype)


def make_variant(kind: type[SoftVQ], setting: Setting) -> SoftVQ:
    """A variant with SoftVQ's defaults for a run."""
    return kind.from_config(build_softvq(setting, {}).config())


def make_cosine(setting: Setting) -> Cosine:
    """SoftVQ on vectors and codes of length one."""
    return Cosine(_inside(setting), layout="channels_first")


def make_projected(setting: Setting, *, dim: int) -> Projected:
    """SoftVQ in fewer dimensions, with learned linear maps around it."""
    return Projected(_inside(setting, dim=dim), setting.dim, layout="channels_first")


def make_scaled(setting: Setting) -> Scaled:
    """SoftVQ on vectors divided by their own deviation."""
    return Scaled(_inside(setting), layout="channels_first")


def _inside(setting: Setting, **changes: int) -> SoftVQ:
    options = {**build_softvq(setting, {}).config(), "layout": "channels_last", **changes}
    return SoftVQ.from_config(options)
