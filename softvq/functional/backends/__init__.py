"""Back ends of the assignment, and the table that picks one."""

from typing import NamedTuple

import torch

from softvq.checks import choose

BACKENDS = ("reference", "sdpa", "chunked")
FULL_BACKENDS = ("reference", "chunked")
DENSE_LIMIT = 2**15


class BackendChoice(NamedTuple):
    """A back end and why it was picked."""

    name: str
    reason: str


def choose_backend(
    backend: str, *, num_rows: int, num_codes: int, mean_only: bool = False
) -> BackendChoice:
    """Pick the back end for a problem, or check the one that was asked for.

    Args:
        backend: "auto" or a name.
        num_rows: N.
        num_codes: K.
        mean_only: Whether mean and spread are all that is wanted.

    Returns:
        The name and the reason.

    Raises:
        ValueError: For an unknown name, or one that cannot give what is wanted.

    Example:
        >>> choose_backend("auto", num_rows=8192, num_codes=8192).name
        'chunked'
    """
    choose("backend", backend, ("auto", *BACKENDS))
    if backend == "sdpa" and not mean_only:
        raise ValueError(
            "backend='sdpa' gives mean and spread alone: one attention call has no index, entropy "
            f"or free energy. Use soft_mean, or one of: auto, {', '.join(FULL_BACKENDS)}."
        )
    if backend != "auto":
        return BackendChoice(backend, "asked for by name")
    # A choice by size would be a guard on sizes in a compiled graph, and bounds in an exported one.
    if torch.compiler.is_compiling():
        if _is_exporting():
            return BackendChoice("reference", "exporting: plain operators, which any runtime has")
        return BackendChoice("chunked", "compiling: one operator for every size")
    if num_rows * num_codes <= DENSE_LIMIT:
        size = f"N x K = {num_rows * num_codes} is small"
        return BackendChoice("reference", f"{size}: dense formulas cost least")
    return BackendChoice("chunked", "blocks of rows: memory linear in N and K, time flat in T")


def _is_exporting() -> bool:
    """Whether torch.export traces this; before torch 2.7 nothing tells, so False."""
    tells = getattr(torch.compiler, "is_exporting", None)
    return tells is not None and tells()
