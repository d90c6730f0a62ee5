"""The mathematics of softvq as plain loops over NumPy float64, written from the formulas.

Nothing here is shared with softvq, and nothing is clever: an oracle is worth what can be read off
it. N rows, D features, K codes.
"""

import math
from typing import NamedTuple

import numpy as np


class Assignment(NamedTuple):
    """Everything that a soft assignment of N rows to K codes gives, at one temperature."""

    weights: np.ndarray
    mean: np.ndarray
    spread: np.ndarray
    free_energy: np.ndarray
    entropy: np.ndarray
    indices: np.ndarray
    use: np.ndarray
    ols: np.ndarray
    distortion: np.ndarray


def squared_distance(a: np.ndarray, b: np.ndarray) -> float:
    total = 0.0
    for x, y in zip(a, b, strict=True):
        total += (float(x) - float(y)) ** 2
    return total


def distances(z: np.ndarray, codebook: np.ndarray) -> np.ndarray:
    out = np.zeros((len(z), len(codebook)))
    for n, row in enumerate(z):
        for k, code in enumerate(codebook):
            out[n, k] = squared_distance(row, code)
    return out


def entropy(weights: np.ndarray) -> float:
    return -sum(q * math.log(q) for q in weights if q > 0)


def boltzmann(row_distances: np.ndarray, temperature: float) -> tuple[np.ndarray, float]:
    """Weights softmax(-d / T), and -T log sum exp(-d / T)."""
    least = min(row_distances)
    raw = [math.exp(-(d - least) / temperature) for d in row_distances]
    total = sum(raw)
    return np.array([r / total for r in raw]), least - temperature * math.log(total)


def nearest(row_distances: np.ndarray) -> int:
    best = 0
    for k, d in enumerate(row_distances):
        if d < row_distances[best]:
            best = k
    return best


def assign(
    z: np.ndarray, codebook: np.ndarray, temperature: float, keep: np.ndarray | None = None
) -> Assignment:
    """theory.md, 1, row by row; ``keep`` says which rows count in ``use``."""
    num_rows, dim = z.shape
    num_codes = len(codebook)
    all_distances = distances(z, codebook)
    weights = np.zeros((num_rows, num_codes))
    mean = np.zeros((num_rows, dim))
    spread, free_energy, entropies, ols, distortion = np.zeros((5, num_rows))
    indices = np.zeros(num_rows, dtype=np.int64)
    use = np.zeros(num_codes)
    counted = 0
    for n in range(num_rows):
        weights[n], free_energy[n] = boltzmann(all_distances[n], temperature)
        for k in range(num_codes):
            mean[n] += weights[n, k] * codebook[k]
        for k in range(num_codes):
            spread[n] += weights[n, k] * squared_distance(codebook[k], mean[n])
            distortion[n] += weights[n, k] * all_distances[n, k]
        ols[n] = squared_distance(z[n], mean[n])
        entropies[n] = entropy(weights[n])
        indices[n] = nearest(all_distances[n])
        if keep is None or keep[n]:
            use += weights[n]
            counted += 1
    return Assignment(
        weights,
        mean,
        spread,
        free_energy,
        entropies,
        indices,
        use / max(counted, 1),
        ols,
        distortion,
    )


class Gradients(NamedTuple):
    """Gradients of a loss that is a mean over kept rows."""

    z: np.ndarray
    codebook: np.ndarray
    temperature: float


def free_energy_gradients(
    z: np.ndarray,
    codebook: np.ndarray,
    temperature: float,
    *,
    beta: float,
    keep: np.ndarray | None = None,
) -> Gradients:
    """F(sg z, P) + beta F(z, sg P), weights held fixed: 2 q (p - z), 2 beta (z - mean), -H."""
    result = assign(z, codebook, temperature)
    rows = [n for n in range(len(z)) if keep is None or keep[n]]
    d_z, d_codebook, d_temperature = np.zeros_like(z), np.zeros_like(codebook), 0.0
    for n in rows:
        d_z[n] = 2 * beta * (z[n] - result.mean[n]) / len(rows)
        for k in range(len(codebook)):
            d_codebook[k] += 2 * result.weights[n, k] * (codebook[k] - z[n]) / len(rows)
        d_temperature -= result.entropy[n] / len(rows)
    return Gradients(d_z, d_codebook, d_temperature)


def distortion_gradients(
    z: np.ndarray, codebook: np.ndarray, temperature: float, *, keep: np.ndarray | None = None
) -> Gradients:
    """L_q through the weights: 2 q [1 - (d - L) / T] (p - z), and the variance of d over T^2."""
    result = assign(z, codebook, temperature)
    all_distances = distances(z, codebook)
    rows = [n for n in range(len(z)) if keep is None or keep[n]]
    d_z, d_codebook, d_temperature = np.zeros_like(z), np.zeros_like(codebook), 0.0
    for n in rows:
        for k in range(len(codebook)):
            above = all_distances[n, k] - result.distortion[n]
            factor = 2 * result.weights[n, k] * (1 - above / temperature) / len(rows)
            d_codebook[k] += factor * (codebook[k] - z[n])
            d_z[n] -= factor * (codebook[k] - z[n])
            d_temperature += result.weights[n, k] * above**2 / temperature**2 / len(rows)
    return Gradients(d_z, d_codebook, d_temperature)


def entropy_slope(row_distances: np.ndarray, temperature: float) -> float:
    """dH / d log T: the variance of d / T under the weights."""
    weights, _ = boltzmann(row_distances, temperature)
    mean = sum(q * d for q, d in zip(weights, row_distances, strict=True)) / temperature
    return sum(
        q * (d / temperature - mean) ** 2 for q, d in zip(weights, row_distances, strict=True)
    )


def perplexity(counts: np.ndarray) -> float:
    total = sum(counts)
    return math.exp(entropy(np.array([c / total for c in counts]))) if total else 0.0


def kmeans_step(rows: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Each code moves to the mean of the rows that are nearest to it; an empty one stays."""
    moved = codes.copy()
    owner = [nearest(d) for d in distances(rows, codes)]
    for k in range(len(codes)):
        mine = [row for row, o in zip(rows, owner, strict=True) if o == k]
        if mine:
            moved[k] = sum(mine) / len(mine)
    return moved


def ema(old: float, new: float, decay: float) -> float:
    return decay * old + (1 - decay) * new


def distinct_codes(codebook: np.ndarray, radius: float) -> int:
    """Number of codes that have no earlier code within the radius, over all pairs."""
    count = 0
    for k, code in enumerate(codebook):
        earlier = [j for j in range(k) if squared_distance(codebook[j], code) <= radius**2]
        count += not earlier
    return count


def separation(codebook: np.ndarray, total_variance: float) -> float:
    """Root mean square distance over all ordered pairs, in units of the data's deviation."""
    pairs = [squared_distance(a, b) for a in codebook for b in codebook]
    return math.sqrt(sum(pairs) / len(pairs) / total_variance)


def largest_variance(z: np.ndarray) -> float:
    """Largest eigenvalue of the covariance, by an eigensolver for general matrices."""
    centred = z - z.sum(0) / len(z)
    covariance = np.zeros((z.shape[1], z.shape[1]))
    for row in centred:
        covariance += np.outer(row, row) / len(z)
    return float(max(np.linalg.eig(covariance).eigenvalues.real))
