"""Soft and hard assignment of rows to a codebook: the public functions over the back ends.

Everything here is indifferent to the frame of reference. The codebook's mean is subtracted from
both sides before any product, so that an offset of the data costs no digits; since no result
depends on it, it needs no gradient.
"""

import functools

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from softvq.checks import check_floating, check_mask, check_number
from softvq.functional.backends import choose_backend, chunked, native, reference, sdpa, triton
from softvq.functional.backends.contract import Assigned
from softvq.functional.precision import without_autocast
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
    _check_operands(z, codebook, mask, code_mask)
    levels = _as_temperature(temperature, z, codebook)
    mask = _drop_all_without_codes(z, mask, code_mask)
    with without_autocast(z):
        rows, centred, centre = _centre(z, codebook, mask, code_mask)
        choice = choose_backend(backend, rows, num_codes=codebook.shape[0])
        keep = None if mask is None else mask.reshape(-1).to(rows.dtype)
        assign = _MODULES[choice.name].soft_assign
        assigned = assign(rows, centred, levels.reshape(-1), keep, code_mask)
    codes = _restore(assigned, centre, mask, rows_shape=z.shape[:-1], single=levels.ndim == 0)
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
    _check_operands(z, codebook, None, None)
    only = backend == "sdpa"
    choice = choose_backend(backend, z, num_codes=codebook.shape[0], mean_only=only)
    if choice.name != "sdpa":
        codes = soft_assign(z, codebook, temperature=temperature, backend=choice.name)
        return SoftMean(codes.mean, codes.spread)
    level = _as_temperature(temperature, z, codebook)
    with without_autocast(z):
        rows, centred, centre = _centre(z, codebook, None, None)
        mean, spread = sdpa.soft_mean(rows, centred, level)
    return SoftMean(mean + centre, spread)


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
    _check_operands(z, codebook, mask, code_mask)
    mask = _drop_all_without_codes(z, mask, code_mask)
    with without_autocast(z):
        rows, centred, _ = _centre(z.detach(), codebook.detach(), mask, code_mask)
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
    rows = z.detach().to(_working_dtype(z)).reshape(-1, z.shape[-1])
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


def _check_operands(
    z: Tensor, codebook: Tensor, mask: Tensor | None, code_mask: Tensor | None
) -> None:
    check_floating("z", z)
    check_floating("codebook", codebook)
    if codebook.ndim != 2 or 0 in codebook.shape:
        raise ValueError(
            f"codebook must be (K, D) with K and D at least 1; got shape {tuple(codebook.shape)}."
        )
    if z.ndim < 2 or z.shape[-1] != codebook.shape[-1]:
        raise ValueError(
            f"z must be (..., N, {codebook.shape[-1]}) to match a codebook of shape "
            f"{tuple(codebook.shape)}; got {tuple(z.shape)}."
        )
    if z.device != codebook.device:
        raise ValueError(f"z is on {z.device} and codebook on {codebook.device}: move one of them.")
    check_mask("mask", mask, shape=tuple(z.shape[:-1]))
    check_mask("code_mask", code_mask, shape=tuple(codebook.shape[:1]))


def _drop_all_without_codes(
    z: Tensor, mask: Tensor | None, code_mask: Tensor | None
) -> Tensor | None:
    """The mask of rows, and none of them where no code is left to take."""
    if code_mask is None:
        return mask
    some = code_mask.any().expand(z.shape[:-1])
    return some if mask is None else mask & some


def _as_temperature(temperature: Tensor | float, z: Tensor, codebook: Tensor) -> Tensor:
    """T in the dtype of the computation, held where both T and 1 / T are normal numbers there."""
    dtype = _working_dtype(z, codebook)
    limits = torch.finfo(dtype)
    if not isinstance(temperature, Tensor):
        check_number("temperature", temperature, above=0)
        held = min(max(temperature, limits.tiny), limits.max)
        return torch.as_tensor(held, dtype=dtype, device=codebook.device)
    check_floating("temperature", temperature)
    if temperature.ndim > 1 or temperature.numel() == 0:
        raise ValueError(
            f"temperature must be 0-dim or (S,); got shape {tuple(temperature.shape)}."
        )
    if temperature.device != codebook.device:
        raise ValueError(f"temperature is on {temperature.device}, codebook on {codebook.device}.")
    # Reading values would synchronize a device and break a compiled graph; there the owner checks.
    # Under vmap there is no one value to read.
    traced = torch.compiler.is_compiling() or is_functorch_wrapped_tensor(temperature)
    if temperature.device.type == "cpu" and not traced:
        for value in temperature.detach().reshape(-1).tolist():
            check_number("temperature", value, above=0)
    return temperature.to(dtype).clamp(limits.tiny, limits.max)


def _working_dtype(*tensors: Tensor) -> torch.dtype:
    """The widest dtype of the tensors, float32 at least."""
    return functools.reduce(torch.promote_types, (t.dtype for t in tensors), torch.float32)


def _centre(
    z: Tensor, codebook: Tensor, mask: Tensor | None, code_mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (N, D) and codes about the codebook's mean, in one dtype of at least float32."""
    dtype = _working_dtype(z, codebook)
    codes = codebook.to(dtype)
    if code_mask is not None:
        codes = torch.where(code_mask[:, None], codes, 0)
    centre = codes.detach().mean(0)
    rows = z.reshape(-1, z.shape[-1]).to(dtype) - centre
    if mask is not None:
        rows = torch.where(mask.reshape(-1, 1), rows, 0)
    return rows, codes - centre, centre


def _restore(
    assigned: Assigned,
    centre: Tensor,
    mask: Tensor | None,
    *,
    rows_shape: torch.Size,
    single: bool,
) -> SoftCodes:
    """Undo the centring, blank the dropped rows, put the batch axes back."""
    lead = () if single else (len(assigned.mean),)
    mean = (assigned.mean + centre).reshape(*lead, *rows_shape, len(centre))
    spread, free_energy, entropy = (
        part.reshape(*lead, *rows_shape)
        for part in (assigned.spread, assigned.free_energy, assigned.entropy)
    )
    indices = assigned.indices.reshape(rows_shape)
    if mask is not None:
        mean = torch.where(mask[..., None], mean, 0)
        spread, free_energy, entropy = (
            torch.where(mask, part, 0) for part in (spread, free_energy, entropy)
        )
        indices = torch.where(mask, indices, -1)
    return SoftCodes(mean, spread, free_energy, entropy, indices)
