"""Walking through a model from the outside in, and probing what may be a quantizer."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from softvq.hosts.adapter import Adapter
from softvq.hosts.candidates import may_quantize
from softvq.hosts.probe import probe
from softvq.hosts.probed import ProbedAdapter
from softvq.hosts.stack_probe import probe_stack
from softvq.nn.base import Quantizer

Choose = Callable[[nn.Module], Adapter | None]


@dataclass(frozen=True)
class Finding:
    """A module that was looked at and left.

    Attributes:
        name: In the model.
        kind: Its class.
        reason: Why.
        is_quantizer: Whether it surely is one.
    """

    name: str
    kind: str
    reason: str
    is_quantizer: bool = False

    def __str__(self) -> str:
        return f"{self.name or 'the model itself'} ({self.kind}): {self.reason}"


def find_quantizers(
    model: nn.Module, *, adapter: Choose | None = None, only: Callable[[str], bool] | None = None
) -> tuple[list[tuple[str, nn.Module, Adapter]], list[Finding]]:
    """Quantizers with their adapters, and what was looked at and left; changes nothing.

    Args:
        model: Searched from the outside in.
        adapter: As in `swap`.
        only: As in `swap`.
    """
    found: list[tuple[str, nn.Module, Adapter]] = []
    findings: list[Finding] = []
    settled: list[str] = []
    for name, module in model.named_modules():
        inside = any(each == "" or name.startswith(f"{each}.") for each in settled)
        if inside or isinstance(module, Quantizer | nn.ModuleList | nn.Sequential):
            continue
        own = None if adapter is None else adapter(module)
        if own is None and not may_quantize(module):
            continue
        if only is not None and not only(name):
            continue
        said = None if own is not None else probe(module)
        chosen = own or (said.adapter if said is not None else None)
        if chosen is not None:
            found.append((name, module, chosen))
            settled.append(name)
        elif said is not None:
            findings.append(Finding(name, type(module).__name__, said.reason, said.is_quantizer))
    # A part of a quantizer is no near miss, nor is what holds one.
    names = [name for name, _, _ in found]
    holds = [
        each
        for each in findings
        if not any(each.name == "" or name.startswith(f"{each.name}.") for name in names)
    ]
    return _join_stacks(model, found, only=only), holds


def _join_stacks(
    model: nn.Module,
    found: list[tuple[str, nn.Module, Adapter]],
    *,
    only: Callable[[str], bool] | None,
) -> list[tuple[str, nn.Module, Adapter]]:
    """Quantizers in a list become one where the module that holds the list is a stack of them."""
    joined = list(found)
    by_name = {name: each for name, _, each in found}
    for name, part in model.named_modules():
        if not isinstance(part, nn.ModuleList):
            continue
        holder, _, own = name.rpartition(".")
        stages = {
            f"{own}.{i}": stage
            for i in range(len(part))
            if isinstance(stage := by_name.get(f"{name}.{i}"), ProbedAdapter)
        }
        if own == "" or len(stages) != len(part) or (only is not None and not only(holder)):
            continue
        container = model.get_submodule(holder)
        stack = probe_stack(container, stages)
        if stack is not None:
            first = [each for each, _, _ in joined].index(f"{name}.0")
            joined.insert(first, (holder, container, stack))
            joined = [each for each in joined if not each[0].startswith(f"{name}.")]
    return joined
