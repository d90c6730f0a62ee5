"""Finding what a quantizer does by running a copy of it: no class name is looked at.

The copy's codebook is overwritten with random codes. Where the rows that come back are those codes,
chosen as a geometry says, tensor, layout, metric, heads and projections are all proven at once.
"""

import copy
import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from softvq.functional.distances import squared_distances
from softvq.hosts.families import name_family, name_refused
from softvq.hosts.geometry import METRICS, CodebookAt, Geometry, in_features
from softvq.hosts.probed import Answer, ProbedAdapter, own_forward, run_host
from softvq.hosts.roles import Seen, kinds_of, read_roles
from softvq.hosts.tree import Role, describe, leaves, skeleton

MOST_TENSORS = 24  # in a quantizer; what holds more is a network around one
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
NO_CODEBOOK = (
    nn.Linear,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.modules.conv._ConvNd,
)
PROJECTIONS = (
    (None, None),
    ("project_in", "project_out"),
    ("in_proj", "out_proj"),
    ("proj_in", "proj_out"),
    ("proj", None),
)


class Probed(NamedTuple):
    """What probing one module said: an adapter, or why there is none.

    ``is_quantizer`` says whether it surely is one, so that leaving it out must be an error.
    """

    adapter: ProbedAdapter | None
    reason: str = ""
    is_quantizer: bool = False


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of the copy: what went in, what the geometry predicts, what came back."""

    geometry: Geometry
    z: Tensor
    indices: Tensor
    quantized: Tensor
    result: Any


def may_quantize(module: nn.Module) -> bool:
    """Whether a module is worth a probe: small, with a tensor that could be a codebook.

    Example:
        >>> may_quantize(nn.Linear(4, 4)), may_quantize(nn.Embedding(8, 4))
        (False, True)
    """
    tensors = sum(1 for _ in itertools.chain(module.parameters(), module.buffers()))
    return 0 < tensors <= MOST_TENSORS and next(candidates(module), None) is not None


def candidates(module: nn.Module) -> Iterator[tuple[CodebookAt, ...]]:
    """Places where the codes may be, each as the codebooks of a geometry."""
    for owner, part in module.named_modules():
        if isinstance(part, NO_CODEBOOK):
            continue
        for name, tensor in itertools.chain(
            part.named_parameters(recurse=False), part.named_buffers(recurse=False)
        ):
            if not tensor.is_floating_point() or min(tensor.shape, default=0) < 1:
                continue
            if tensor.ndim == 2 and len(tensor) > 1:
                for view in ("rows", "columns"):
                    yield (CodebookAt(owner=owner, name=name, view=view),)
            elif tensor.ndim == 3 and tensor.shape[1] > 1:
                yield tuple(
                    CodebookAt(owner=owner, name=name, view="stacked", head=head)
                    for head in range(len(tensor))
                )


def probe(module: nn.Module) -> Probed:
    """Find out how ``module`` quantizes, on copies of it.

    Args:
        module: Stays as it is, random generators included.

    Returns:
        An adapter, or the reason for having none.

    Example:
        >>> probe(nn.Linear(4, 4)).reason
        'holds no tensor that could be a codebook'
    """
    if next(candidates(module), None) is None:
        return Probed(None, "holds no tensor that could be a codebook")
    devices = {each.device for each in itertools.chain(module.parameters(), module.buffers())}
    with (
        torch.random.fork_rng(devices=[each for each in devices if each.type == "cuda"]),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        return _probe(module)


def _probe(module: nn.Module) -> Probed:
    trial, seen = _search(module)
    if trial is None:
        return _unproven(seen)
    metric = trial.geometry.metric
    if metric == "unit codes" and not _are_unit(trial.geometry, module):
        return Probed(
            None,
            "assigns by dot product with codes that are not of unit norm, which is no distance",
            is_quantizer=True,
        )
    trained, averaged, weights = _run_training(module, trial)
    roles = read_roles(
        _as_seen(trial, trial.result), _as_seen(trial, trained), names_total=_names_total
    )
    family = name_family(kinds_of(trained, roles.train))
    if family is None:
        refused = name_refused(kinds_of(trained, roles.train))
        return Probed(None, f"returns family {refused}", is_quantizer=True)
    return Probed(
        ProbedAdapter(
            family=family,
            geometry=trial.geometry,
            train=Answer(skeleton=skeleton(trained), roles=roles.train),
            eval=Answer(skeleton=skeleton(trial.result), roles=roles.eval),
            averaged=averaged,
            codec=not own_forward(type(module)),
            weights=weights,
        )
    )


def _names_total(key: str) -> bool:
    return key in ("loss", "quantizer_loss", "vq_loss", "total_loss", "codebook_loss")


def _as_seen(trial: Trial, result: Any) -> Seen:
    return Seen(result, z=trial.z, quantized=trial.quantized, indices=trial.indices)


def _unproven(seen: list[Any]) -> Probed:
    """Why no geometry was found, by the result that looked most like a quantizer's."""
    for result, z in seen:
        roles = {path: Role(kind=_guess(leaf, z)) for path, leaf in leaves(result).items()}
        kinds = [role.kind for role in roles.values()]
        if "indices" in kinds and "quantized" in kinds:
            tree = kinds_of(result, roles)
            family = name_family(tree) or name_refused(tree)
            return Probed(
                None,
                f"returns family {family}, but not the nearest codes of a tensor of its own (it "
                "has logits, projected or shared codes, several stages, or chance in eval mode)",
                is_quantizer=True,
            )
    if seen:
        return Probed(None, f"returns {describe(seen[0][0])}, no codes")
    return Probed(None, "runs on none of the layouts that were tried")


def _guess(leaf: Any, z: Tensor) -> str:
    """The kind of a leaf by type and shape alone."""
    if leaf is None:
        return "none"
    if not isinstance(leaf, Tensor):
        return "constant"
    if not leaf.is_floating_point():
        return "indices"
    if leaf.numel() == 1:
        return "loss"
    return "quantized" if leaf.shape == z.shape else "unknown"


class _Runs:
    """Results of one scattered copy in eval mode, by the shape of the input."""

    def __init__(self, module: nn.Module) -> None:
        self.twin = copy_started(module).eval()
        scatter_codes(self.twin)
        self._done: dict[tuple[int, ...], tuple[Tensor, Any] | None] = {}

    def seen(self) -> list[tuple[Any, Tensor]]:
        """All results with their inputs."""
        return [(done[1], done[0]) for done in self._done.values() if done is not None]

    def run(self, shape: tuple[int, ...]) -> tuple[Tensor, Any] | None:
        """Input and result, or None where the module does not take this shape."""
        if shape not in self._done:
            self._done[shape] = self._run(shape)
        return self._done[shape]

    def _run(self, shape: tuple[int, ...]) -> tuple[Tensor, Any] | None:
        like = next(candidates(self.twin))[0].tensor(self.twin)
        z = torch.randn(shape, generator=torch.Generator().manual_seed(11)).to(like)
        try:
            with torch.no_grad():
                return z, run_host(self.twin, z.clone())
        except UNFIT:
            return None


def _search(module: nn.Module) -> tuple[Trial | None, list[Any]]:
    runs = _Runs(module)
    for codebooks in candidates(runs.twin):
        for geometry, dim in _geometries(runs.twin, codebooks):
            for grid in GRIDS:
                first = geometry.axis == 1
                if first and not grid:
                    continue
                shape = (BATCH, dim, *grid) if first else (BATCH, *grid, dim)
                trial = _try(runs, geometry, shape)
                if trial is not None:
                    return trial, runs.seen()
    return None, runs.seen()


def _geometries(
    module: nn.Module, codebooks: tuple[CodebookAt, ...]
) -> Iterator[tuple[Geometry, int]]:
    """Geometries to try, with the number of features of the host's input."""
    dim = codebooks[0].see(codebooks[0].tensor(module)).shape[1]
    heads = _heads(module, codebooks)
    for (before, after), axis in itertools.product(PROJECTIONS, (1, -1)):
        taken = projected_dim(module, before)
        if (before is None) == (taken is not None) or (before is not None and taken is None):
            continue
        if after is not None and projected_dim(module, after) is None:
            continue
        for metric in METRICS:
            geometry = Geometry(
                codebooks=codebooks,
                axis=axis,
                heads=heads,
                metric=metric,
                before=before,
                after=after,
            )
            yield geometry, dim * heads if taken is None else taken


def _heads(module: nn.Module, codebooks: tuple[CodebookAt, ...]) -> int:
    if len(codebooks) > 1:
        return len(codebooks)
    heads = getattr(module, "heads", 1)
    return heads if isinstance(heads, int) and heads > 0 else 1


def projected_dim(module: nn.Module, name: str | None) -> int | None:
    """Features that a projection of this name takes; None where there is none."""
    part = None if name is None else getattr(module, name, None)
    return in_features(part) if isinstance(part, nn.Module) else None


def _try(runs: _Runs, geometry: Geometry, shape: tuple[int, ...]) -> Trial | None:
    done = runs.run(shape)
    if done is None:
        return None
    z, result = done
    try:
        with torch.no_grad():
            indices, quantized = _predict(runs.twin, geometry, z)
    except UNFIT:
        return None  # a projection that is none
    tied = TIED * float(quantized.abs().max())
    for leaf in leaves(result).values():
        if (
            isinstance(leaf, Tensor)
            and leaf.shape == quantized.shape
            and leaf.is_floating_point()
            and torch.allclose(leaf, quantized, rtol=0, atol=tied)
        ):
            return Trial(
                geometry=geometry, z=z, indices=indices, quantized=quantized, result=result
            )
    return None


def copy_started(module: nn.Module) -> nn.Module:
    """A copy in float32 at least that takes its codebook for placed."""
    twin = copy.deepcopy(module)
    if any(each.dtype in (torch.float16, torch.bfloat16) for each in twin.parameters()) or any(
        each.dtype in (torch.float16, torch.bfloat16) for each in twin.buffers()
    ):
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


def _are_unit(geometry: Geometry, module: nn.Module) -> bool:
    norms = torch.cat([codes.detach().float().norm(dim=-1) for codes in geometry.codes(module)])
    unplaced = bool((norms == 0).all())  # k-means will place them on the sphere
    return unplaced or bool(torch.allclose(norms, torch.ones_like(norms), atol=1e-3))


def _run_training(module: nn.Module, trial: Trial) -> tuple[Any, bool, tuple[float, float] | None]:
    """The tree in training, whether the pass itself moved codes, and the weights of the loss."""
    twin = copy_started(module).train()
    scatter_codes(twin)
    at = trial.geometry.codebooks[0]
    before, held = at.tensor(twin).detach().clone(), at.tensor(twin)
    z = trial.z.clone().requires_grad_()
    result = run_host(twin, z)
    after = at.tensor(twin)
    moved = after is not held or not torch.equal(after.detach(), before)
    weights = _weigh(result, z, held) if isinstance(held, nn.Parameter) else None
    averaged = not isinstance(held, nn.Parameter) or (moved and weights is None)
    return result, averaged, weights


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
