"""What a swap found and did, for people: `SwapReport`, and `swap_report` for the command line."""

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from torch import nn

from softvq.hosts.adapter import Adapter
from softvq.hosts.probed import ProbedAdapter
from softvq.hosts.search import Finding, find_quantizers
from softvq.hosts.stacks import StackAdapter


@dataclass(frozen=True, kw_only=True)
class SwappedQuantizer:
    """One quantizer that was swapped.

    Attributes:
        name: In the model.
        kind: Its class.
        family: The form of its result.
        num_codes: K.
        dim: D.
        codebook: Key of the codes in the model's state dict.
        remarks: What a user should know.
    """

    name: str
    kind: str
    family: str
    num_codes: int
    dim: int
    codebook: str
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        head = (
            f"{self.name or 'the model itself'} ({self.kind}): family {self.family}\n"
            f"    K = {self.num_codes}, D = {self.dim}, codes in {self.codebook}"
        )
        return "\n".join([head, *(f"    - {each}" for each in self.remarks)])


@dataclass(frozen=True, kw_only=True)
class SwapReport:
    """What a swap did.

    Attributes:
        swapped: The quantizers.
        left: Modules that came near.
        added_parameters: Names that are parameters now and were not: averages of weights that were
            made before must be made anew.
    """

    swapped: tuple[SwappedQuantizer, ...]
    left: tuple[Finding, ...] = ()
    added_parameters: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [str(each) for each in self.swapped]
        if self.added_parameters:
            names = ", ".join(self.added_parameters)
            lines.append(
                f"now parameters: {names}. softvq.attach adds them to the optimizer; averages of "
                "weights (EMA) made before the swap must be made anew."
            )
        lines += [f"left: {each}" for each in self.left]
        return "\n".join(lines)


def describe_swap(name: str, module: nn.Module, adapter: Adapter) -> SwappedQuantizer:
    """The report's entry for one quantizer.

    Args:
        name: In the model.
        module: The quantizer, swapped or about to be.
        adapter: How.
    """
    at = adapter.codebooks()[0]
    num_codes, dim = at.see(at.tensor(module)).shape
    kind = type(module).__name__
    return SwappedQuantizer(
        name=name,
        kind=kind.removeprefix("Soft") if hasattr(module, "softvq") else kind,
        family=adapter.family,
        num_codes=num_codes,
        dim=dim,
        codebook=f"{name}.{at.key}".lstrip("."),
        remarks=tuple(remarks(module, adapter)),
    )


def remarks(module: nn.Module, adapter: Adapter) -> list[str]:
    """What stays, what changes and what to mind about one swap, in sentences."""
    said = ["eval mode: the host's own forward, bit for bit; training: SoftVQ's codes and loss"]
    if adapter.averaged:
        said.append("codes were learned by averages and are learned by gradient while swapped")
    if isinstance(adapter, StackAdapter):
        said.append(
            "stages are swapped one by one where only= is false for its name and true for theirs"
        )
    if not isinstance(adapter, ProbedAdapter):
        return said
    geometry = adapter.geometry
    where = "channels first" if geometry.axis == 1 else "channels last"
    said.append(f"{where}, {geometry.metric}, {geometry.heads} head(s)")
    if geometry.before or geometry.after:
        said.append(f"projections kept: {geometry.before}, {geometry.after}")
    if adapter.codec:
        said.append("has encode and decode alone: forward gives (z_q, indices, loss) while swapped")
    if adapter.weights is not None:
        commitment, codebook = adapter.weights
        said.append(
            f"the host's loss weighs commitment to codebook as {commitment:g} : {codebook:g}"
            + (" (legacy beta, on the codebook term)" if codebook < commitment else "")
            + "; SoftVQ's loss stands in its place, and the host's is back after restore"
        )
    at = geometry.codebooks[0]
    if isinstance(at.tensor(module), nn.Parameter) and not at.tensor(module).requires_grad:
        said.append("the codes do not require grad and stay frozen")
    return said


def swap_report(target: str) -> str:
    """What `softvq.swap` would find and do, without doing it.

    Args:
        target: ``package.module:name``, where the name is a model or a callable without arguments
            that makes one; or ``file.py:name``.

    Returns:
        The report in lines.

    Raises:
        ValueError: If the target cannot be read, names no module, or no quantizer is found.
    """
    model = load_target(target)
    found, findings = find_quantizers(model)
    lines = [str(describe_swap(name, module, adapter)) for name, module, adapter in found]
    refused = [f"refused: {each}" for each in findings if each.is_quantizer]
    near = [f"left: {each}" for each in findings if not each.is_quantizer]
    if not lines and not refused:
        lines.append(f"no quantizer found in {type(model).__name__}")
    return "\n".join([*lines, *refused, *near])


def load_target(target: str) -> nn.Module:
    """The model that ``package.module:name`` or ``file.py:name`` names; callables are called.

    Args:
        target: As in `swap_report`.

    Raises:
        ValueError: If nothing is found there, or it is no module.

    Example:
        >>> load_target("torch.nn:Identity")
        Identity()
    """
    place, _, name = target.rpartition(":" if ":" in target else ".")
    if not place or not name or name == "py":
        raise ValueError(
            f"target must be 'package.module:name' or 'file.py:name'; got {target!r}. The name is "
            "a model, or a callable without arguments that makes one."
        )
    found = getattr(_import(place), name, None)
    if found is None:
        raise ValueError(f"target: {place} has no {name!r}.")
    model = found if isinstance(found, nn.Module) else found() if callable(found) else found
    if not isinstance(model, nn.Module):
        raise ValueError(f"target: {target} is a {type(model).__name__}, not a torch.nn.Module.")
    return model


def _import(place: str) -> ModuleType:
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise ValueError(f"target: cannot import {place} ({error}).") from None
    path = Path(place)
    if not path.is_file():
        raise ValueError(f"target: no file {place}.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, "a .py file has a spec"
    assert spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and pickles of the file look for it there
    spec.loader.exec_module(module)
    return module
