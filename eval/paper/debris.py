"""Orbital debris: DDCL against k-means and Gaussian mixtures; BBC News clustered alike."""

from pathlib import Path

import torch
from torch import Tensor

from eval.paper.clusters import (
    INFORMED,
    METHODS,
    Clustering,
    cluster,
    from_classes,
    match,
    score,
)
from eval.paper.features import load_features
from eval.paper.orbits import REGIMES, Objects, load_real, simulate
from eval.paper.sizes import Sizes
from eval.paper.store import Store, draw_bars, make_table
from eval.paper.texts import LABELS, load_texts
from softvq.functional.windows import masked_mean

ONE_CLUSTER = "everything in one cluster"


def run(sizes: Sizes, folder: Path) -> None:
    """All methods on both sets; writes ``clusters.json``, ``.md`` and ``.png``."""
    held = {**sizes.take("objects", "steps"), "bbc": sizes.texts["bbc"]}
    store = Store(folder, "clusters", sizes=held)
    rows = [*run_debris(store, sizes), *run_texts(store, sizes)]
    measures = {"accuracy": ".3f", "nmi": ".3f", "ari": ".3f", "clusters": ".1f"}
    store.write_table(
        [
            make_table(
                rows,
                title="Clusters against classes, mean ± deviation over seeds; accuracy by the best "
                "matching, real: sgp4's verification cases by nearest centre",
                by=["set", "method"],
                measures={**measures, "real": ".3f"},
            )
        ]
    )
    store.write_figure(draw_bars(rows, group="set", by="method", measure="ari", label="ARI"))


def run_debris(store: Store, sizes: Sizes) -> list[dict]:
    """Simulated objects, features brought to one scale; each method's centres on real elements.

    A seed draws the objects and starts the methods.
    """
    found = []
    for method in (ONE_CLUSTER, INFORMED, *METHODS):
        for seed in range(sizes.seeds):

            def make(method: str = method, seed: int = seed) -> dict:
                return measure_debris(method, sizes, seed=seed)

            key = {"set": "debris, simulated", "method": method, "seed": seed}
            found.append(store.row(key, make))
    return found


def measure_debris(method: str, sizes: Sizes, *, seed: int) -> dict[str, float]:
    """One clustering of one draw of objects; ``real`` is its accuracy on real elements."""
    objects, real = simulate(sizes.objects, seed=seed), load_real()
    if method == ONE_CLUSTER:
        single = torch.zeros(sizes.objects, dtype=torch.int64)
        most = float((real.regimes == 0).float().mean())
        return {**score(objects.regimes, single), "real": most}
    mean, deviation = objects.features.mean(0), objects.features.std(0)
    rows = (objects.features - mean) / deviation
    check = Objects((real.features - mean) / deviation, real.regimes)
    made = (
        from_classes(rows, objects.regimes)
        if method == INFORMED
        else cluster(rows, len(REGIMES), method=method, seed=seed, steps=sizes.steps)
    )
    measured = score(objects.regimes, made.clusters)
    return {**measured, "real": check_real(objects.regimes, made, check)}


def run_texts(store: Store, sizes: Sizes) -> list[dict]:
    """BBC News: the mean token of each text, of length one."""
    num_train, num_test, max_tokens = sizes.texts["bbc"]
    texts = load_texts("bbc", num_train=num_train, num_test=num_test)
    data = load_features(texts, max_tokens=max_tokens)
    rows = torch.nn.functional.normalize(masked_mean(data.tokens.float(), data.mask), dim=-1)
    informed = score(data.labels, from_classes(rows, data.labels).clusters)
    key = {"set": LABELS["bbc"], "method": INFORMED, "seed": 0}
    found = [store.row(key, lambda: informed)]
    for method in METHODS:
        for seed in range(sizes.seeds):

            def make(method: str = method, seed: int = seed) -> dict:
                made = cluster(rows, len(data.classes), method=method, seed=seed, steps=sizes.steps)
                return score(data.labels, made.clusters)

            found.append(store.row({"set": LABELS["bbc"], "method": method, "seed": seed}, make))
    return found


def check_real(regimes: Tensor, made: Clustering, real: Objects) -> float:
    """Accuracy on real objects: the nearest centre's class under the simulated set's matching."""
    of = match(regimes.numpy(), made.clusters.numpy())
    nearest = torch.cdist(real.features, made.centres).argmin(-1)
    classes = torch.tensor([of.get(int(place), -1) for place in nearest])
    return float((classes == real.regimes).float().mean())
