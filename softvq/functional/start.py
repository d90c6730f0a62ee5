"""Placing a codebook on data."""

import torch
from jaxtyping import Float
from torch import Tensor

from softvq.functional.assign import count_codes, nearest_code, sum_by_code
from softvq.functional.precision import at_least_float32

NOISE_SHARE = 1e-2


def sample_rows(
    rows: Float[Tensor, "n d"], num: int, *, generator: torch.Generator
) -> Float[Tensor, "num d"]:
    """Draw rows without replacement; with fewer rows than asked, again and with a little noise.

    Repeats get noise of 1e-2 of each feature's deviation, since equal codes stay equal for ever.

    Args:
        rows: At least one row.
        num: How many are wanted.
        generator: Source of randomness, on the CPU.

    Returns:
        ``num`` rows.

    Raises:
        ValueError: If there is no row.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> sample_rows(torch.zeros(2, 3), 5, generator=g).shape
        torch.Size([5, 3])
    """
    if len(rows) == 0:
        raise ValueError("rows must hold at least one row to draw from; got none.")
    order = torch.randperm(len(rows), generator=generator, device="cpu")[:num]
    if len(order) < num:
        more = torch.randint(len(rows), (num - len(order),), generator=generator, device="cpu")
        order = torch.cat([order, more])
    chosen = rows[order.to(rows.device)].clone()
    if num > len(rows):
        extra = num - len(rows)
        noise = draw_rows(extra, like=rows, generator=generator)
        chosen[-extra:] += NOISE_SHARE * deviation(rows) * noise
    return chosen


def draw_rows(
    num: int, *, like: Float[Tensor, "n d"], generator: torch.Generator
) -> Float[Tensor, "num d"]:
    """Normal numbers, drawn in float32 on the CPU whatever the default dtype and device.

    Args:
        num: Rows.
        like: Features, dtype and device.
        generator: Source of randomness, on the CPU.

    Returns:
        ``num`` rows.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> draw_rows(2, like=torch.zeros(5, 3), generator=g).shape
        torch.Size([2, 3])
    """
    shape = (num, like.shape[-1])
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu").to(like)


def deviation(rows: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
    """Deviation of each feature; where a feature does not vary, a sliver of the rows' scale.

    Example:
        >>> deviation(torch.tensor([[0.0], [2.0]])).item()
        1.0
    """
    spread = rows.std(0, unbiased=False)
    scale = rows.abs().mean().clamp_min(1e-6)
    return torch.where(spread > 1e-6 * scale, spread, 1e-2 * scale)


def kmeans(
    rows: Float[Tensor, "n d"],
    num_codes: int,
    *,
    generator: torch.Generator,
    iterations: int = 8,
) -> Float[Tensor, "k d"]:
    """Lloyd's k-means from a random sample; an empty cell takes a random row.

    Args:
        rows: At least one row; fewer rows than codes is no error.
        num_codes: K.
        generator: Source of randomness, on the CPU.
        iterations: Passes over the rows.

    Returns:
        Codes in float32 at least, no two of them equal.

    Raises:
        ValueError: If there is no row.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> codes = kmeans(torch.tensor([[0.0], [0.2], [9.0]]), 2, generator=g)
        >>> [round(c, 2) for c in codes.flatten().sort().values.tolist()]
        [0.1, 9.0]
    """
    rows = at_least_float32(rows)
    codes = sample_rows(rows, num_codes, generator=generator)
    if len(rows) <= num_codes:
        # Every row has a code of its own; there is no mean to take.
        return part_duplicates(codes, rows, generator=generator)
    for _ in range(iterations):
        nearest = nearest_code(rows, codes)
        counts = count_codes(nearest, num_codes=num_codes)
        sums = sum_by_code(rows, nearest, num_codes=num_codes)
        filled = counts > 0
        means = sums / counts.clamp_min(1)[:, None]
        spare = sample_rows(rows, num_codes, generator=generator)
        codes = torch.where(filled[:, None], means, spare)
    return part_duplicates(codes, rows, generator=generator)


def part_duplicates(
    codes: Float[Tensor, "k d"], rows: Float[Tensor, "n d"], *, generator: torch.Generator
) -> Float[Tensor, "k d"]:
    """Move each code that equals an earlier one by a little noise: equal codes never part.

    Args:
        codes: Codes.
        rows: The data, at least one row; noise is 1e-2 of each feature's deviation.
        generator: Source of randomness, on the CPU.

    Returns:
        Codes, the first of each kind as it was.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> codes = part_duplicates(torch.zeros(3, 2), torch.randn(9, 2, generator=g), generator=g)
        >>> len(codes.unique(dim=0))
        3
    """
    place = torch.arange(len(codes), device=codes.device)
    kinds, kind = codes.unique(dim=0, return_inverse=True)
    first = place.new_full((len(kinds),), len(codes)).scatter_reduce(0, kind, place, "amin")
    noise = draw_rows(len(codes), like=codes, generator=generator)
    moved = codes + NOISE_SHARE * deviation(rows) * noise
    return torch.where((place == first[kind])[:, None], codes, moved)
