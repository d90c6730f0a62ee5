"""Text classified by readouts of a frozen MiniLM: DDCL against the usual poolings."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from eval.paper.clusters import cluster
from eval.paper.features import TokenSet, load_features
from eval.paper.hubs import READERS
from eval.paper.poolers import LINE, NAMES, NUM, Pooler, make_pooler
from eval.paper.sizes import Sizes
from eval.paper.store import Row, Store, draw_bars, make_table
from eval.paper.texts import LABELS, load_texts
from softvq import Temperature, attach
from softvq.data.fetch import FetchError
from softvq.functional.windows import masked_mean

BATCH = 32
RATE = 1e-3
RATES = {"DDCLAttention, mean": 3e-3, LINE: 3e-3}
"""Chosen on training and development texts alone, see `eval/NOTES.md`; all others have `RATE`."""
EQUAL = 0.5  # points of accuracy
REFERENCE = "logistic regression on the mean"
SMALL = (REFERENCE, LINE)
"""Far fewer parameters: shown beside the others, and not counted among the baselines."""


def run(sizes: Sizes, folder: Path) -> None:
    """All methods on all sets; writes ``readout.json``, ``.md`` and ``.png``."""
    store = Store(folder, "readout", sizes=sizes.take("epochs"))
    rows = []
    for name, held in sizes.texts.items():
        num_train, num_test, max_tokens = held
        try:
            texts = load_texts(name, num_train=num_train, num_test=num_test)
        except FetchError as error:
            if name not in READERS:
                raise
            print(f"  {LABELS[name]} is left out: {error}", flush=True)
            continue
        data = load_features(texts, max_tokens=max_tokens)
        rows += run_set(store, data, name=LABELS[name], sizes=sizes, held=held)
    write(store, rows)


def write(store: Store, rows: Sequence[Row]) -> None:
    """The tables and the figure of these rows."""
    store.write_table(
        [
            make_table(
                rows,
                title="Accuracy on unseen texts, frozen MiniLM, mean ± deviation over seeds",
                by=["set", "method"],
                measures={"accuracy": ".3f", "parameters": ".0f"},
            ),
            compare(rows),
        ]
    )
    store.write_figure(draw_bars(rows, group="set", by="method", measure="accuracy"))


def compare(rows: Sequence[Row]) -> str:
    """A table of the DDCL layers against the best baseline of equal parameters, set by set.

    The best of seven is the luckiest too, so the comparison leans to the baselines. Methods of far
    fewer parameters are no part of it.

    Args:
        rows: Of all sets.

    Example:
        >>> made = [("mean", 0.7), ("CLS", 0.6), ("DDCLReadout", 0.703)]
        >>> rows = [{"set": "S", "texts": [9, 100, 8], "method": m, "accuracy": x} for m, x in made]
        >>> print(compare(rows).splitlines()[-1])
        | S | mean 0.700 | DDCLReadout | +0.3 | 12.7 | equal |
    """
    lines = [
        "**DDCL against the best baseline, points of accuracy; "
        f"within {EQUAL} is equal; noise: 1.96 standard errors of a difference on this test**",
        "",
        "| set | best baseline | layer | points | noise | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row["set"] for row in rows):
        mine = [row for row in rows if row["set"] == name]
        means = {
            method: fmean(row["accuracy"] for row in mine if row["method"] == method)
            for method in dict.fromkeys(row["method"] for row in mine)
            if method not in SMALL
        }
        layers = [method for method in means if method.startswith("DDCL")]
        best = max((method for method in means if method not in layers), key=lambda m: means[m])
        noise = 196 * math.sqrt(2 * means[best] * (1 - means[best]) / mine[0]["texts"][1])
        for layer in layers:
            points = 100 * (means[layer] - means[best])
            cells = [name, f"{best} {means[best]:.3f}", layer, f"{points:+.1f}", f"{noise:.1f}"]
            lines.append(f"| {' | '.join([*cells, judge(points, noise=noise)])} |")
    return "\n".join(lines)


def judge(points: float, *, noise: float) -> str:
    """A difference in words.

    Example:
        >>> judge(0.4, noise=2.0), judge(-1.0, noise=2.0), judge(3.0, noise=2.0)
        ('equal', 'worse, within the noise', 'better')
    """
    if abs(points) <= EQUAL:
        return "equal"
    return ("better" if points > 0 else "worse") + (
        ", within the noise" if abs(points) < noise else ""
    )


def run_set(
    store: Store, data: TokenSet, *, name: str, sizes: Sizes, held: tuple[int, int, int]
) -> list[Row]:
    """All methods on one set."""
    about = {"set": name, "texts": list(held)}
    rows = [store.row({**about, "method": REFERENCE, "seed": 0}, lambda: regress(data))]
    for method in NAMES:
        for seed in range(sizes.seeds):

            def make(method: str = method, seed: int = seed) -> dict:
                return train(data, method, seed=seed, epochs=sizes.epochs)

            rows.append(store.row({**about, "method": method, "seed": seed}, make))
    return rows


def regress(data: TokenSet) -> dict:
    """Logistic regression on the mean of the tokens."""
    pooled = masked_mean(data.tokens.float(), data.mask).numpy()
    labels, cut = data.labels.numpy(), data.num_train
    model = LogisticRegression(max_iter=2000).fit(pooled[:cut], labels[:cut])
    accuracy = float(model.score(pooled[cut:], labels[cut:]))
    return {"accuracy": accuracy, "parameters": int(model.coef_.size + model.intercept_.size)}


def train(data: TokenSet, method: str, *, seed: int, epochs: int) -> dict:
    """Train one pooler on all training texts, and test it once, after the last epoch."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    fitted = torch.randperm(data.num_train, generator=generator)
    steps = epochs * -(-len(fitted) // BATCH)
    model = make_pooler(
        method,
        num_classes=len(data.classes),
        centres=find_centres(data, fitted, seed=seed),
        options=Temperature(gradient=0.5, prototypes=(0.3, 0.1), anneal_steps=steps),
        seed=seed,
    )
    rate = RATES.get(method, RATE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    if method.startswith("DDCL"):
        attach(model, optimizer)
    for _ in range(epochs):
        for tokens, mask, labels in batches(data, fitted, generator=generator):
            logits, loss = model.train()(tokens, mask)
            optimizer.zero_grad()
            (nn.functional.cross_entropy(logits, labels) + loss).backward()
            optimizer.step()
    count = sum(parameter.numel() for parameter in model.parameters())
    accuracy = measure(model, data, torch.arange(data.num_train, len(data.labels)))
    return {"accuracy": accuracy, "parameters": count}


def find_centres(data: TokenSet, places: Tensor, *, seed: int) -> Tensor:
    """k-means of a sample of training tokens."""
    rows = data.tokens[places][data.mask[places]].float()
    generator = torch.Generator().manual_seed(seed)
    rows = rows[torch.randperm(len(rows), generator=generator)[:4000]]
    return cluster(rows, min(NUM, len(rows)), method="k-means, 1 start", seed=seed, steps=0).centres


def batches(
    data: TokenSet, places: Tensor, *, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Tokens, mask and labels, in random order, cut to the longest text of each batch."""
    for part in places[torch.randperm(len(places), generator=generator)].split(BATCH):
        length = int(data.mask[part].sum(1).max())
        yield data.tokens[part, :length].float(), data.mask[part, :length], data.labels[part]


@torch.inference_mode()
def measure(model: Pooler, data: TokenSet, places: Tensor) -> float:
    """Accuracy."""
    right = 0
    for part in places.split(100):
        length = int(data.mask[part].sum(1).max())
        logits, _ = model.eval()(data.tokens[part, :length].float(), data.mask[part, :length])
        right += int((logits.argmax(-1) == data.labels[part]).sum())
    return right / len(places)
