"""Operands of an assignment, brought into the form that back ends take, and its results back.

Rows (N, D) and codes (K, D) stand about the codebook's mean, in one dtype of at least float32; rows
that do not count are zero. Nothing here knows which back end will run.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from softvq.checks import check_floating, check_mask, check_number
from softvq.functional.backends.contract import Assigned
from softvq.functional.precision import working_dtype
from softvq.types import SoftCodes


class Centred(NamedTuple):
    """Rows (N, D) and codes (K, D) about ``origin`` (D,), in one dtype of at least float32."""

    rows: Tensor
    codes: Tensor
    origin: Tensor


def check_operands(
    z: Tensor, codebook: Tensor, mask: Tensor | None, code_mask: Tensor | None
) -> None:
    """Raise ValueError unless these fit together: (..., N, D), (K, D), (..., N) and (K,).

    Example:
        >>> check_operands(torch.ones(2, 3), torch.ones(8, 4), None, None)
        Traceback (most recent call last):
        ValueError: z must be (..., N, 4) to match a codebook of shape (8, 4); got (2, 3).
    """
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


def drop_all_without_codes(
    z: Tensor, mask: Tensor | None, code_mask: Tensor | None
) -> Tensor | None:
    """The mask of rows, and none of them where no code is left to take.

    Example:
        >>> none = torch.zeros(8, dtype=torch.bool)
        >>> drop_all_without_codes(torch.ones(2, 3), None, none).tolist()
        [False, False]
    """
    if code_mask is None:
        return mask
    some = code_mask.any().expand(z.shape[:-1])
    return some if mask is None else mask & some


def read_temperature(temperature: Tensor | float, z: Tensor, codebook: Tensor) -> Tensor:
    """T in the dtype of the computation, held where both T and 1 / T are normal numbers there.

    Raises:
        ValueError: For T that is not positive, of more than one axis, or on another device.

    Example:
        >>> z = torch.ones(2, 3, dtype=torch.float64)
        >>> read_temperature(0.5, z, torch.ones(8, 3))
        tensor(0.5000, dtype=torch.float64)
    """
    dtype = working_dtype(z, codebook)
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


def centre(z: Tensor, codebook: Tensor, mask: Tensor | None, code_mask: Tensor | None) -> Centred:
    """Put rows and codes about the codebook's mean.

    Example:
        >>> centre(torch.ones(1, 1), torch.tensor([[2.0], [4.0]]), None, None).codes.tolist()
        [[-1.0], [1.0]]
    """
    dtype = working_dtype(z, codebook)
    codes = codebook.to(dtype)
    if code_mask is not None:
        codes = torch.where(code_mask[:, None], codes, 0)
    origin = codes.detach().mean(0)
    rows = z.reshape(-1, z.shape[-1]).to(dtype) - origin
    if mask is not None:
        rows = torch.where(mask.reshape(-1, 1), rows, 0)
    return Centred(rows, codes - origin, origin)


def restore(
    assigned: Assigned,
    origin: Tensor,
    mask: Tensor | None,
    *,
    rows_shape: torch.Size,
    single: bool,
) -> SoftCodes:
    """Undo the centring, blank the dropped rows, put the batch axes back.

    Args:
        assigned: What a back end says of N rows at S temperatures.
        origin: That of `centre`.
        mask: True keeps a row.
        rows_shape: The axes that became N.
        single: Whether the one temperature was 0-dim, so that no axis S comes back.
    """
    lead = () if single else (len(assigned.mean),)
    mean = (assigned.mean + origin).reshape(*lead, *rows_shape, len(origin))
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
