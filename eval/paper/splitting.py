"""Clustering by annealing in which prototypes part one at a time, when their own cell is critical.

Rose, Gurewitz and Fox, "A deterministic annealing approach to clustering" (1990). N rows, D
features, K prototypes, T temperature. With all K present from the start, two of them may settle in
a cell that needs one while another cell goes without; here each new one goes to the cell whose
variance is largest, whatever its mass.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from softvq.functional.weights import soft_weights

COOLING, LEAST = 0.93, 0.02  # of T at each step, and of T_c at the end
ROUNDS, STILL = 200, 1e-3  # most fixed-point steps at one T; movement, of the data's deviation
APART = 0.1  # of a cell's deviation, between the two that a prototype becomes


def anneal(rows: Float[Tensor, "n d"], num: int) -> Float[Tensor, "k d"]:
    """Minimise the free energy at ever lower T, from one prototype to ``num``.

    At each T the prototypes go to the zero of its gradient with the weights held, p = sum q z /
    sum q. A prototype becomes two where T falls under 2 lambda, lambda the largest eigenvalue of
    its cell's covariance, and no other two still stand within sqrt(T) of each other. Nothing is
    drawn: the same rows give the same answer.

    Args:
        rows: Data.
        num: K.

    Returns:
        Prototypes at T = 0.02 T_c; fewer than K where no cell was critical.

    Example:
        >>> rows = torch.tensor([[0.0], [0.1], [0.2], [0.3], [9.0]])
        >>> [round(place, 2) for place in anneal(rows, 2).sort(0).values.flatten().tolist()]
        [0.15, 9.0]
    """
    codebook = rows.mean(0, keepdim=True)
    deviation = (rows - codebook).square().sum(1).mean().sqrt()
    critical = 2 * find_widest(rows, torch.ones(len(rows), 1))[0]
    level = critical
    while level > LEAST * critical:
        level = COOLING * level
        codebook = settle(rows, codebook, level, still=STILL * deviation)
        while len(codebook) < num and _parted(codebook, level):
            weights = soft_weights(rows, codebook, temperature=level)
            variance, place, direction = find_widest(rows, weights)
            if level >= 2 * variance:
                break
            step = APART * variance.sqrt() * direction
            codebook = torch.cat([codebook, codebook[place : place + 1] + step])
            codebook[place] -= step
            codebook = settle(rows, codebook, level, still=STILL * deviation)
    return codebook


def settle(rows: Tensor, codebook: Tensor, level: Tensor, *, still: Tensor) -> Tensor:
    """Move prototypes to the means of what they hold until none moves further than ``still``.

    Example:
        >>> rows, start = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.5]])
        >>> settle(rows, start, torch.tensor(1.0), still=torch.tensor(0.1)).item()
        1.0
    """
    for _ in range(ROUNDS):
        weights = soft_weights(rows, codebook, temperature=level)
        moved = weights.T @ rows / weights.sum(0)[:, None].clamp_min(1e-9)
        distance = (moved - codebook).norm(dim=1).max()
        codebook = moved
        if distance < still:
            break
    return codebook


def find_widest(rows: Tensor, weights: Tensor) -> tuple[Tensor, int, Tensor]:
    """The largest variance of any cell in any direction, its prototype, and the direction.

    Example:
        >>> rows = torch.tensor([[0.0, 0.0], [0.0, 1.0], [5.0, 0.0], [9.0, 0.0]])
        >>> weights = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> variance, place, direction = find_widest(rows, weights)
        >>> variance.item(), place, direction.abs().tolist()
        (4.0, 1, [1.0, 0.0])
    """
    found = []
    for weight in weights.T:
        share = weight[:, None] / weight.sum().clamp_min(1e-9)
        centred = rows - (share * rows).sum(0)
        values, vectors = torch.linalg.eigh((share * centred).T @ centred)
        found.append((values[-1], vectors[:, -1]))
    place = int(torch.stack([value for value, _ in found]).argmax())
    return found[place][0], place, found[place][1]


def _parted(codebook: Tensor, level: Tensor) -> bool:
    """Whether the last split is over: no two prototypes within sqrt(T)."""
    return len(codebook) < 2 or bool(torch.pdist(codebook).square().min() > level)
