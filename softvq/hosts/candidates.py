"""Where a module's codes may be, and how it may see its input: what a probe goes through.

Nothing runs here, and no class name is looked at but those of parts that hold no codes.
"""

import itertools
from collections.abc import Iterator

from torch import nn

from softvq.hosts.geometry import METRICS, CodebookAt, Geometry, in_features

MOST_TENSORS = 24  # in a quantizer; what holds more is a network around one
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


def geometries(
    module: nn.Module, codebooks: tuple[CodebookAt, ...]
) -> Iterator[tuple[Geometry, int]]:
    """Geometries to try, each with the number of features of the host's input.

    Example:
        >>> vq = nn.Embedding(8, 4)
        >>> {dim for at in candidates(vq) for _, dim in geometries(vq, at)}
        {8, 4}
    """
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
