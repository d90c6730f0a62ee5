"""Both gradients of L_q beside the one that the paper states: weights held, and through them.

N rows, D features, K prototypes, T temperature.
"""

import torch
from torch import Tensor

from eval.paper.clusters import cluster
from softvq import Loss, SoftVQ, Temperature
from softvq.functional.diagnostics import critical_temperature
from softvq.functional.distances import squared_distances
from softvq.functional.weights import soft_weights

RATIOS = (0.02, 0.1, 0.3, 1.0)
GRADIENTS = {"fixed": "weights held", "full": "through the weights"}


def compare_gradients(rows: Tensor, *, num: int) -> list[dict[str, float | str]]:
    """The encoder's gradient of L_q against 2 (z - mu), and how many pulls become pushes.

    Prototypes are those of k-means. With the weights held a prototype is pulled to each row;
    through them it is pushed away from a row where its distance exceeds L_q + T.

    Args:
        rows: (N, D).
        num: K.

    Returns:
        A line for each T and gradient: ``difference``, the length of what is left after 2 (z - mu)
        is taken away, over that of 2 (z - mu); ``cosine`` of the two; ``pushed``, the share of the
        prototypes' pulls on rows, by length, that point away.

    Example:
        >>> rows = torch.sin(torch.arange(120.0).square()).reshape(40, 3)
        >>> lines = compare_gradients(rows, num=4)
        >>> [round(line["difference"], 5) for line in lines if line["gradient"] == "weights held"]
        [0.0, 0.0, 0.0, 0.0]
    """
    rows = rows.double()
    centres = cluster(rows.float(), num, method="k-means, 1 start", seed=0, steps=0).centres
    critical = float(critical_temperature(rows, assignment_grad="fixed"))
    found: list[dict[str, float | str]] = []
    for ratio in RATIOS:
        level = ratio * critical
        weights = soft_weights(rows, centres.double(), temperature=torch.tensor(level))
        stated = 2 * (rows - weights.to(rows) @ centres.double())
        for grad, name in GRADIENTS.items():
            actual = find_gradient(rows, centres.double(), level=level, grad=grad)
            found.append(
                {
                    "T / T_c": str(ratio),
                    "gradient": name,
                    "difference": float((actual - stated).norm() / stated.norm()),
                    "cosine": float(torch.cosine_similarity(actual, stated, dim=-1).mean()),
                    "pushed": 0.0
                    if grad == "fixed"
                    else find_pushed(rows, centres.double(), weights.to(rows), level=level),
                }
            )
    return found


def find_gradient(rows: Tensor, centres: Tensor, *, level: float, grad: str) -> Tensor:
    """What the layer's own loss sends to the rows, as the gradient of L_q summed over rows.

    Example:
        >>> rows, centres = torch.tensor([[1.0]]).double(), torch.tensor([[0.0]]).double()
        >>> find_gradient(rows, centres, level=1.0, grad="full").item()
        2.0
    """
    num, dim = centres.shape
    vq = SoftVQ(
        num,
        dim,
        temperature=Temperature(
            gradient=level, prototypes=None, noise=0.0, warmup_share=0.0, unit="absolute"
        ),
        loss=Loss(weight=1.0, beta=1.0, use_entropy=0.0, assignment_grad=grad, unit="absolute"),
        revival=None,
        forward_value="soft",
    ).double()
    vq.start_(rows)
    with torch.no_grad():
        vq.codebook.copy_(centres)
    leaf = rows.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(vq.train()(leaf).loss, leaf)
    return gradient * rows.numel()


def find_pushed(rows: Tensor, centres: Tensor, weights: Tensor, *, level: float) -> float:
    """The share of pulls q |p - z| whose sign 1 - (d - L_q) / T is negative.

    Example:
        >>> rows, centres = torch.zeros(1, 1), torch.tensor([[0.0], [3.0]])
        >>> find_pushed(rows, centres, torch.tensor([[0.5, 0.5]]), level=1.0)
        1.0
    """
    distances = squared_distances(rows, centres).clamp_min(0)
    distortion = (weights * distances).sum(1, keepdim=True)
    lengths = weights * distances.sqrt() * (1 - (distances - distortion) / level).abs()
    away = distances > distortion + level
    return float(lengths[away].sum() / lengths.sum())
