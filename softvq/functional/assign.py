"""Soft and hard assignment of rows to a codebook: the public functions over the back ends.

Everything here is indifferent to the frame of reference. The codebook's mean is subtracted from
both sides before any product, so that an offset of the data costs no digits; since no result
depends on it, it needs no gradient.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softvq.functional.backends import choose_backend, chunked, native, reference, sdpa, triton
from softvq.functional.operands import (
    centre,
    check_operands,
    drop_all_without_codes,
    read_temperature,
    restore,
)
from softvq.functional.precision import at_least_float32, without_autocast
from softvq.types import CodeSums, SoftCodes, SoftMean

_MODULES = {"reference": reference, "chunked": chunked, "native": native, "triton": triton}


def soft_assign(
    z: Float[Tensor, "*batch n d"],
    codebook: Float[Tensor, "k d"],
    *,
    temperature: Float[Tensor, "*s"] | float,
    mask: Bool[Tensor, "*batch n"] | None = None,
    code_mask: Bool[Tensor, " k"] | None = None,
    backend: str = "auto",
) -> SoftCodes:
    """Assign each row softly to K codes with weights softmax(-|z - p|^2 / T).

    Args:
        z: Rows. Computed in float32 at least, whatever their dtype and autocast.
        codebook: Codes.
        temperature: T > 0 in units of squared distance; 0-dim, or (S,) for several at once.
        mask: True keeps a row; dropped rows give zeros and index -1, and their content, NaN
            included, reaches nothing.
        code_mask: True keeps a code; no row takes or mixes in a dropped one. Where all are
            dropped, all rows are.
        backend: "auto", "reference", "chunked", "native" or "triton"; see the README.

    Returns:
        Mean, spread, free energy, entropy and index of each row; with S temperatures a leading
        axis S on all but the index.

    Raises:
        ValueError: For shapes, dtypes or devices that do not fit, T that is not positive, a back
            end that is unknown or cannot do this.

    Example:
        >>> z, codebook = torch.tensor([[0.1]]), torch.tensor([[-1.0], [1.0]])
        >>> print(f"{soft_assign(z, codebook, temperature=1.0).mean.item():.5f}")
        0.19738
    """
    codes, _ = soft_assign_and_use(
        z, codebook, temperature=temperature, mask=mask, code_mask=code_mask, backend=backend
    )
    return codes


def soft_assign_and_use(
    z: Float[Tensor, "*batch n d"],
    codebook: Float[Tensor, "k d"],
    *,
    temperature: Float[Tensor, "*s"] | float,
    mask: Bool[Tensor, "*batch n"] | None = None,
    code_mask: Bool[Tensor, " k"] | None = None,
    backend: str = "auto",
) -> tuple[SoftCodes, Float[Tensor, "*s k"]]:
    """`soft_assign`, and from the same pass the mean weight of each code over the kept rows.

    Args:
        z: Rows.
        codebook: Codes.
        temperature: As in `soft_assign`.
        mask: True keeps a row.
        code_mask: True keeps a code.
        backend: As in `soft_assign`.

    Returns:
        The soft codes and the soft use (K,), or (S, K); differentiable, sums to one.

    Raises:
        ValueError: As `soft_assign`.

    Example:
        >>> z, codebook = torch.tensor([[0.0]]), torch.tensor([[-1.0], [1.0]])
        >>> soft_assign_and_use(z, codebook, temperature=1.0)[1].tolist()
        [0.5, 0.5]
    """
    check_operands(z, codebook, mask, code_mask)
    levels = read_temperature(temperature, z, codebook)
    mask = drop_all_without_codes(z, mask, code_mask)
    with without_autocast(z):
        rows, centred, origin = centre(z, codebook, mask, code_mask)
        choice = choose_backend(backend, rows, num_codes=codebook.shape[0])
        keep = None if mask is None else mask.reshape(-1).to(rows.dtype)
        assign = _MODULES[choice.name].soft_assign
        assigned = assign(rows, centred, levels.reshape(-1), keep, code_mask)
    codes = restore(assigned, origin, mask, rows_shape=z.shape[:-1], single=levels.ndim == 0)
    return codes, assigned.use[0] if levels.ndim == 0 else assigned.use


def soft_mean(
    z: Float[Tensor, "n d"],
    codebook: Float[Tensor, "k d"],
    *,
    temperature: Float[Tensor, ""] | float,
    backend: str = "auto",
) -> SoftMean:
    """Soft centroid and spread alone, which one fused attention call can give.

    Args:
        z: Rows.
        codebook: Codes.
        temperature: One T > 0.
        backend: "auto", "reference", "sdpa", "chunked", "native" or "triton".

    Returns:
        Mean (N, D) and spread (N,).

    Raises:
        ValueError: As `soft_assign`.

    Example:
        >>> z, codebook = torch.tensor([[0.1]]), torch.tensor([[-1.0], [1.0]])
        >>> soft_mean(z, codebook, temperature=0.1, backend="sdpa").mean.shape
        torch.Size([1, 1])
    """
    check_operands(z, codebook, None, None)
    only = backend == "sdpa"
    choice = choose_backend(backend, z, num_codes=codebook.shape[0], mean_only=only)
    if choice.name != "sdpa":
        codes = soft_assign(z, codebook, temperature=temperature, backend=choice.name)
        return SoftMean(codes.mean, codes.spread)
    level = read_temperature(temperature, z, codebook)
    with without_autocast(z):
        rows, centred, origin = centre(z, codebook, None, None)
        mean, spread = sdpa.soft_mean(rows, centred, level)
    return SoftMean(mean + origin, spread)


def nearest_code(
    z: Float[Tensor, "*batch n d"],
    codebook: Float[Tensor, "k d"],
    *,
    mask: Bool[Tensor, "*batch n"] | None = None,
    code_mask: Bool[Tensor, " k"] | None = None,
    backend: str = "auto",
) -> Int[Tensor, "*batch n"]:
    """Index of the nearest code of each row, ties to the lowest.

    Args:
        z: Rows.
        codebook: Codes.
        mask: True keeps a row; dropped rows give -1.
        code_mask: True keeps a code; a dropped one is nobody's nearest.
        backend: "auto", "reference", or "chunked", "native" or "triton" (no N x K buffer).

    Returns:
        int64 indices.

    Raises:
        ValueError: As `soft_assign`.

    Example:
        >>> nearest_code(torch.tensor([[0.9], [0.2]]), torch.tensor([[0.0], [1.0]])).tolist()
        [1, 0]
    """
    check_operands(z, codebook, mask, code_mask)
    mask = drop_all_without_codes(z, mask, code_mask)
    with without_autocast(z):
        rows, centred, _ = centre(z.detach(), codebook.detach(), mask, code_mask)
        choice = choose_backend(backend, rows, num_codes=codebook.shape[0])
        indices = _MODULES[choice.name].nearest_code(rows, centred, code_mask)
    indices = indices.reshape(z.shape[:-1])
    return indices if mask is None else torch.where(mask, indices, -1)


def count_codes(indices: Int[Tensor, "*batch n"], *, num_codes: int) -> Int[Tensor, " k"]:
    """Rows per code; rows with index -1 count nowhere.

    Args:
        indices: Code of each row, -1 for none.
        num_codes: K.

    Returns:
        Counts (K,), int64.

    Example:
        >>> count_codes(torch.tensor([1, 1, -1]), num_codes=2).tolist()
        [0, 2]
    """
    flat = indices.reshape(-1)
    slot = torch.where(flat >= 0, flat, num_codes)  # one slot more, for rows that do not count
    counts = torch.zeros(num_codes + 1, dtype=torch.int64, device=flat.device)
    return counts.index_add(0, slot, torch.ones_like(slot))[:-1]  # not in place, for vmap


def sum_by_code(
    z: Float[Tensor, "*batch n d"], indices: Int[Tensor, "*batch n"], *, num_codes: int
) -> Float[Tensor, "k d"]:
    """Sum of the rows of each code; rows with index -1, whatever they hold, count nowhere.

    Args:
        z: Rows.
        indices: Code of each row, -1 for none.
        num_codes: K.

    Returns:
        Sums (K, D) in float32 at least. No gradient.

    Example:
        >>> sum_by_code(torch.tensor([[1.0], [2.0]]), torch.tensor([1, 1]), num_codes=2).tolist()
        [[0.0], [3.0]]
    """
    rows = at_least_float32(z.detach()).reshape(-1, z.shape[-1])
    flat = indices.reshape(-1)
    kept = flat >= 0
    sums = rows.new_zeros(num_codes + 1, rows.shape[-1])
    sums.index_add_(0, torch.where(kept, flat, num_codes), torch.where(kept[:, None], rows, 0))
    return sums[:-1]


def summarize(
    z: Float[Tensor, "*batch n d"],
    codebook: Float[Tensor, "k d"],
    *,
    temperature: Float[Tensor, "*s"] | float,
    mask: Bool[Tensor, "*batch n"] | None = None,
    code_mask: Bool[Tensor, " k"] | None = None,
    backend: str = "auto",
) -> CodeSums:
    """Sums over rows of a soft assignment: soft use, hard counts, sums of rows per code.

    Args:
        z: Rows.
        codebook: Codes.
        temperature: As in `soft_assign`.
        mask: True keeps a row.
        code_mask: True keeps a code.
        backend: As in `soft_assign`.

    Returns:
        Use (differentiable), counts and sums.

    Raises:
        ValueError: As `soft_assign`.

    Example:
        >>> z, codebook = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [1.0]])
        >>> summarize(z, codebook, temperature=1.0).counts.tolist()
        [1, 1]
    """
    codes, use = soft_assign_and_use(
        z, codebook, temperature=temperature, mask=mask, code_mask=code_mask, backend=backend
    )
    num_codes = len(codebook)
    counts = count_codes(codes.indices, num_codes=num_codes)
    return CodeSums(use, counts, sum_by_code(z, codes.indices, num_codes=num_codes))
