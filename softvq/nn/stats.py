"""What a forward pass tells of its batch: detached 0-dim tensors by name.

N rows, D features, K codes. A name that ends in ``_batch`` is of this batch alone; the rest of what
`codebook_stats` gives is of the codebook as it is.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softvq.functional.assign import count_codes
from softvq.functional.decompose import decompose
from softvq.functional.diagnostics import perplexity, separation
from softvq.functional.losses import mean_of_rows
from softvq.nn.schedule import LEAST, TemperatureState
from softvq.nn.upkeep import Upkeep
from softvq.types import SoftCodes


@torch.no_grad()
def codebook_stats(
    vq: Upkeep, indices: Int[Tensor, " n"], *, variance: Float[Tensor, ""]
) -> dict[str, Tensor]:
    """What every codebook tells: how far its codes are apart, how many are used, how many dead.

    Args:
        vq: The codebook.
        indices: Code of each row, -1 where none counts.
        variance: Of the rows, summed over features.

    Returns:
        ``use_hard_batch`` is a share of the K codes, in [0, 1], at most N / K;
        ``perplexity_hard_batch`` a number of codes in [1, K], 0 without a row; ``distinct_codes``
        in [1, K] and ``dead_codes`` in [0, K] are numbers of codes; ``separation`` is a ratio of
        distances.

    Example:
        >>> from softvq.nn.hard import HardVQ
        >>> stats = codebook_stats(HardVQ(4, 2), torch.tensor([0, 0, 3]), variance=torch.ones(()))
        >>> stats["use_hard_batch"].item()
        0.5
    """
    counts = count_codes(indices, num_codes=vq.num_codes)
    dead = 0.0 if vq.revival is None else vq.revival.threshold
    return {
        "separation": separation(vq.codebook, variance),
        "use_hard_batch": (counts > 0).float().mean(),
        "perplexity_hard_batch": perplexity(counts),
        "distinct_codes": vq.distinct.float(),
        "dead_codes": (vq.hits < max(dead, 1e-6)).sum().float(),
    }


@torch.no_grad()
def soft_stats(
    rows: Float[Tensor, "n d"],
    decoded: SoftCodes,
    *,
    settled: SoftCodes,
    use: Float[Tensor, " k"],
    schedule: TemperatureState,
    mask: Bool[Tensor, " n"] | None = None,
) -> dict[str, Tensor]:
    """What a soft assignment tells: its exact split, its entropies and its temperatures.

    Args:
        rows: Rows.
        decoded: Their assignment at the gradient path's temperature.
        settled: The same at the prototypes' temperature.
        use: Mean weight of each code over the batch.
        schedule: Where the temperatures are.
        mask: True keeps a row.

    Example:
        >>> from softvq.functional.assign import soft_assign
        >>> from softvq.nn.temperature import Temperature
        >>> rows, codebook = torch.tensor([[0.0]]), torch.tensor([[-1.0], [1.0]])
        >>> codes, use = soft_assign(rows, codebook, temperature=1.0), torch.tensor([0.5, 0.5])
        >>> state = TemperatureState(Temperature())
        >>> soft_stats(rows, codes, settled=codes, use=use, schedule=state)["spread"].item()
        1.0
    """
    split = decompose(rows, decoded)
    levels, critical = schedule.levels.clone(), schedule.critical
    return {
        "ols": mean_of_rows(split.ols, mask),
        "spread": mean_of_rows(split.spread, mask),
        "distortion": mean_of_rows(split.distortion, mask),
        "entropy": mean_of_rows(decoded.entropy, mask),
        "temperature": levels[0],
        "temperature_ratio": levels[0] / critical.clamp_min(LEAST),
        "perplexity_soft_batch": perplexity(use),
        "prototype_temperature": levels[-1],
        "prototype_entropy": mean_of_rows(settled.entropy, mask),
    }
