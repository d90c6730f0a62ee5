"""Argument checks: one place, one form. Name the argument, show what came, say what would work."""

import difflib
import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import TypeVar

import torch
from torch import Tensor

Kind = TypeVar("Kind")


def choose(argument: str, value: str, valid: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``valid``.

    Args:
        argument: Name of the argument, for the message.
        value: What the caller gave.
        valid: The names that exist.

    Returns:
        The value itself.

    Raises:
        ValueError: If it is none of them; lists them and names the nearest.

    Example:
        >>> choose("layout", "channels_last", ["channels_last", "channels_first"])
        'channels_last'
    """
    names = list(valid)
    if value in names:
        return value
    near = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{argument} is {value!r}; valid are: {', '.join(names)}.{hint}")


def check_count(argument: str, value: int, *, least: int = 1) -> int:
    """Return ``value`` if it is a whole number of at least ``least``, and below 2^63.

    Raises:
        ValueError: Otherwise.

    Example:
        >>> check_count("num_codes", 512)
        512
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or value < least:
        raise ValueError(f"{argument} must be a whole number of at least {least}; got {value!r}.")
    if value >= 2**63:
        raise ValueError(f"{argument} must be a whole number below 2^63; got {value!r}.")
    return int(value)


def check_number(
    argument: str,
    value: float,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
) -> float:
    """Return ``value`` if it is finite, in [least, most] and greater than ``above``.

    Raises:
        ValueError: Otherwise.

    Example:
        >>> check_number("beta", 0.25, least=0)
        0.25
    """
    number = isinstance(value, Real) and not isinstance(value, bool)
    if number and math.isfinite(value) and least <= value <= most and value > above:
        return float(value)
    bounds = [
        f"{sign} {bound:g}"
        for sign, bound in ((">=", least), ("<=", most), (">", above))
        if math.isfinite(bound)
    ]
    wanted = f"a finite number{' ' if bounds else ''}{' and '.join(bounds)}"
    raise ValueError(f"{argument} must be {wanted}; got {value!r}.")


def check_kind(argument: str, value: Kind, kind: type[Kind]) -> Kind:
    """Return ``value`` if it is a ``kind``, such as the options of a part.

    Raises:
        ValueError: Otherwise; says how one is written.

    Example:
        >>> check_kind("dims", (8, 4), tuple)
        (8, 4)
    """
    if not isinstance(value, kind):
        name = kind.__name__
        raise ValueError(f"{argument} must be a {name}; got {value!r}. Write {name}(...) for it.")
    return value


def check_floating(argument: str, tensor: Tensor) -> None:
    """Raise unless ``tensor`` holds real floating-point numbers.

    Raises:
        ValueError: For integer, bool, complex, sparse and nested tensors, floats of 8 bits, with
            which torch does not compute, and what is no tensor.

    Example:
        >>> check_floating("z", torch.zeros(2))
    """
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{argument} must be a tensor; got {type(tensor).__name__}.")
    if tensor.is_nested or tensor.layout != torch.strided:
        came = "nested" if tensor.is_nested else tensor.layout
        raise ValueError(
            f"{argument} must be a dense tensor; got {came}. "
            f"Give {argument}.to_dense(), or for sequences of several lengths a padded batch with "
            "a mask."
        )
    if not tensor.is_floating_point():
        raise ValueError(
            f"{argument} must be a floating-point tensor; got {tensor.dtype}. "
            f"Convert it with {argument}.float()."
        )
    if tensor.dtype.itemsize < 2:
        raise ValueError(
            f"{argument} is {tensor.dtype}, with which nothing is computed. Convert it with "
            f"{argument}.bfloat16()."
        )


def check_features(argument: str, tensor: Tensor, *, dim: int, axis: int) -> None:
    """Raise unless ``tensor`` is floating point and has ``dim`` features on ``axis``.

    Raises:
        ValueError: With the shape that came, and a hint where another axis has that size.

    Example:
        >>> check_features("z", torch.zeros(5, 3), dim=3, axis=-1)
    """
    check_floating(argument, tensor)
    least = 2 if axis == 1 else 1
    if tensor.ndim < least:
        raise ValueError(
            f"{argument} needs at least {least} axes to have its features on axis {axis}; "
            f"got shape {tuple(tensor.shape)}."
        )
    if tensor.shape[axis] == dim:
        return
    elsewhere = [i for i, size in enumerate(tensor.shape) if size == dim]
    hint = f" Axis {elsewhere[0]} has {dim}: is the layout right?" if elsewhere else ""
    raise ValueError(
        f"{argument} must have {dim} features on axis {axis}; got {tensor.shape[axis]} "
        f"in shape {tuple(tensor.shape)}.{hint}"
    )


def check_mask(argument: str, mask: Tensor | None, *, shape: tuple[int, ...]) -> None:
    """Raise unless ``mask`` is None or a bool tensor of ``shape`` (True keeps a position).

    Raises:
        ValueError: With dtype and shape that came.

    Example:
        >>> check_mask("mask", torch.ones(2, 3, dtype=torch.bool), shape=(2, 3))
    """
    if mask is None:
        return
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        came = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"{argument} must be a bool tensor, True where a row counts; got {came}.")
    if tuple(mask.shape) != tuple(shape):
        raise ValueError(
            f"{argument} must have shape {tuple(shape)}, the input's without its feature axis; "
            f"got {tuple(mask.shape)}."
        )


def check_finite(argument: str, tensor: Tensor, *, remedy: str) -> None:
    """Raise if ``tensor`` holds NaN or an infinity; this synchronizes with the device.

    Raises:
        ValueError: With the number of such entries and ``remedy``.

    Example:
        >>> check_finite("z", torch.zeros(2), remedy="Lower the learning rate.")
    """
    bad = int((~torch.isfinite(tensor)).sum())
    if bad:
        raise ValueError(
            f"{argument} holds {bad} of {tensor.numel()} entries that are NaN or infinite. {remedy}"
        )
