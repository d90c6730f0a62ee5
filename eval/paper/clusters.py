"""Clusterings without labels, and how well they agree with classes.

N rows, D features, K clusters.
"""

from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.metrics import adjusted_rand_score, confusion_matrix, normalized_mutual_info_score
from sklearn.mixture import GaussianMixture
from torch import Tensor

from eval.paper.splitting import anneal
from softvq import Loss, SoftVQ, Temperature, attach
from softvq.checks import choose

RATE = 0.02


class Clustering(NamedTuple):
    """The cluster of each row, and the centres behind them."""

    clusters: Tensor
    centres: Tensor


INFORMED = "nearest mean of each class, labels known"
"""No clustering: about the most that one centre a class can give."""

METHODS = (
    "k-means, 1 start",
    "k-means, 10 starts",
    "Gaussian mixture",
    "DDCL, annealed, prototypes one by one",
    "DDCL, annealed",
    "DDCL, fixed T",
    "DDCL, annealed, through the weights",
)


def cluster(rows: Tensor, num: int, *, method: str, seed: int, steps: int) -> Clustering:
    """Cluster the rows.

    Args:
        rows: (N, D).
        num: K.
        method: A member of `METHODS`.
        seed: Of the start.
        steps: Optimizer steps of DDCL, each over all rows.

    Raises:
        ValueError: For an unknown method.

    Example:
        >>> rows = torch.tensor([[0.0], [0.1], [5.0], [5.1]])
        >>> found = cluster(rows, 2, method="k-means, 1 start", seed=0, steps=1).clusters
        >>> bool(found[0] == found[1]), bool(found[0] == found[2])
        (True, False)
    """
    choose("method", method, METHODS)
    if "one by one" in method:
        centres = anneal(rows, num)
        return Clustering(torch.cdist(rows, centres).argmin(-1), centres)
    if method.startswith("DDCL"):
        return _ddcl(rows, num, method=method, seed=seed, steps=steps)
    if method == "Gaussian mixture":
        mixture = GaussianMixture(num, covariance_type="diag", reg_covar=1e-4, random_state=seed)
        found = mixture.fit_predict(rows.numpy())
        return Clustering(torch.tensor(found), torch.tensor(mixture.means_).float())
    starts = 1 if "1 start" in method and "10" not in method else 10
    # The type in scikit-learn's signature is that of its default, "auto".
    means = KMeans(num, n_init=starts, random_state=seed)  # pyright: ignore[reportArgumentType]
    means.fit(rows.numpy())
    return Clustering(torch.tensor(means.labels_), torch.tensor(means.cluster_centers_).float())


def from_classes(rows: Tensor, classes: Tensor) -> Clustering:
    """The clusters around the means of the classes themselves.

    Example:
        >>> rows, classes = torch.tensor([[0.0], [4.0], [5.0]]), torch.tensor([0, 0, 1])
        >>> from_classes(rows, classes).clusters.tolist()
        [0, 1, 1]
    """
    centres = torch.stack([rows[classes == each].mean(0) for each in classes.unique()])
    return Clustering(torch.cdist(rows, centres).argmin(-1), centres)


def _ddcl(rows: Tensor, num: int, *, method: str, seed: int, steps: int) -> Clustering:
    """Prototypes alone, on data that does not move: free energy, or L_q as the paper has it."""
    path = (1.2, 0.02) if "annealed" in method else 0.2
    grad = "full" if "through" in method else "fixed"
    vq = SoftVQ(
        num,
        rows.shape[-1],
        temperature=Temperature(
            gradient=path,
            prototypes=None,
            noise=0.0,
            warmup_share=0.0,
            unit="critical",
            anneal_steps=steps,
        ),
        loss=Loss(weight=1.0, beta=0.0, use_entropy=0.0, assignment_grad=grad, unit="absolute"),
        revival=None,  # a class that is rare is no dead prototype
        forward_value="soft",
        seed=seed,
    )
    vq.start_(rows)
    # The seeding that scikit-learn's k-means has, so that rare classes are reached by both.
    first, _ = kmeans_plusplus(rows.numpy(), num, random_state=seed)
    with torch.no_grad():
        vq.codebook.copy_(torch.tensor(first))
    vq.schedule.solve_(rows, vq.codebook, updates=0)
    optimizer = torch.optim.Adam(vq.parameters(), lr=RATE)
    scale = rows.std(0).mean()
    attach(vq, optimizer, codebook_lr=float(RATE * scale))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        loss = vq.train()(rows).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():  # equal prototypes stay equal: a breath of noise parts them
            noise = torch.randn(vq.codebook.shape, generator=generator)
            vq.codebook += 1e-3 * scale * noise * (vq.temperature / vq.schedule.critical > 0.1)
    with torch.inference_mode():
        return Clustering(vq.eval()(rows).indices, vq.codebook.detach().clone())


def match(classes: np.ndarray, clusters: np.ndarray) -> dict[int, int]:
    """The class of each cluster by the matching that agrees most (Hungarian).

    Example:
        >>> match(np.array([0, 0, 1]), np.array([1, 1, 0])) == {0: 1, 1: 0}
        True
    """
    table = confusion_matrix(classes, clusters)
    rows, columns = linear_sum_assignment(-table)
    return {int(column): int(row) for row, column in zip(rows, columns, strict=True)}


def score(classes: Tensor, clusters: Tensor) -> dict[str, float]:
    """Accuracy of the best matching, NMI, ARI, and how many clusters hold a row.

    Example:
        >>> found = score(torch.tensor([0, 0, 1, 1]), torch.tensor([1, 1, 0, 0]))
        >>> found["accuracy"], round(found["nmi"], 6), found["ari"], found["clusters"]
        (1.0, 1.0, 1.0, 2)
    """
    truth, found = classes.numpy(), clusters.numpy()
    of = match(truth, found)
    right = np.array([of.get(int(cluster), -1) for cluster in found]) == truth
    return {
        "accuracy": float(right.mean()),
        "nmi": float(normalized_mutual_info_score(truth, found)),
        "ari": float(adjusted_rand_score(truth, found)),
        "clusters": len(np.unique(found)),
    }
