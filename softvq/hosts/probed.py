"""The adapter that probing finds: a geometry, and the roles of the leaves of the result tree."""

import functools
import inspect
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softvq.functional.assign import count_codes
from softvq.functional.diagnostics import perplexity
from softvq.functional.distances import squared_distances
from softvq.hosts.adapter import Adapter, Swapped, original_class
from softvq.hosts.geometry import CodebookAt, Geometry
from softvq.hosts.tree import Path, Role, map_tree
from softvq.types import QuantizerOutput

# Keywords that hosts pass in training, beside the input. What is no more than its default may stay.
UNDERSTOOD = ("mask", "lens", "freeze_codebook", "return_loss_breakdown")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A result tree: its containers and what each leaf is."""

    skeleton: Any
    roles: dict[Path, Role]


@dataclass(frozen=True, kw_only=True)
class ProbedAdapter(Adapter):
    """An adapter whose every part was seen in the host's behaviour.

    Attributes:
        geometry: From input to rows and back.
        train: What the host returned in training.
        eval: What it returned in eval mode.
        codec: Whether the host has ``encode`` and ``decode`` in place of a forward.
        weights: Of the host's commitment and codebook terms, as its gradients say, or None.
    """

    family: str
    geometry: Geometry
    train: Answer
    eval: Answer
    averaged: bool = False
    codec: bool = False
    weights: tuple[float, float] | None = None

    @property
    def metric(self) -> str:  # type: ignore[override]
        """As in `Geometry`."""
        return self.geometry.metric

    def codebooks(self) -> tuple[CodebookAt, ...]:
        """One, or one for each head."""
        return self.geometry.codebooks

    def rows(
        self, host: nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[list[Tensor], Tensor | None]:
        """The vectors for each codebook, and the mask that the caller gave."""
        z, options = read_call(host, args, kwargs)
        return self.geometry.rows(host, z), read_mask(z, options)

    def freezes(self, host: nn.Module, *args: Any, **kwargs: Any) -> bool:
        """Whether the host, or this call, freezes the codes."""
        _, options = read_call(host, args, kwargs)
        return bool(options.get("freeze_codebook") or getattr(host, "freeze_codebook", False))

    def hard(self, host: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """The host's own answer; for a codec what its two methods give."""
        return run_host(host, *args, **kwargs)

    def answer(
        self, host: nn.Module, *args: Any, outputs: list[QuantizerOutput], **kwargs: Any
    ) -> Any:
        """The host's tree with SoftVQ's values."""
        z, options = read_call(host, args, kwargs)
        quantized = self.geometry.output(host, [each.quantized for each in outputs])
        quantized = fill_masked(
            quantized, z, read_mask(z, options), host=host, axis=self.geometry.axis
        )
        tree = self.train if host.training else self.eval
        fill = _Filling(self, host, z, quantized, outputs)
        answered = map_tree(lambda path, _: fill(tree.roles[path]), tree.skeleton)
        if options.get("return_loss_breakdown"):
            answered = (*answered, _breakdown(host, z, outputs))
        return answered


class _Filling:
    """Values for the roles of one call; what costs is worked out where it is asked for."""

    def __init__(
        self,
        adapter: ProbedAdapter,
        host: nn.Module,
        z: Tensor,
        quantized: Tensor,
        outputs: list[QuantizerOutput],
    ) -> None:
        self.adapter, self.host, self.z, self.quantized = adapter, host, z, quantized
        self.outputs = outputs
        self.found = adapter.geometry.indices([each.indices for each in outputs])
        self.loss = torch.stack([each.loss for each in outputs]).mean()

    def __call__(self, role: Role) -> Any:
        return getattr(self, f"_{role.kind}")(role)

    def _quantized(self, role: Role) -> Tensor:
        return self.quantized

    def _indices(self, role: Role) -> Tensor:
        shape = {"flat": (-1,), "column": (-1, 1), "grid": self.found.shape}[role.form]
        return self.found.reshape(shape).to(role.dtype)

    def _loss(self, role: Role) -> Tensor:
        loss = self.loss.to(role.dtype)
        if role.form == "one":
            return loss.reshape(1)
        return loss.expand(len(self.z)) if role.form == "batch" else loss

    def _zero(self, role: Role) -> Any:
        if role.form == "number":
            return type(role.value)(0)
        return self._loss(role).detach() * 0

    def _perplexity(self, role: Role) -> Any:
        counts = self._counts()
        value = perplexity(counts)
        return float(value) if role.form == "number" else value.to(role.dtype)

    def _one_hot(self, role: Role) -> Tensor:
        num = self.adapter.geometry.codes(self.host)[0].shape[0]
        return F.one_hot(self.found.reshape(-1).clamp_min(0), num).to(role.dtype)

    def _distances(self, role: Role) -> Tensor:
        rows = self.adapter.geometry.rows(self.host, self.z)[0].flatten(0, -2)
        return squared_distances(rows, self.adapter.geometry.codes(self.host)[0]).to(role.dtype)

    def _input(self, role: Role) -> Tensor:
        return self.z

    def _none(self, role: Role) -> None:
        return None

    def _constant(self, role: Role) -> Any:
        return role.value

    def _counts(self) -> Tensor:
        num = self.adapter.geometry.codes(self.host)[0].shape[0]
        return count_codes(self.found.reshape(-1), num_codes=num)


@functools.cache
def _signature(original: type[nn.Module]) -> inspect.Signature:
    return inspect.signature(original.forward)


def own_forward(original: type[nn.Module]) -> bool:
    """Whether a class has a forward, or only torch's placeholder.

    Example:
        >>> own_forward(nn.Linear), own_forward(nn.ModuleList)
        (True, False)
    """
    return original.forward is not nn.Module.forward


def run_host(host: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The host's own forward, swapped or not; of a codec ``(decode(encode(z)), indices, 0)``."""
    original = original_class(host) if isinstance(host, Swapped) else type(host)
    if own_forward(original):
        return original.forward(host, *args, **kwargs)
    indices = host.encode(*args, **kwargs)  # type: ignore[operator]
    quantized = host.decode(indices)  # type: ignore[operator]
    return quantized, indices, quantized.new_zeros((), requires_grad=host.training)


def read_call(
    host: nn.Module, args: tuple, kwargs: dict[str, Any], *, more: tuple[str, ...] = ()
) -> tuple[Tensor, dict[str, Any]]:
    """The input and the options of a call, or an error for an option that SoftVQ cannot honour.

    Args:
        host: Swapped.
        args: Of the call.
        kwargs: Of the call.
        more: Options that are understood beside the usual ones.

    Raises:
        ValueError: Naming the option.
    """
    original = original_class(host)
    if not own_forward(original):
        return args[0] if args else next(iter(kwargs.values())), {}
    signature = _signature(original)
    bound = signature.bind(host, *args, **kwargs).arguments
    names = list(signature.parameters)
    z, options = bound[names[1]], {}
    for name in names[2:]:
        value, default = bound.get(name), signature.parameters[name].default
        idle = value is None or value is False or value is default or value in ((), {})
        if idle or (name == "temp" and value == 1.0):
            continue
        if name not in (*UNDERSTOOD, *more):
            raise ValueError(
                f"{name}={value!r} cannot be honoured by a swapped {original.__name__} in training "
                "or in soft mode. Leave it out, call eval() for the host's own answer, or write an "
                "adapter: softvq.swap(model, adapter=...)."
            )
        options[name] = value
    return z, options


def read_mask(z: Tensor, options: dict[str, Any]) -> Tensor | None:
    """The mask that a call gave, as such or by lengths."""
    if "lens" in options:
        places = torch.arange(z.shape[1], device=z.device)
        return places < options["lens"][:, None]
    return options.get("mask")


def fill_masked(
    quantized: Tensor, z: Tensor, mask: Tensor | None, *, host: nn.Module, axis: int
) -> Tensor:
    """What the host puts where its mask drops a position: zeros, or the input."""
    if mask is None:
        return quantized
    zeros = getattr(host, "return_zeros_for_masked_padding", True)
    return torch.where(mask.unsqueeze(axis), quantized, torch.zeros_like(z) if zeros else z)


def _breakdown(host: nn.Module, z: Tensor, outputs: list[QuantizerOutput]) -> Any:
    """The host's named tuple of loss terms: all in the first, the rest zero as in eval."""
    training = host.training
    host.training = False
    try:
        terms = run_host(host, z.detach(), return_loss_breakdown=True)[-1]
    finally:
        host.training = training
    loss = torch.stack([each.loss for each in outputs]).mean()
    return type(terms)(loss, *terms[1:])
