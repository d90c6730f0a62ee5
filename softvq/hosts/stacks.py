"""Residual stacks of a host, as one: `StackAdapter`, and `probe_stack` that finds them.

A stack is a module with quantizers in a list, whose own result is what they give one after another,
each on what the codes before it leave. Shape letters: S stages, B batch.
"""

import inspect
import itertools
import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from softvq.functional.distances import squared_distances
from softvq.functional.precision import at_least_float32, without_autocast
from softvq.hosts.adapter import Adapter
from softvq.hosts.candidates import PROJECTIONS, projected_dim
from softvq.hosts.geometry import CodebookAt, Geometry
from softvq.hosts.probed import (
    ProbedAdapter,
    fill_masked,
    own_forward,
    read_call,
    read_mask,
    run_host,
)
from softvq.hosts.tree import Path, Role, leaves, map_tree, skeleton
from softvq.hosts.trial import BATCH, GRIDS, TIED, UNFIT, copy_started, scatter_codes
from softvq.nn.residual import run_stages
from softvq.types import QuantizerOutput

DEPTHS = ("n_q", "num_quantizers", "n_quantizers")
"""What hosts call the number of the first stages that a call takes."""
DROPOUTS = ("quantize_dropout", "quantizer_dropout")
"""Stacks that drop stages by a rule of their own are swapped stage by stage."""


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


class _Predicted(NamedTuple):
    """What a geometry and the codes of stages say that a stack gives, by number of stages."""

    z: Tensor
    outputs: list[Tensor]
    indices: Tensor


def probe_stack(container: nn.Module, stages: dict[str, ProbedAdapter]) -> StackAdapter | None:
    """How a module that holds quantizers in a list is a residual stack of them, or None.

    Args:
        container: Stays as it is, random generators included.
        stages: What probing found of each, by its path in the container, in order.

    Returns:
        None where the module's own results, on copies of it, are not the sum of the stages' codes:
        for stages of their own projections, heads or a cosine metric, or a dropout of its own.

    Example:
        >>> probe_stack(nn.Sequential(nn.Linear(2, 2)), {}) is None
        True
    """
    plain = all(_is_plain(each) for each in stages.values())
    drops = any(bool(getattr(container, name, 0)) for name in DROPOUTS)
    runs = own_forward(type(container)) or hasattr(container, "encode")
    frozen = {
        bool(getattr(container.get_submodule(name), "freeze_codebook", False)) for name in stages
    }
    if len(stages) < 2 or not plain or drops or not runs or len(frozen) > 1:
        return None
    devices = {each.device for each in (*container.parameters(), *container.buffers())}
    with (
        torch.random.fork_rng(devices=[each for each in devices if each.type == "cuda"]),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            return _prove(container, stages)
        except UNFIT:
            return None


def _is_plain(stage: ProbedAdapter) -> bool:
    geometry = stage.geometry
    mapped = geometry.before is not None or geometry.after is not None
    return geometry.heads == 1 and geometry.metric == "euclidean" and not mapped


def _prove(container: nn.Module, stages: dict[str, ProbedAdapter]) -> StackAdapter | None:
    at = [
        CodebookAt(
            owner=f"{name}.{held.owner}".rstrip("."), name=held.name, view=held.view, head=held.head
        )
        for name, each in stages.items()
        for held in each.codebooks()
    ]
    tensors = [id(each.tensor(container)) for each in at]
    unique = list(dict.fromkeys(tensors))
    places = tuple(at[tensors.index(each)] for each in unique)
    order = tuple(unique.index(each) for each in tensors)
    twin = copy_started(container).eval()
    scatter_codes(twin)
    found = _find_geometry(twin, at)
    if found is None:
        return None
    geometry, predicted = found
    trained = copy_started(container).train()
    scatter_codes(trained)
    result = run_host(trained, predicted.z.clone().requires_grad_())
    roles = _read_roles(run_host(twin, predicted.z.clone()), result, predicted)
    if roles is None:
        return None
    return StackAdapter(
        geometry=geometry,
        stages=tuple(stages),
        places=places,
        order=order,
        roles=roles,
        skeleton=skeleton(result),
        depth=_find_depth(twin, predicted),
        averaged=any(each.averaged for each in stages.values()),
    )


@torch.no_grad()
def _find_geometry(twin: nn.Module, at: list[CodebookAt]) -> tuple[Geometry, _Predicted] | None:
    dim = at[0].see(at[0].tensor(twin)).shape[1]
    for (before, after), axis, grid in itertools.product(PROJECTIONS, (1, -1), GRIDS):
        taken = projected_dim(twin, before)
        given = projected_dim(twin, after)
        if (before is not None and taken is None) or (after is not None and given is None):
            continue
        geometry = Geometry(codebooks=(at[0],), axis=axis, before=before, after=after)
        if axis == 1 and not grid:
            continue
        size = dim if taken is None else taken
        shape = (BATCH, size, *grid) if axis == 1 else (BATCH, *grid, size)
        z = torch.randn(shape, generator=torch.Generator().manual_seed(11))
        z = z.to(at[0].tensor(twin))
        try:
            predicted = _predict(twin, geometry, at, z)
            result = run_host(twin, z.clone())
        except UNFIT:
            continue
        if any(_equal(leaf, predicted.outputs[-1]) for leaf in leaves(result).values()):
            return geometry, predicted
    return None


def _predict(twin: nn.Module, geometry: Geometry, at: list[CodebookAt], z: Tensor) -> _Predicted:
    (rest,) = geometry.rows(twin, z)
    total, outputs, indices = torch.zeros_like(rest), [], []
    for each in at:
        codes = each.see(each.tensor(twin))
        nearest = squared_distances(rest.reshape(-1, rest.shape[-1]), codes).argmin(-1)
        code = codes[nearest].reshape(rest.shape)
        total, rest = total + code, rest - code
        outputs.append(geometry.output(twin, [total]))
        indices.append(nearest.reshape(rest.shape[:-1]))
    return _Predicted(z, outputs, torch.stack(indices, -1))


def _equal(leaf: Any, expected: Tensor) -> bool:
    tied = TIED * float(expected.abs().max())
    return (
        isinstance(leaf, Tensor)
        and leaf.is_floating_point()
        and leaf.shape == expected.shape
        and torch.allclose(leaf, expected.to(leaf.dtype), rtol=0, atol=tied)
    )


def _read_roles(hard: Any, trained: Any, predicted: _Predicted) -> dict[Path, Role] | None:
    """Roles of the leaves in training, or None where one is of no kind that a stack has."""
    values, roles = leaves(hard), {}
    stages = predicted.indices.shape[-1]
    for path, leaf in leaves(trained).items():
        told = values.get(path)
        if not isinstance(leaf, Tensor):
            roles[path] = Role(kind="constant", value=leaf)
        elif _equal(told, predicted.outputs[-1]) and leaf.shape == predicted.outputs[-1].shape:
            roles[path] = Role(kind="quantized", dtype=leaf.dtype)
        elif not leaf.is_floating_point() and isinstance(told, Tensor):
            form = _find_axis(told, predicted.indices)
            if form is None:
                return None
            roles[path] = Role(kind="indices", form=form, dtype=leaf.dtype)
        elif leaf.requires_grad and leaf.numel() in (1, stages):
            form = "scalar" if leaf.numel() == 1 else "stages"
            roles[path] = Role(kind="loss", form=form, dtype=leaf.dtype, value=tuple(leaf.shape))
        else:
            return None
    kinds = [each.kind for each in roles.values()]
    return (
        roles if all(kinds.count(each) == 1 for each in ("quantized", "indices", "loss")) else None
    )


def _find_axis(found: Tensor, expected: Tensor) -> str | None:
    """Where stages are in the host's indices."""
    for form, lying in (("last", expected), ("first", expected.movedim(-1, 0))):
        if found.shape == lying.shape and torch.equal(found.long(), lying):
            return form
    return None


@torch.no_grad()
def _find_depth(twin: nn.Module, predicted: _Predicted) -> str | None:
    """The option by which a call takes the first stages alone, if there is one."""
    if not own_forward(type(twin)):
        return None
    for name in DEPTHS:
        if name not in inspect.signature(type(twin).forward).parameters:
            continue
        try:
            result = run_host(twin, predicted.z.clone(), **{name: 1})
        except UNFIT:
            continue
        if any(_equal(leaf, predicted.outputs[0]) for leaf in leaves(result).values()):
            return name
    return None
