"""Finding what a quantizer does by running a copy of it: no class name is looked at.

The copy's codebook is overwritten with random codes. Where the rows that come back are those codes,
chosen as a geometry says, tensor, layout, metric, heads and projections are all proven at once.
"""

import itertools
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from softvq.hosts.candidates import candidates
from softvq.hosts.families import name_family, name_refused
from softvq.hosts.geometry import Geometry
from softvq.hosts.probed import Answer, ProbedAdapter, own_forward
from softvq.hosts.roles import kinds_of, read_roles
from softvq.hosts.tree import Role, describe, leaves, skeleton
from softvq.hosts.trial import Run, find_geometry, run_training


class Probed(NamedTuple):
    """What probing one module said: an adapter, or why there is none.

    ``is_quantizer`` says whether it surely is one, so that leaving it out must be an error.
    """

    adapter: ProbedAdapter | None
    reason: str = ""
    is_quantizer: bool = False


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
    trial, runs = find_geometry(module)
    if trial is None:
        return _unproven(runs)
    metric = trial.geometry.metric
    if metric == "unit codes" and not _are_unit(trial.geometry, module):
        return Probed(
            None,
            "assigns by dot product with codes that are not of unit norm, which is no distance",
            is_quantizer=True,
        )
    training = run_training(module, trial)
    roles = read_roles(trial.seen, training.seen)
    tree = kinds_of(training.seen.result, roles.train)
    family = name_family(tree)
    if family is None:
        return Probed(None, f"returns family {name_refused(tree)}", is_quantizer=True)
    return Probed(
        ProbedAdapter(
            family=family,
            geometry=trial.geometry,
            train=Answer(skeleton=skeleton(training.seen.result), roles=roles.train),
            eval=Answer(skeleton=skeleton(trial.seen.result), roles=roles.eval),
            averaged=training.averaged,
            codec=not own_forward(type(module)),
            weights=training.weights,
        )
    )


def _unproven(runs: list[Run]) -> Probed:
    """Why no geometry was found, by the result that looked most like a quantizer's."""
    for z, result in runs:
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
    if runs:
        return Probed(None, f"returns {describe(runs[0].result)}, no codes")
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


def _are_unit(geometry: Geometry, module: nn.Module) -> bool:
    norms = torch.cat([codes.detach().float().norm(dim=-1) for codes in geometry.codes(module)])
    unplaced = bool((norms == 0).all())  # k-means will place them on the sphere
    return unplaced or bool(torch.allclose(norms, torch.ones_like(norms), atol=1e-3))
