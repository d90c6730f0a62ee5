"""ResidualVQ: each stage quantizes what the stages before it have left."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from softvq.checks import check_count, check_number
from softvq.functional.estimators import draw_uniform
from softvq.functional.precision import at_least_float32
from softvq.nn.alarms import CodebookWarning
from softvq.nn.arrangement import AnyQuantizer
from softvq.nn.base import Quantizer
from softvq.nn.kinds import build, describe, register
from softvq.nn.parts import (
    Several,
    check_parts,
    fits,
    hard_answers,
    prefixed,
    share_of_variance,
)
from softvq.nn.processes import num_processes
from softvq.types import QuantizerOutput


@register
class ResidualVQ(Several):
    """Stages of quantizers, the sum of whose codes stands for a vector.

    What a stage leaves is the vector less its *code*, in training too, and not less the value that
    the stage would give the decoder: so the loss of every stage reaches the input whole, and stages
    train on what they will get ("SoundStream", Zeghidour et al., 2021, which has the scheme). The
    decoder gets the codes of all stages but the last, and of the last what its ``forward_value``
    says: a blur or soft mean about the whole, not one a stage. Gradients of all stages add up.

    Args:
        quantizers: The stages, of one D; one object several times is a shared codebook.
        dropout: Share of the items of a training batch that keep only their first stages, a
            number of them that is drawn evenly from 1 to all. The rest have index -1.
        layout: "channels_last" (..., N, D) or "channels_first" (B, D, ...).
        seed: Of the dropout.

    Raises:
        ValueError: For stages of different D or index shapes, or dropout with one stage.

    Example:
        >>> from softvq.nn.hard import HardVQ
        >>> vq = ResidualVQ([HardVQ(8, 4, seed=seed) for seed in range(3)])
        >>> out = vq(torch.sin(torch.arange(80.0)).reshape(2, 10, 4))
        >>> out.indices.shape, vq.codes(out.indices[..., :2]).shape
        (torch.Size([2, 10, 3]), torch.Size([2, 10, 4]))
    """

    def __init__(
        self,
        quantizers: Sequence[AnyQuantizer],
        *,
        dropout: float = 0.0,
        layout: str = "channels_last",
        seed: int = 0,
    ) -> None:
        stages = check_parts("quantizers", quantizers)
        dims = [each.dim for each in stages]
        if len(set(dims)) > 1:
            raise ValueError(
                f"quantizers must all have the same dim, as each takes what the last one leaves; "
                f"got {dims}. Projected(vq, dim) changes a stage's."
            )
        super().__init__(stages, dims[0], layout=layout)
        self.dropout = check_number("dropout", dropout, least=0, most=1)
        self.seed = check_count("seed", seed, least=0)
        if dropout > 0 and len(stages) == 1:
            raise ValueError(
                f"dropout is {dropout:g} with one stage, which can not be left out: give more "
                "stages or dropout=0."
            )
        first = len(self.codes_per_index) // len(stages)
        self.optional = tuple(may or place >= first for place, may in enumerate(self.optional))

    def config(self) -> dict[str, Any]:
        """What the constructor was given, as plain JSON values."""
        return {
            "quantizers": [describe(each) for each in self.quantizers],  # type: ignore[arg-type]
            "order": list(self.order),
            "dropout": self.dropout,
            "layout": self.layout,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "ResidualVQ":
        """A fresh ResidualVQ of the stages and options that ``config`` names."""
        parts = dict(config)
        made = [build(each) for each in parts.pop("quantizers")]
        return cls([made[i] for i in parts.pop("order")], **parts)

    def look_up(self, indices: Integer[Tensor, "..."]) -> Tensor:
        """The sum of the codes of the stages whose indices are there, (..., D)."""
        axis = indices.ndim - len(self.index_tail)
        stages = self.parts[: indices.shape[axis]]
        found = zip(stages, indices.unbind(axis), strict=True)
        return _sum([at_least_float32(each.look_up(part)) for each, part in found])

    def fits(self, tail: tuple[int, ...]) -> bool:
        """Whether these are stages, all or the first of them, that take the rest."""
        return 1 <= tail[0] <= len(self.order) and all(fits(each, tail[1:]) for each in self.parts)

    @property
    def seen_variance(self) -> Tensor | None:
        """That of what the first stage gets, the whole."""
        return self.parts[0].seen_variance

    def _arrange(self, rows: Tensor, mask: Tensor | None) -> QuantizerOutput:
        whole, outputs = run_stages(self.parts, rows, mask=mask, depth=self._draw_depth(rows))
        return whole._replace(stats=prefixed("stage", outputs))

    def _draw_depth(self, rows: Tensor) -> Tensor | None:
        """How many stages each position keeps: one number for all of an item.

        The pass that places the codebooks leaves out none: the last stages might get no row.
        """
        if self.training and any(each.awaits_start for each in self.codebooks()):
            self._check_first(rows)
            return None
        if not (self.training and self.dropout > 0):
            return None
        num, items = len(self.order), len(rows) if rows.ndim > 1 else 1
        draw = draw_uniform(rows, num=2 * items, seed=self.seed).reshape(items, 2)
        depth = torch.where(draw[:, 0] < self.dropout, 1 + (draw[:, 1] * num).long(), num)
        wide = depth.clamp_max(num).reshape(items, *[1] * (rows.ndim - 2))
        return wide.expand(rows.shape[:-1]) if rows.ndim > 1 else wide[0]

    def _check_first(self, rows: Tensor) -> None:
        """Warn where a stage has a code for every row, so that the next are placed on nothing."""
        num_rows = num_processes() * rows.numel() // max(rows.shape[-1], 1)
        before = [each for part in self.parts[:-1] for each in part.modules()]
        most = max((each.num_codes for each in before if isinstance(each, Quantizer)), default=0)
        if 0 < num_rows <= most:
            soft = any(isinstance(each, Quantizer) and each.has_soft for each in self.modules())
            # After a warm-up the codes are placed again, on the rows of a batch.
            again = ", and Temperature(warmup_share=0), so that no later batch places them again"
            again = again if soft else ""
            warnings.warn(
                f"The stages are placed on {num_rows} rows, and one of them has {most} codes: it "
                "takes a code for every row and leaves nothing to place the next stages on, which "
                "then are far too small. Give more rows than codes a batch, or vq.start_(rows) "
                f"with many{again}.",
                CodebookWarning,
                stacklevel=2,
            )

    def _start(self, rows: Tensor, mask: Tensor | None) -> None:
        self._check_first(rows)
        rest, started = rows, set()
        for place, stage in zip(self.order, self.parts, strict=True):
            if place not in started:  # a shared codebook starts on what its first stage gets
                stage.start_(rest, mask=mask)
                started.add(place)
            with hard_answers(stage):
                found = stage(rest, mask=mask).indices
            rest = rest - stage.look_up(found).to(rest.dtype)

    def _tell_tail(self) -> str:
        num, *inner = self.index_tail
        rest = "".join(f", {each}" for each in inner)
        return f"(..., stages{rest}) with 1 to {num} stages, all or the first of them"


def run_stages(
    stages: Sequence[AnyQuantizer],
    rows: Float[Tensor, "... d"],
    *,
    mask: Bool[Tensor, "..."] | None = None,
    depth: Integer[Tensor, "..."] | None = None,
) -> tuple[QuantizerOutput, list[QuantizerOutput]]:
    """Let stages quantize one after another; each gets the rows less the codes before it.

    Args:
        stages: In their order.
        rows: In float32 at least; zero where the mask drops them.
        mask: True keeps a row.
        depth: How many of the first stages each row keeps; all, if None.

    Returns:
        What they give together, without stats, and the answer of each.

    Example:
        >>> from softvq.nn.hard import HardVQ
        >>> whole, each = run_stages([HardVQ(8, 2), HardVQ(8, 2)], torch.zeros(5, 2))
        >>> whole.indices.shape, len(each)
        (torch.Size([5, 2]), 2)
    """
    outputs, rest = [], rows
    # In the dtype of `look_up`, so that both round alike.
    total = value = rows.new_zeros(rows.shape, dtype=torch.float32)
    for place, stage in enumerate(stages):
        there = depth > place if depth is not None and place else None
        kept = mask if there is None else there if mask is None else mask & there
        out = stage(rest, mask=kept)
        code = at_least_float32(stage.look_up(out.indices)).detach()
        last = total + out.quantized.detach().to(code.dtype)
        value = last if there is None else torch.where(there[..., None], last, value)
        total, rest = total + code, rest - code.to(rest.dtype)
        outputs.append(out)
    # Exactly the value, since x - x is 0 for finite x; the gradient is the sum of the stages'.
    carriers = _sum([out.quantized - out.quantized.detach() for out in outputs])
    indices = torch.stack([out.indices for out in outputs], rows.ndim - 1)
    outputs = [
        out._replace(loss=_weigh(out.loss, stage, stages[0]))
        for stage, out in zip(stages, outputs, strict=True)
    ]
    loss = _sum([out.loss for out in outputs])
    return QuantizerOutput(value.to(rows.dtype) + carriers, indices, loss, {}), outputs


def _weigh(loss: Tensor, stage: AnyQuantizer, first: AnyQuantizer) -> Tensor:
    """A loss that has no unit counts by the share of the variance that its stage has to do with.

    Else the last stages, whose vectors are small, would pull the encoder hardest.
    """
    whole = first.seen_variance
    if stage is first or not stage.has_free_loss or whole is None:
        return loss
    return loss * share_of_variance(stage, whole)


def _sum(parts: list[Tensor]) -> Tensor:
    """The sum from left to right, so that equal parts give equal bits."""
    total = parts[0]
    for each in parts[1:]:
        total = total + each
    return total
