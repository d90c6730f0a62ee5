"""What each leaf of a result tree is, by comparing it with what a geometry predicts."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from softvq.hosts.families.shape import Kinds
from softvq.hosts.tree import Path, Role, leaves

LOSS_FORMS = {(): "scalar", (1,): "one"}
# Keys of the loss that hosts add to theirs.
TOTALS = ("loss", "quantizer_loss", "vq_loss", "total_loss", "codebook_loss")


class Roles(NamedTuple):
    """Roles of the leaves in training and in eval mode."""

    train: dict[Path, Role]
    eval: dict[Path, Role]


@dataclass(frozen=True)
class Seen:
    """One result, and what the geometry says of it."""

    result: Any
    z: Tensor
    quantized: Tensor
    indices: Tensor


def kinds_of(result: Any, roles: dict[Path, Role]) -> Kinds:
    """The tree with kinds for leaves; lists and named tuples become tuples, mappings dicts."""
    if hasattr(result, "keys"):
        return {key: _below(result[key], roles, key) for key in result}
    if isinstance(result, tuple | list):
        return tuple(_below(each, roles, i) for i, each in enumerate(result))
    return roles[()].kind


def _below(part: Any, roles: dict[Path, Role], step: int | str) -> Kinds:
    return kinds_of(part, {path[1:]: role for path, role in roles.items() if path[:1] == (step,)})


def read_roles(hard: Seen, trained: Seen) -> Roles:
    """Roles in both modes.

    Args:
        hard: The result in eval mode, whose values are known.
        trained: The result in training, on the same input.
    """
    in_eval = {path: _role(leaf, hard) for path, leaf in leaves(hard.result).items()}
    in_train = {
        path: _role(leaf, trained, fallback=in_eval.get(path))
        for path, leaf in leaves(trained.result).items()
    }
    in_train = _one_loss(in_train, trained)
    # Without gradients a loss is a scalar like others: training says which it is.
    for path, role in in_eval.items():
        told = in_train.get(path)
        if told is not None and told.kind in ("loss", "zero") and role.kind in ("zero", "unknown"):
            in_eval[path] = told
    return Roles(in_train, in_eval)


def _role(leaf: Any, seen: Seen, fallback: Role | None = None) -> Role:
    if leaf is None:
        return Role(kind="none")
    if not isinstance(leaf, Tensor):
        number = isinstance(leaf, float | int) and not isinstance(leaf, bool)
        if number and fallback is not None and fallback.kind == "perplexity":
            return fallback
        return _number(leaf, seen) if number else Role(kind="constant", value=leaf)
    for read in (_as_whole, _as_scalar, _as_table, _as_rows):
        role = read(leaf, seen)
        if role is not None:
            return role
    if fallback is not None and fallback.kind in ("quantized", "indices", "one_hot", "distances"):
        return fallback  # chance or averages move values in training; place and shape say enough
    return Role(kind="unknown", dtype=leaf.dtype)


def _number(leaf: float, seen: Seen) -> Role:
    if abs(leaf - float(_perplexity(seen))) < 1e-3:
        return Role(kind="perplexity", form="number", value=leaf)
    return Role(kind="zero" if isinstance(leaf, float) else "constant", form="number", value=leaf)


def _perplexity(seen: Seen) -> Tensor:
    counts = seen.indices.reshape(-1).bincount().float()
    share = counts[counts > 0] / counts.sum()
    return (-(share * share.log()).sum()).exp()


def _as_whole(leaf: Tensor, seen: Seen) -> Role | None:
    if leaf.is_floating_point() or leaf.numel() != seen.indices.numel():
        return None
    if not torch.equal(leaf.reshape(-1).long(), seen.indices.reshape(-1)):
        return None
    if leaf.shape == seen.indices.shape and leaf.ndim > 1:
        return Role(kind="indices", form="grid", dtype=leaf.dtype)
    if leaf.ndim == 1:
        return Role(kind="indices", form="grid" if seen.z.ndim == 2 else "flat", dtype=leaf.dtype)
    if leaf.ndim == 2 and leaf.shape[1] == 1:
        return Role(kind="indices", form="column", dtype=leaf.dtype)
    return None


def _as_scalar(leaf: Tensor, seen: Seen) -> Role | None:
    batch = leaf.shape == (len(seen.z),)
    if not leaf.is_floating_point() or not (tuple(leaf.shape) in LOSS_FORMS or batch):
        return None
    form = "batch" if batch else LOSS_FORMS[tuple(leaf.shape)]
    if leaf.requires_grad:
        return Role(kind="loss", form=form, dtype=leaf.dtype)
    if not batch and torch.allclose(leaf.float(), _perplexity(seen), rtol=1e-3):
        return Role(kind="perplexity", form=form, dtype=leaf.dtype)
    return Role(kind="zero", form=form, dtype=leaf.dtype)


def _as_table(leaf: Tensor, seen: Seen) -> Role | None:
    flat = seen.indices.reshape(-1)
    if leaf.ndim != 2 or len(leaf) != len(flat):
        return None
    num = leaf.shape[1]
    if int(flat.max()) < num and torch.equal(leaf.long(), F.one_hot(flat, num)):
        return Role(kind="one_hot", dtype=leaf.dtype)
    if leaf.is_floating_point() and torch.equal(leaf.argmin(-1), flat):
        return Role(kind="distances", dtype=leaf.dtype)
    return None


def _as_rows(leaf: Tensor, seen: Seen) -> Role | None:
    if not leaf.is_floating_point():
        return None
    scale = float(seen.quantized.detach().abs().max())
    if leaf.shape == seen.quantized.shape and torch.allclose(
        leaf, seen.quantized.to(leaf.dtype), rtol=0, atol=1e-4 * scale
    ):
        return Role(kind="quantized", dtype=leaf.dtype)
    if leaf.shape == seen.z.shape and torch.allclose(leaf, seen.z.to(leaf.dtype)):
        return Role(kind="input", dtype=leaf.dtype)
    return None


def _one_loss(roles: dict[Path, Role], seen: Seen) -> dict[Path, Role]:
    """Of several losses the one that is the sum of the rest, or that is named so, or the first.

    Hosts of family A' add up a tuple by place: there the first takes all.
    """
    found = [path for path, role in roles.items() if role.kind == "loss"]
    if len(found) < 2:
        return roles
    values = {path: leaves(seen.result)[path].detach().sum() for path in found}
    total = torch.stack(list(values.values())).sum()
    sums = [path for path in found if torch.allclose(2 * values[path], total, rtol=1e-4)]
    named = [path for path in found if path[-1] in TOTALS]
    chosen = (sums or named or found)[0]
    return {
        path: Role(kind="zero", form=role.form, dtype=role.dtype)
        if path in found and path != chosen
        else role
        for path, role in roles.items()
    }
