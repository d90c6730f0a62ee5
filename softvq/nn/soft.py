"""SoftVQ: a codebook with Boltzmann assignment, differentiable end to end."""

from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from softvq.checks import check_kind, choose
from softvq.functional.assign import soft_assign_and_use
from softvq.functional.estimators import blur_code, draw_normal
from softvq.functional.sampling import draw_codes
from softvq.functional.start import kmeans
from softvq.nn.alarms import FEWER, KEEP_REVIVING, REVIVE, Advice, describe_warmup
from softvq.nn.base import Quantizer, RowsOutput
from softvq.nn.loss import Loss, soft_loss
from softvq.nn.processes import from_first_process, process_index
from softvq.nn.revival import Revival, Revived
from softvq.nn.schedule import SCALE_EVERY, SCALE_MEMORY, TemperatureState
from softvq.nn.stats import codebook_stats, soft_stats
from softvq.nn.temperature import Temperature
from softvq.types import SoftCodes

FORWARD_VALUES = ("blurred", "hard", "soft")
HARD_GRADIENT = 2.5


class SoftVQ(Quantizer):
    """Soft codebook: weights softmax(-|z - p|^2 / T) over K codes, T solved for a target entropy.

    DDCL (Cirrincione and Kumar, arXiv 2604.03850, 2026): the codes settle on the free energy at T,
    and their use is evened by its entropy. What training decodes is ``forward_value``: the nearest
    code seen through noise that fades (``"blurred"``, see
    `softvq.functional.estimators.blur_code`), the nearest code with the soft mean's exact gradient,
    at a temperature of its own (``"hard"``), or the soft mean itself (``"soft"``, as DDCL is
    published). For the first ``temperature.warmup_share`` of the run it decodes the rows
    themselves. Eval decodes the nearest code.

    Args:
        num_codes: K.
        dim: D, features of a vector.
        temperature: What T should be over the run.
        revival: When unused codes are put back among the rows; None never does.
        loss: Weights of the loss.
        forward_value: "blurred", "hard" or "soft", what training decodes.
        layout: "channels_last" (..., N, D) or "channels_first" (B, D, ...).
        seed: Of the start, revival and sampling.

    Raises:
        ValueError: For sizes, names or numbers that do not make sense.

    Example:
        >>> vq = SoftVQ(num_codes=8, dim=4)
        >>> out = vq(torch.sin(torch.arange(80.0)).reshape(2, 10, 4))
        >>> out.quantized.shape, out.indices.shape
        (torch.Size([2, 10, 4]), torch.Size([2, 10]))
    """

    has_soft = True

    def __init__(
        self,
        num_codes: int,
        dim: int,
        *,
        temperature: Temperature | None = None,
        revival: Revival | None = Revival(),  # noqa: B008 - frozen
        loss: Loss | None = None,
        forward_value: str = "blurred",
        layout: str = "channels_last",
        seed: int = 0,
    ) -> None:
        super().__init__(num_codes, dim, revival=revival, layout=layout, seed=seed)
        self.loss = Loss() if loss is None else check_kind("loss", loss, Loss)
        self.forward_value = choose("forward_value", forward_value, FORWARD_VALUES)
        first = self._draw(torch.randn) / dim**0.5
        self.codebook = nn.Parameter(first.to(torch.get_default_dtype()))
        options = Temperature() if temperature is None else temperature
        check_kind("temperature", options, Temperature)
        if forward_value == "hard" and options.gradient is None:
            options = replace(options, gradient=HARD_GRADIENT)
        self.schedule = TemperatureState(options)
        self.schedule.guess_(self.codebook)

    def config(self) -> dict[str, Any]:
        """What the constructor was given, as plain JSON values."""
        return {
            "num_codes": self.num_codes,
            "dim": self.dim,
            "temperature": asdict(self.schedule.options),
            "revival": None if self.revival is None else asdict(self.revival),
            "loss": asdict(self.loss),
            "forward_value": self.forward_value,
            "layout": self.layout,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "SoftVQ":
        """A fresh SoftVQ of the sizes and options that ``config`` names.

        Example:
            >>> SoftVQ.from_config(SoftVQ(8, 4).config())
            SoftVQ(
              num_codes=8, dim=4, layout='channels_last', forward_value='blurred'
              (schedule): TemperatureState()
            )
        """
        return cls(**read_options(config))

    @property
    def has_free_loss(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the loss is the same for vectors and codes of any scale."""
        return self.loss.unit == "variance"

    @property
    def seen_variance(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Total variance of the vectors of late, 0-dim float32."""
        return self.schedule.variance

    @property
    def temperature(self) -> Tensor:
        """T of the gradient path, 0-dim float32."""
        return self.schedule.levels[0]

    def _quantize(self, rows: Tensor, keep: Tensor | None) -> RowsOutput:
        book = self.codebook
        codes, use = soft_assign_and_use(rows, book, temperature=self.schedule.levels, mask=keep)
        if self.sampler is not None:
            drawn = draw_codes(
                rows, book, temperature=self.temperature, generator=self.sampler, mask=keep
            )
            codes = codes._replace(indices=drawn)
        decoded, settled = _at_level(codes, 0), _at_level(codes, -1)
        loss = soft_loss(
            rows,
            settled,
            use=use[0],
            codebook=book,
            variance=self.schedule.variance,
            options=self.loss,
            mask=keep,
        )
        quantized = self._decode(rows, book, decoded)
        if self.training and self.mode is None:
            warming = self.schedule.warming.bool()
            quantized = torch.where(warming, rows, quantized)
            loss = torch.where(warming, 0, loss)
        stats = {
            **soft_stats(
                rows, decoded, settled=settled, use=use[0], schedule=self.schedule, mask=keep
            ),
            **codebook_stats(self, codes.indices, variance=self.schedule.variance),
        }
        return RowsOutput(quantized, codes.indices, loss, stats)

    def _decode(self, rows: Tensor, book: Tensor, codes: SoftCodes) -> Tensor:
        mean, chosen = codes.mean, book.index_select(0, codes.indices.clamp_min(0))
        hard = chosen.detach()
        mode = self.mode or (self.forward_value if self.training else "hard")
        if mode == "soft":
            return mean
        if self.training and mode == "blurred":
            key = self.updates + (self.seed << 32)
            draw = draw_normal(hard, key=key, first_row=process_index() * len(rows))
            return blur_code(rows, chosen, noise=self.schedule.noise, draw=draw)
        if self.training:
            # Exactly the code, since x - x is 0 for finite x; its gradient is the soft mean's.
            return hard + (mean - mean.detach())
        return hard

    def train(self, mode: bool = True) -> "SoftVQ":
        """As of every module; who leaves training in the warm-up is told what codes are worth."""
        if not mode:
            self._warn_of_warmup("eval")
        return super().train(mode)

    def _warn_of_warmup(self, use: str) -> None:
        """Warn where codes are about to be used that nothing was learned for; once for each use."""
        updates = self.updates
        if updates.device.type == "meta" or torch.compiler.is_compiling():
            return
        if int(updates) and bool(self.schedule.warming) and not self.is_frozen:
            options = self.schedule.options
            message = describe_warmup(
                int(updates), steps=options.warmup_steps, share=options.warmup_share
            )
            self._warn_once(f"warm-up, {use}", message)

    @torch.no_grad()
    def _start(self, z: Tensor, mask: Tensor | None, *, again: bool) -> None:
        super()._start(z, mask, again=again)
        if again and not self._awaits_start:
            self.hits.fill_(1.0)
            self.schedule.warming.fill_(False)

    def _place(self, rows: Tensor) -> None:
        generator = self._generator(int(self.updates))
        if not self.is_frozen:
            self._put(from_first_process(self._find_codes(rows, generator)))
        self._follow(rows, generator, memory=0.0)

    def _find_codes(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        return kmeans(rows, self.num_codes, generator=generator)

    def _took_codes(self) -> None:
        self.schedule.guess_(self.codebook)
        self.schedule.warming.fill_(False)

    def _learn(self, rows: Tensor, counts: Tensor, sums: Tensor | None) -> None:
        if len(rows) == 0:
            return
        updates = int(self.updates)
        if bool(self.schedule.warming):
            self._awaits_start = self._is_warm(self.schedule.warming)
            return
        self._follow(rows, self._generator(updates), memory=SCALE_MEMORY)
        if updates % SCALE_EVERY == 0:
            highest, critical, variance = torch.stack(
                [self.schedule.levels.max(), self.schedule.critical, self.schedule.variance]
            ).tolist()
            self._alarm(
                self._alarms.check_temperature(
                    highest,
                    critical=critical,
                    variance=variance,
                    unit=self.schedule.options.unit,
                )
            )

    def _follow(self, rows: Tensor, generator: torch.Generator, *, memory: float) -> None:
        self.schedule.follow_(
            rows,
            self.codebook,
            updates=int(self.updates),
            generator=generator,
            assignment_grad=self.loss.assignment_grad,
            memory=memory,
        )

    def _is_warm(self, warming: Tensor) -> bool:
        """Whether the warm-up is over: then the next training pass places the codes anew.

        That pass and not an update, so that a stage of `ResidualVQ` gets what those before it
        leave.
        """
        return bool(warming) and int(self.updates) >= self.schedule.options.warmup_steps

    def _is_to_start_again(self) -> bool:
        return self._is_warm(self.schedule.warming)

    def _note_start(self, state_dict: dict[str, Any], prefix: str) -> None:
        super()._note_start(state_dict, prefix)
        warming = state_dict.get(f"{prefix}schedule.warming")  # which loads after this
        if self._is_started and warming is not None and warming.device.type != "meta":
            self._awaits_start = self._is_warm(warming)

    def _revive(self, rows: Tensor, generator: torch.Generator) -> Revived | None:
        return None if bool(self.schedule.warming) else super()._revive(rows, generator)

    def _check_codes(self, num_rows: int) -> None:
        if not bool(self.schedule.warming):  # codes that do not train yet are no fault
            super()._check_codes(num_rows)

    def _advise(self) -> Advice:
        keep, longer = KEEP_REVIVING, "let revival go on for longer by Revival(until=...)"
        if self.revival is None:
            keep = longer = REVIVE
        lower = "lower the temperature"
        return Advice("T is or was too high to part them", (lower, keep, FEWER), (longer, FEWER))

    def _revival_ends(self) -> float:
        return (
            0.0 if self.revival is None else self.revival.until * self.schedule.options.anneal_steps
        )

    def extra_repr(self) -> str:
        """Sizes, layout and forward value, for ``print(model)``."""
        return f"{super().extra_repr()}, forward_value={self.forward_value!r}"


def warn_of_warmup(model: nn.Module, use: str) -> None:
    """Let every soft codebook of ``model`` warn if it is in its warm-up, once for each ``use``."""
    for module in model.modules():
        if isinstance(module, SoftVQ):
            module._warn_of_warmup(use)


def _at_level(codes: SoftCodes, level: int) -> SoftCodes:
    return SoftCodes(
        codes.mean[level],
        codes.spread[level],
        codes.free_energy[level],
        codes.entropy[level],
        codes.indices,
    )


def read_options(config: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a soft quantizer from its config, whose parts are plain JSON there.

    Example:
        >>> read_options(SoftVQ(8, 4).config())["loss"].weight
        0.04
    """
    parts = dict(config)
    temperature = dict(parts.pop("temperature"))
    for name in ("gradient", "prototypes", "noise"):
        if isinstance(temperature[name], list):  # JSON has no tuples
            temperature[name] = tuple(temperature[name])
    parts["temperature"] = Temperature(**temperature)
    if parts.get("revival") is not None:
        parts["revival"] = Revival(**parts["revival"])
    # Before there was a unit the loss was in absolute terms.
    before = {} if "unit" in parts["loss"] else {"unit": "absolute", "weight": 0.25}
    parts["loss"] = Loss(**{**before, **parts["loss"]})
    return parts
