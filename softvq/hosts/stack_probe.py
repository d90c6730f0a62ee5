"""Finding residual stacks in a host by running copies of them: `probe_stack`.

The copies' codebooks are overwritten with random codes. Where what comes back is the sum of those
that a stack would choose one after another, geometry, order and stages are proven at once.
"""

import inspect
import itertools
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from softvq.functional.distances import squared_distances
from softvq.hosts.candidates import PROJECTIONS, projected_dim
from softvq.hosts.geometry import CodebookAt, Geometry
from softvq.hosts.probed import ProbedAdapter, own_forward, run_host
from softvq.hosts.stacks import StackAdapter
from softvq.hosts.tree import Path, Role, leaves, skeleton
from softvq.hosts.trial import BATCH, GRIDS, TIED, UNFIT, copy_started, scatter_codes

DEPTHS = ("n_q", "num_quantizers", "n_quantizers")
"""What hosts call the number of the first stages that a call takes."""
DROPOUTS = ("quantize_dropout", "quantizer_dropout")
"""Stacks that drop stages by a rule of their own are swapped stage by stage."""


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
