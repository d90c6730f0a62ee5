"""Codes that no row chooses are put back among the rows."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softvq.checks import check_number
from softvq.functional.assign import nearest_code
from softvq.functional.start import deviation, draw_rows


@dataclass(frozen=True, kw_only=True)
class Revival:
    """When a code counts as dead, and until when it is revived.

    Attributes:
        threshold: Share of the mean hits N / K under which a code is dead, in [0, 1); 0 revives
            none but still counts.
        until: Share of the run (of ``anneal_steps``) after which no code is revived.
        noise: Noise on a revived row, as a share of the rows' deviation.
    """

    threshold: float = 0.2
    until: float = 0.9
    noise: float = 0.01

    def __post_init__(self) -> None:
        check_number("Revival.threshold", self.threshold, least=0, most=0.999)
        check_number("Revival.until", self.until, least=0)
        check_number("Revival.noise", self.noise, least=0)


class Revived(NamedTuple):
    """Which codes were replaced, by what, and the live code nearest to each replacement."""

    codes: Int[Tensor, " r"]
    rows: Float[Tensor, "r d"]
    donors: Int[Tensor, " r"]


def pick_replacements(
    codebook: Float[Tensor, "k d"],
    hits: Float[Tensor, " k"],
    rows: Float[Tensor, "n d"],
    *,
    options: Revival,
    generator: torch.Generator,
) -> Revived | None:
    """Choose recent rows to take the place of dead codes.

    Args:
        codebook: Codes.
        hits: Running hits of each code, in units of the mean N / K.
        rows: Recent valid rows.
        options: The threshold and the noise.
        generator: Source of randomness, on the CPU, the same on every process.

    Returns:
        The replacements, or None where no code is dead or no row is there.

    Example:
        >>> codes, rows = torch.tensor([[0.0], [50.0]]), torch.tensor([[1.0], [1.0]])
        >>> g = torch.Generator().manual_seed(0)
        >>> options = Revival(noise=0.0)
        >>> hits = torch.tensor([2.0, 0.0])
        >>> out = pick_replacements(codes, hits, rows, options=options, generator=g)
        >>> out.codes.tolist(), out.rows.tolist(), out.donors.tolist()
        ([1], [[1.0]], [0])
    """
    dead = (hits < options.threshold).nonzero()[:, 0]
    if len(dead) == 0 or len(rows) == 0:
        return None
    # On the CPU, whatever the default device, as the generator is.
    mixed = torch.randperm(len(dead), generator=generator, device="cpu")[: len(rows)]
    dead = dead[mixed.to(dead.device)]
    order = torch.randperm(len(rows), generator=generator, device="cpu")[: len(dead)]
    noise = draw_rows(len(dead), like=rows, generator=generator)
    chosen = rows[order.to(rows.device)] + options.noise * deviation(rows) * noise
    live = (hits >= options.threshold).nonzero()[:, 0]
    if len(live) == 0:
        return Revived(dead, chosen, dead)
    return Revived(dead, chosen, live[nearest_code(chosen, codebook[live].to(chosen.dtype))])
