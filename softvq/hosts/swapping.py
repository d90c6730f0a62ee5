"""`swap` and `restore`: a quantizer in somebody else's model becomes a SoftVQ, and itself again."""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from softvq.checks import choose
from softvq.hosts.adapter import Adapter, Swapped, original_class, swapped_class
from softvq.hosts.averages import settle_averages
from softvq.hosts.geometry import CodebookAt
from softvq.hosts.held import HeldSoftVQ
from softvq.hosts.report import SwapReport, describe_swap
from softvq.hosts.search import Choose, Finding, find_quantizers
from softvq.hosts.stacks import StackAdapter
from softvq.nn.loss import Loss
from softvq.nn.revival import Revival
from softvq.nn.soft import warn_of_warmup
from softvq.nn.temperature import Temperature

WRAPPERS = {
    "DistributedDataParallel": "swap before wrapping it, or swap model.module and wrap that anew",
    "DataParallel": "swap model.module and wrap that anew",
    "FullyShardedDataParallel": "swap before sharding",
    "FSDPModule": "swap before sharding",
    "OptimizedModule": "swap model._orig_mod, or before torch.compile",
    "ScriptModule": "swap the model that was scripted",
    "ParametrizedModule": "remove the parametrizations first",
}
CODES = ("keep", "restart")


def swap(
    model: nn.Module,
    *,
    adapter: Choose | None = None,
    only: Callable[[str], bool] | None = None,
    codes: str = "keep",
    temperature: Temperature | None = None,
    revival: Revival | None = Revival(),  # noqa: B008 - frozen
    loss: Loss | None = None,
    forward_value: str = "hard",
) -> SwapReport:
    """Let SoftVQ train every quantizer of ``model``, in place; in eval mode each answers as before.

    The quantizers are found by running copies of them. Each stays the very object that it was, with
    its attributes, methods, state-dict keys and codebook; its own forward still answers in eval
    mode, bit for bit. In training, SoftVQ answers in the form of the host's result. All or none:
    an error leaves the model as it was.

    Args:
        model: Changed in place. Swap before it is compiled, wrapped for several processes or
            averaged, and before or after its optimizer is made.
        adapter: Called on each module; an `softvq.hosts.Adapter` says how to swap it, None leaves
            it to probing.
        only: Whether the quantizer of this name is to be swapped; all are, if None.
        codes: "keep" starts from the host's codes; "restart" places them by k-means on the first
            training batch, as for a model that has not been trained.
        temperature: As for `SoftVQ`.
        revival: As for `SoftVQ`.
        loss: As for `SoftVQ`.
        forward_value: As for `SoftVQ`. A residual stack is swapped as one, see
            `softvq.hosts.stacks`; stages in a list that are swapped one by one take "hard".

    Returns:
        What was swapped and how; ``print`` it.

    Raises:
        ValueError: If no quantizer is found (with what came near), one is of a family that is not
            known, one is swapped already, or the model is wrapped, compiled or amid its backward
            pass.

    Example:
        >>> class Quantize(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.embedding = nn.Embedding(8, 4)
        ...     def forward(self, z):
        ...         indices = torch.cdist(z, self.embedding.weight).argmin(-1)
        ...         q = self.embedding(indices)
        ...         return z + (q - z).detach(), (q - z).square().mean(), indices
        >>> model = nn.Sequential(nn.Linear(4, 4), Quantize())
        >>> report = swap(model)
        >>> [(each.name, each.num_codes, each.dim) for each in report.swapped]
        [('1', 8, 4)]
        >>> restore(model)
        ['1']
        >>> type(model[1]).__name__
        'Quantize'
    """
    choose("codes", codes, CODES)
    _check_swappable(model)
    found, findings = find_quantizers(model, adapter=adapter, only=only)
    _check_found(model, found, findings)
    before = [name for name, _ in model.named_parameters()]
    options = {
        "temperature": temperature,
        "revival": revival,
        "loss": loss,
        "forward_value": forward_value,
    }
    made = [
        _make_cores(module, each, codes=codes, **_as_stage(model, name, each, options))
        for name, module, each in found
    ]
    for (_, module, each), cores in zip(found, made, strict=True):
        _install(module, each, cores)
    added = [name for name, _ in model.named_parameters() if name not in before]
    _warn_of_averages(model, added)
    swapped = tuple(describe_swap(name, module, each) for name, module, each in found)
    return SwapReport(swapped=swapped, left=tuple(findings), added_parameters=tuple(added))


def restore(model: nn.Module) -> list[str]:
    """Give every swapped quantizer of ``model`` its own class back, with the trained codes.

    Averages that the host's own training keeps of its codes are set to agree with them. What an
    optimizer holds stays; make a new one to train on.

    Args:
        model: One that `swap` has changed.

    Returns:
        Names of the quantizers.

    Raises:
        ValueError: If none is swapped.
    """
    found = [(name, each) for name, each in model.named_modules() if isinstance(each, Swapped)]
    if not found:
        raise ValueError(
            f"model ({type(model).__name__}) holds no swapped quantizer: softvq.swap(model) comes "
            "first, and restore() works once."
        )
    warn_of_warmup(model, "restore")
    for _, module in found:
        _remove(module)
    return [name for name, _ in found]


def _check_swappable(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    if torch._C._current_graph_task_id() != -1:
        raise ValueError("model is amid a backward pass: swap between steps.")
    for name, module in model.named_modules():
        kinds = {each.__name__ for each in type(module).__mro__}
        wrapper = next((each for each in WRAPPERS if each in kinds), None)
        if wrapper is not None:
            raise ValueError(
                f"model{f'.{name}' if name else ''} is wrapped ({wrapper}), which holds on to what "
                f"a swap replaces: {WRAPPERS[wrapper]}."
            )
        if isinstance(module, Swapped):
            raise ValueError(
                f"{name or 'model'} is swapped already. Call softvq.restore(model) before "
                "swapping anew."
            )
        if module._compiled_call_impl is not None:
            raise ValueError(
                f"{name or 'model'} is compiled in place: swap first, and call compile() then."
            )
        for tensor in (*module.__dict__.values(), *module._buffers.values()):
            if isinstance(tensor, Tensor) and tensor.grad_fn is not None:
                raise ValueError(
                    f"{name or 'model'} holds a tensor of a pass whose backward is to come: swap "
                    "between steps."
                )


def _check_found(
    model: nn.Module, found: list[tuple[str, nn.Module, Adapter]], findings: list[Finding]
) -> None:
    refused = [each for each in findings if each.is_quantizer]
    if refused:
        raise ValueError(
            "These quantizers cannot be swapped:\n"
            + "\n".join(f"  {each}" for each in refused)
            + "\nWrite an adapter, softvq.swap(model, adapter=...), see softvq.hosts.Adapter; or "
            "leave them out with only=lambda name: ..."
        )
    if not found:
        near = "\n".join(f"  {each}" for each in findings) or "  nothing came near"
        raise ValueError(
            f"model ({type(model).__name__}) holds no quantizer that was found:\n{near}\n"
            "For one of another kind write an adapter: softvq.swap(model, adapter=...)."
        )
    for name, module, _ in found:
        if "forward" in module.__dict__:
            raise ValueError(
                f"{name or 'model'} has a forward of its own instance (a hook of accelerate or a "
                "patch), which a swap would not see. Remove it, swap, and put it back."
            )


def _as_stage(
    model: nn.Module, name: str, adapter: Adapter, options: dict[str, Any]
) -> dict[str, Any]:
    """Options of one quantizer: stages of a list decode their codes, as `ResidualVQ` reads them.

    A host's loop subtracts from the input what a stage answers. That must be the code: after a blur
    or a warm-up, which passes the input as it is, the next stage would train on what it never gets.
    """
    parent = model.get_submodule(name.rpartition(".")[0])
    alone = not isinstance(parent, nn.ModuleList) or len(parent) < 2
    if alone or isinstance(adapter, StackAdapter):  # of a stack the whole is blurred, by its last
        return options
    temperature = options["temperature"] or Temperature()
    return {
        **options,
        "forward_value": "hard",
        "temperature": dataclasses.replace(temperature, warmup_share=0.0),
    }


def _make_cores(
    module: nn.Module, adapter: Adapter, *, codes: str, **options: object
) -> list[HeldSoftVQ]:
    cores = []
    for at in adapter.codebooks():
        tensor = at.tensor(module)
        num_codes, dim = at.see(tensor).shape
        core = HeldSoftVQ(num_codes, dim, **options)  # type: ignore[arg-type]
        cores.append(core.to(tensor.device))
    unplaced = any(
        not bool(at.tensor(module).detach().any()) for at in adapter.codebooks()
    ) or _awaits_kmeans(module)
    for core, at, passes in zip(cores, adapter.codebooks(), adapter.passes(), strict=True):
        core.share_(passes)
        keep = codes == "keep" and not unplaced
        core.bind(module, at, metric=adapter.metric, keep=keep, averaged=adapter.averaged)
    return cores


def _awaits_kmeans(module: nn.Module) -> bool:
    flags = [
        each
        for name, each in module.named_buffers()
        if name.rsplit(".", 1)[-1] in ("initted", "inited", "data_initialized")
    ]
    return any(not bool(flag.all()) for flag in flags)


def _install(module: nn.Module, adapter: Adapter, cores: list[HeldSoftVQ]) -> None:
    for at in adapter.codebooks():
        _make_parameter(module, at)
    module.__class__ = swapped_class(type(module))
    module.__dict__["_adapter"] = adapter
    module.add_module("softvq", nn.ModuleList(cores).train(module.training))


def _make_parameter(module: nn.Module, at: CodebookAt) -> None:
    """Turn a codebook that was a buffer into a parameter of the same name, and remember that."""
    owner = module.get_submodule(at.owner)
    if at.name not in owner._buffers:
        return
    tensor = owner._buffers[at.name]
    assert tensor is not None, "a codebook that was probed is there"
    owner.__dict__["_softvq_buffers"] = list(owner._buffers)
    del owner._buffers[at.name]
    owner.register_parameter(at.name, nn.Parameter(tensor))


def _remove(module: nn.Module) -> None:
    cores: list[HeldSoftVQ] = list(module.softvq)  # type: ignore[arg-type]
    for core in cores:
        core.normalise_()
        if core._updates is not None:
            core._updates.release(core)
    settle_averages(module, cores)
    places = module._adapter.codebooks()  # type: ignore[operator, union-attr]
    del module.softvq
    del module.__dict__["_adapter"]
    module.__class__ = original_class(module)
    for at in places:
        _make_buffer(module.get_submodule(at.owner), at.name)


def _make_buffer(owner: nn.Module, name: str) -> None:
    order = owner.__dict__.pop("_softvq_buffers", None)
    if order is None:
        return
    parameter = owner._parameters.pop(name)
    assert parameter is not None, "the codebook went away while it was swapped"
    owner._buffers[name] = parameter.detach()
    owner._buffers.update({each: owner._buffers.pop(each) for each in order})


def _warn_of_averages(model: nn.Module, added: list[str]) -> None:
    averages = [name for name, each in model.named_modules() if hasattr(each, "m_name2s_name")]
    if averages and added:
        warnings.warn(
            f"{', '.join(averages)} averages weights by name and was made before {added[0]} was a "
            "parameter: make it anew after the swap.",
            stacklevel=3,
        )
