"""Experiments on copies of a module whose codes are random, so that its results give it away."""

import copy
import dataclasses
import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from softvq.functional.distances import squared_distances
from softvq.hosts.candidates import candidates, geometries
from softvq.hosts.geometry import Geometry
from softvq.hosts.probed import run_host
from softvq.hosts.roles import Seen
from softvq.hosts.tree import leaves

GRIDS = ((3, 5), (7,), ())
BATCH = 2
TIED = 1e-4
STARTED_FLAGS = ("initted", "inited", "data_initialized")
# What running an unknown module on an unfit input can raise; einops' error is a RuntimeError.
UNFIT = (
    RuntimeError,
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    AttributeError,
    AssertionError,
)


class Trial(NamedTuple):
    """A geometry that foretold what a copy returned in eval mode."""

    geometry: Geometry
    seen: Seen


class Run(NamedTuple):
    """What went into a copy and what came back."""

    z: Tensor
    result: Any


class Training(NamedTuple):
    """One training pass of a copy.

    ``averaged`` says whether the codes follow averages, not an optimizer; ``weights`` are those of
    the commitment and codebook terms of its loss, where they can be told.
    """

    seen: Seen
    averaged: bool
    weights: tuple[float, float] | None


def find_geometry(module: nn.Module) -> tuple[Trial | None, list[Run]]:
    """Run a copy of ``module`` on input of every layout until a geometry foretells its result.

    Returns:
        The first geometry that does, if any, and all runs up to there.

    Example:
        >>> trial, runs = find_geometry(nn.Embedding(8, 4))
        >>> trial, len(runs)
        (None, 0)
    """
    runs = _Runs(module)
    for codebooks in candidates(runs.twin):
        for geometry, dim in geometries(runs.twin, codebooks):
            for grid in GRIDS:
                first = geometry.axis == 1
                if first and not grid:
                    continue
                shape = (BATCH, dim, *grid) if first else (BATCH, *grid, dim)
                seen = _compare(runs, geometry, shape)
                if seen is not None:
                    return Trial(geometry, seen), runs.done()
    return None, runs.done()


def run_training(module: nn.Module, trial: Trial) -> Training:
    """Run a copy of ``module`` in training on the input that proved its geometry."""
    twin = copy_started(module).train()
    scatter_codes(twin)
    at = trial.geometry.codebooks[0]
    before, held = at.tensor(twin).detach().clone(), at.tensor(twin)
    z = trial.seen.z.clone().requires_grad_()
    result = run_host(twin, z)
    after = at.tensor(twin)
    moved = after is not held or not torch.equal(after.detach(), before)
    weights = _weigh(result, z, held) if isinstance(held, nn.Parameter) else None
    averaged = not isinstance(held, nn.Parameter) or (moved and weights is None)
    return Training(dataclasses.replace(trial.seen, result=result), averaged, weights)


class _Runs:
    """Results of one scattered copy in eval mode, by the shape of the input."""

    def __init__(self, module: nn.Module) -> None:
        self.twin = copy_started(module).eval()
        scatter_codes(self.twin)
        self._by_shape: dict[tuple[int, ...], Run | None] = {}

    def done(self) -> list[Run]:
        """All runs that came to an end."""
        return [run for run in self._by_shape.values() if run is not None]

    def run(self, shape: tuple[int, ...]) -> Run | None:
        """The run on input of a shape, or None where the module does not take it."""
        if shape not in self._by_shape:
            self._by_shape[shape] = self._run(shape)
        return self._by_shape[shape]

    def _run(self, shape: tuple[int, ...]) -> Run | None:
        like = next(candidates(self.twin))[0].tensor(self.twin)
        z = torch.randn(shape, generator=torch.Generator().manual_seed(11)).to(like)
        try:
            with torch.no_grad():
                return Run(z, run_host(self.twin, z.clone()))
        except UNFIT:
            return None


def _compare(runs: _Runs, geometry: Geometry, shape: tuple[int, ...]) -> Seen | None:
    """The run on input of a shape, if the geometry foretells a leaf of its result."""
    run = runs.run(shape)
    if run is None:
        return None
    try:
        with torch.no_grad():
            indices, quantized = _predict(runs.twin, geometry, run.z)
    except UNFIT:
        return None  # a projection that is none
    tied = TIED * float(quantized.abs().max())
    for leaf in leaves(run.result).values():
        if (
            isinstance(leaf, Tensor)
            and leaf.shape == quantized.shape
            and leaf.is_floating_point()
            and torch.allclose(leaf, quantized, rtol=0, atol=tied)
        ):
            return Seen(run.result, z=run.z, quantized=quantized, indices=indices)
    return None


def _predict(twin: nn.Module, geometry: Geometry, z: Tensor) -> tuple[Tensor, Tensor]:
    """Indices and output that the geometry expects."""
    found, quantized = [], []
    for rows, codes in zip(geometry.rows(twin, z), geometry.codes(twin), strict=True):
        flat = rows.reshape(-1, rows.shape[-1])
        if geometry.metric == "euclidean":
            nearest = squared_distances(flat, codes).argmin(-1)
        else:
            nearest = (flat @ codes.t()).argmax(-1)
        found.append(nearest.reshape(rows.shape[:-1]))
        quantized.append(codes[nearest].reshape(rows.shape))
    return geometry.indices(found), geometry.output(twin, quantized)


def copy_started(module: nn.Module) -> nn.Module:
    """A copy in float32 at least that takes its codebook for placed."""
    twin = copy.deepcopy(module)
    tensors = itertools.chain(twin.parameters(), twin.buffers())
    if any(each.dtype in (torch.float16, torch.bfloat16) for each in tensors):
        twin = twin.float()
    for name, buffer in twin.named_buffers():
        if name.rsplit(".", 1)[-1] in STARTED_FLAGS:
            buffer.fill_(1)
    return twin


@torch.no_grad()
def scatter_codes(twin: nn.Module) -> None:
    """Random codes of different norms, so that each metric chooses others.

    All that could be codes is scattered: stages of zeros would hide behind the first one.
    """
    generator = torch.Generator().manual_seed(7)
    for each in itertools.chain.from_iterable(candidates(twin)):
        codes = each.see(each.tensor(twin))
        fresh = torch.randn(codes.shape, generator=generator)
        codes.copy_(fresh * torch.linspace(0.5, 2.0, len(codes))[:, None])


def _weigh(result: Any, z: Tensor, codebook: Tensor) -> tuple[float, float] | None:
    """Weights of the commitment and codebook terms, by what a loss leaves on input and codes.

    Each is w / n sum |z - e|^2, so that gradients summed over rows are in the ratio of the weights.
    """
    losses = [
        each
        for each in leaves(result).values()
        if isinstance(each, Tensor) and each.numel() == 1 and each.requires_grad
    ]
    if len(losses) != 1 or not codebook.requires_grad:
        return None
    to_z, to_codes = torch.autograd.grad(losses[0].sum(), (z, codebook), allow_unused=True)
    if to_z is None or to_codes is None:
        return None
    pull, push = float(to_z.sum()), float(to_codes.sum())
    return (1.0, round(-push / pull, 4)) if pull else None
