"""ResidualVQ: each stage quantizes what the stages before it have left."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Integer
from torch import Tensor

from softvq.checks import check_count, check_number
from softvq.functional.estimators import draw_uniform
from softvq.nn.arrangement import AnyQuantizer, Several, check_parts, hard_answers, prefixed
from softvq.nn.kinds import build, describe, register
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
        return _sum(
            [each.look_up(part) for each, part in zip(stages, indices.unbind(axis), strict=True)]
        )

    def _arrange(self, rows: Tensor, mask: Tensor | None) -> QuantizerOutput:
        depth = self._draw_depth(rows)
        outputs, rest = [], rows
        total = value = torch.zeros_like(rows)
        for place, stage in enumerate(self.parts):
            kept = mask
            if depth is not None and place:
                kept = depth > place if mask is None else mask & (depth > place)
            out = stage(rest, mask=kept)
            code = stage.look_up(out.indices).detach().to(rest.dtype)
            last = total + out.quantized.detach()
            value = last if kept is None else torch.where(kept[..., None], last, value)
            total, rest = total + code, rest - code
            outputs.append(out)
        # Exactly the value, since x - x is 0 for finite x; the gradient is the sum of the stages'.
        carriers = _sum([out.quantized - out.quantized.detach() for out in outputs])
        return QuantizerOutput(
            value + carriers,
            torch.stack([out.indices for out in outputs], rows.ndim - 1),
            _sum([out.loss for out in outputs]),
            prefixed("stage", outputs),
        )

    def _draw_depth(self, rows: Tensor) -> Tensor | None:
        """How many stages each position keeps: one number for all of an item.

        The pass that places the codebooks leaves out none: the last stages might get no row.
        """
        places = any(each.awaits_start for each in self.codebooks())
        if not (self.training and self.dropout > 0) or places:
            return None
        num = len(self.order)
        draw = draw_uniform(rows, num=2 * len(rows), seed=self.seed).reshape(len(rows), 2)
        depth = torch.where(draw[:, 0] < self.dropout, 1 + (draw[:, 1] * num).long(), num)
        wide = depth.clamp_max(num).reshape(-1, *[1] * (rows.ndim - 2))
        return wide.expand(rows.shape[:-1])

    def _start(self, rows: Tensor, mask: Tensor | None) -> None:
        rest, started = rows, set()
        for place, stage in zip(self.order, self.parts, strict=True):
            if place not in started:  # a shared codebook starts on what its first stage gets
                stage.start_(rest, mask=mask)
                started.add(place)
            with hard_answers(stage):
                found = stage(rest, mask=mask).indices
            rest = rest - stage.look_up(found).to(rest.dtype)

    def _check_tail(self, indices: Tensor) -> None:
        tail = self.index_tail
        came = tuple(indices.shape[indices.ndim - len(tail) :]) if indices.ndim >= len(tail) else ()
        if not came or came[1:] != tail[1:] or not 1 <= came[0] <= tail[0]:
            inner = "".join(f", {each}" for each in tail[1:])
            raise ValueError(
                f"indices must be (..., stages{inner}) with 1 to {tail[0]} stages, all or the "
                f"first of them; got shape {tuple(indices.shape)}."
            )


def _sum(parts: list[Tensor]) -> Tensor:
    """The sum from left to right, so that equal parts give equal bits."""
    total = parts[0]
    for each in parts[1:]:
        total = total + each
    return total
