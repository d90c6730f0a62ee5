"""Residual stacks of a host, as one: `StackAdapter`.

A stack is a module with quantizers in a list, whose own result is what they give one after another,
each on what the codes before it leave. `softvq.hosts.stack_probe` finds them.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from softvq.functional.precision import at_least_float32, without_autocast
from softvq.hosts.adapter import Adapter
from softvq.hosts.geometry import CodebookAt, Geometry
from softvq.hosts.probed import fill_masked, read_call, read_mask, run_host
from softvq.hosts.tree import Path, Role, map_tree
from softvq.nn.residual import run_stages
from softvq.types import QuantizerOutput


@dataclass(frozen=True, kw_only=True)
class StackAdapter(Adapter):
    """A host's residual stack, which trains as one `softvq.nn.ResidualVQ`.

    Attributes:
        geometry: From the stack's input to rows and back; its codebook is the first stage's.
        stages: Path of each stage's module.
        places: The codebooks, each once.
        order: Which codebook each stage has.
        roles: Of the leaves of a result: "quantized", "indices" (form "first" or "last", where the
            stages are), "loss" (form "scalar" or "stages", ``value`` its shape) or "constant".
        skeleton: Containers of a result.
        depth: Name of the option that says how many stages a call takes, or None.
        averaged: Whether the host learns its codes by averages.
    """

    geometry: Geometry
    stages: tuple[str, ...]
    places: tuple[CodebookAt, ...]
    order: tuple[int, ...]
    roles: dict[Path, Role]
    skeleton: Any
    depth: str | None
    averaged: bool = False

    @property
    def family(self) -> str:  # type: ignore[override]
        """Named by the number of stages."""
        return f"residual stack of {len(self.stages)} stages, trained as one ResidualVQ"

    def codebooks(self) -> tuple[CodebookAt, ...]:
        """One a stage, but a shared one once."""
        return self.places

    def passes(self) -> tuple[int, ...]:
        """As many as stages share a codebook."""
        return tuple(self.order.count(place) for place in range(len(self.places)))

    def rows(
        self, host: nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[list[Tensor], Tensor | None]:
        """The vectors that the first stage gets, and the mask that the caller gave."""
        z, options = self._read(host, args, kwargs)
        return self.geometry.rows(host, z), read_mask(z, options)

    def freezes(self, host: nn.Module, *args: Any, **kwargs: Any) -> bool:
        """Whether this call, or the stages, freeze the codes."""
        _, options = self._read(host, args, kwargs)
        parts = [host.get_submodule(each) for each in self.stages]
        own = all(getattr(each, "freeze_codebook", False) for each in parts)
        return bool(options.get("freeze_codebook") or own)

    def hard(self, host: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """The host's own answer; for a codec what its two methods give."""
        return run_host(host, *args, **kwargs)

    def soft(self, host: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """The host's tree, with what its stages give as one stack."""
        _, options = self._read(host, args, kwargs)
        (rows,), mask = self.rows(host, *args, **kwargs)
        num = len(self.stages) if self.depth is None else options.get(self.depth, len(self.stages))
        cores: list[Any] = [host.softvq[place] for place in self.order[:num]]  # type: ignore[index]
        wide = at_least_float32(rows)
        if mask is not None:
            mask = mask.reshape(*mask.shape, *[1] * (rows.ndim - 1 - mask.ndim))
            mask = mask.expand(rows.shape[:-1])
            wide = torch.where(mask[..., None], wide, 0)
        with ExitStack() as stack, without_autocast(wide):
            if self.freezes(host, *args, **kwargs):
                for core in {id(each): each for each in cores}.values():
                    stack.enter_context(core.frozen())
            whole, outputs = run_stages(cores, wide, mask=mask)
        whole = whole._replace(quantized=whole.quantized.to(rows.dtype))
        return self.answer(host, *args, outputs=[whole, *outputs], **kwargs)

    def answer(
        self, host: nn.Module, *args: Any, outputs: list[QuantizerOutput], **kwargs: Any
    ) -> Any:
        """The host's tree, from the whole and its stages."""
        z, options = self._read(host, args, kwargs)
        whole, *stages = outputs
        quantized = self.geometry.output(host, [whole.quantized])
        mask = read_mask(z, options)
        quantized = fill_masked(quantized, z, mask, host=host, axis=self.geometry.axis)
        losses = torch.stack([each.loss for each in stages])

        def fill(path: Path, _: Any) -> Any:
            role = self.roles[path]
            if role.kind == "quantized":
                return quantized
            if role.kind == "indices":
                found = whole.indices if role.form == "last" else whole.indices.movedim(-1, 0)
                return found.to(role.dtype)
            if role.kind == "loss":
                shape = [len(stages) if each == len(self.stages) else each for each in role.value]
                each_or_sum = losses if role.form == "stages" else losses.sum()
                return each_or_sum.reshape(shape).to(role.dtype)
            return role.value

        return map_tree(fill, self.skeleton)

    def _read(self, host: nn.Module, args: tuple, kwargs: dict) -> tuple[Tensor, dict[str, Any]]:
        more = () if self.depth is None else (self.depth,)
        z, options = read_call(host, args, kwargs, more=more)
        if options.get("return_loss_breakdown"):
            raise ValueError(
                "return_loss_breakdown=True cannot be honoured by a swapped stack in training: its "
                "losses come by stage already."
            )
        num, most = options.get(self.depth, 1) if self.depth else 1, len(self.stages)
        if not isinstance(num, int) or isinstance(num, bool) or not 1 <= num <= most:
            raise ValueError(f"{self.depth} must be a number of stages, 1 to {most}; got {num!r}.")
        return z, options
