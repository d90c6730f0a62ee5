"""A stack of two levels on documents: tokens to windows to one vector, each level by prototypes.

On BBC News, tokens of a frozen MiniLM, trained without labels: each level's tokens must give back
the mean of what they stand for.
"""

from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from matplotlib.figure import Figure
from sklearn.linear_model import RidgeCV
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor, nn

from eval.paper.features import TokenSet, load_encoder, load_features
from eval.paper.sizes import Sizes
from eval.paper.store import Store, make_table
from eval.paper.texts import load_texts
from eval.paper.words import split_words
from eval.style import COLOURS
from softvq import DDCLAttention, DDCLLevel, DDCLStack, StackOutput, Temperature, attach
from softvq.explain import PrototypeNeighbours
from softvq.functional.windows import masked_mean, window_means

DIM, WINDOW, RATE, BATCH = 384, 8, 1e-3, 32
PROTOTYPES = (32, 8)


class Model(nn.Module):
    """The stack, and a line for each level that gives back what its tokens stand for."""

    def __init__(self, *, steps: int, seed: int) -> None:
        super().__init__()
        options = Temperature(gradient=0.5, prototypes=(0.3, 0.1), anneal_steps=steps)
        windows = (WINDOW, None)
        self.stack = DDCLStack(
            [
                DDCLLevel(
                    DDCLAttention(DIM, num, temperature=options, seed=seed + place), window=window
                )
                for place, (num, window) in enumerate(zip(PROTOTYPES, windows, strict=True))
            ]
        )
        self.decoders = nn.ModuleList(nn.Linear(DIM, DIM) for _ in windows)

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[StackOutput, list[Tensor]]:
        """The stack's answer, and each level's share of the variance that is not given back."""
        out = self.stack(tokens, mask=mask)
        lost = []
        for decoder, level, (target, kept) in zip(
            self.decoders, out.levels, find_targets(tokens, mask), strict=True
        ):
            error = (decoder(level.tokens) - target)[kept].square().sum(-1).mean()
            rows = target[kept]
            lost.append(error / (rows - rows.mean(0)).square().sum(-1).mean())
        return out, lost


def find_targets(tokens: Tensor, mask: Tensor) -> list[tuple[Tensor, Tensor]]:
    """What the tokens of each level stand for, and which of them hold anything.

    Example:
        >>> tokens, mask = torch.zeros(2, 20, DIM), torch.ones(2, 20, dtype=torch.bool)
        >>> [tuple(means.shape) for means, _ in find_targets(tokens, mask)]
        [(2, 3, 384), (2, 1, 384)]
    """
    windows = window_means(tokens, mask, window=WINDOW)
    return [
        (windows.means, windows.mask),
        (masked_mean(tokens, mask)[:, None], mask.any(-1, keepdim=True)),
    ]


def give_back(model: Model, data: TokenSet) -> list[float]:
    """The share of the variance of what a level stands for that a line gives back from its tokens.

    The line is fit anew by ridge regression on the training documents and measured on the others,
    so that it says what the tokens hold and not how long the decoders were trained.
    """
    first = data.num_train
    tokens, mask = data.tokens.float(), data.mask
    with torch.inference_mode():
        levels = model.stack.eval()(tokens, mask=mask).levels
    shares = []
    for level, (target, kept) in zip(levels, find_targets(tokens, mask), strict=True):
        fit = RidgeCV(alphas=np.logspace(-1, 4, 6)).fit(
            level.tokens[:first][kept[:first]].numpy(), target[:first][kept[:first]].numpy()
        )
        given = fit.predict(level.tokens[first:][kept[first:]].numpy())
        wanted = target[first:][kept[first:]].numpy()
        error = np.square(given - wanted).sum() / np.square(wanted - wanted.mean(0)).sum()
        shares.append(float(1 - error))
    return shares


def run(sizes: Sizes, folder: Path) -> None:
    """Train, and write ``stack.json``, ``.md`` and ``.png``."""
    store = Store(folder, "stack", sizes={**sizes.take("epochs"), "bbc": sizes.texts["bbc"]})
    num_train, num_test, max_tokens = sizes.texts["bbc"]
    texts = load_texts("bbc", num_train=num_train, num_test=num_test)
    data = load_features(texts, max_tokens=max_tokens)
    rows = []
    for seed in range(sizes.seeds):
        row = store.row({"seed": seed}, lambda seed=seed: train(data, sizes, seed=seed))
        rows += [{**level, "seed": seed} for level in row["levels"]]
    held = store.rows[0]["held"]
    lists = "\n".join(f"- {line}" for line in held)
    store.write_table(
        [
            make_table(
                rows,
                title="Two levels on BBC News, unseen documents, mean ± deviation over seeds",
                by=["level", "prototypes"],
                measures={
                    "spread_V": ".4f",
                    "residual_OLS": ".4f",
                    "V_over_L_q": ".3f",
                    "given_back": ".3f",
                    "used": ".2f",
                    "nmi_with_class": ".3f",
                },
            ),
            f"**What the prototypes hold (seed 0)**\n\n{lists}",
        ]
    )
    store.write_figure(_draw(rows))


def train(data: TokenSet, sizes: Sizes, *, seed: int) -> dict:
    """Train one stack without labels and look at it on unseen documents."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    steps = sizes.epochs * -(-data.num_train // BATCH)
    model = Model(steps=steps, seed=10 * seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    attach(model, optimizer)
    for _ in range(sizes.epochs):
        for part in torch.randperm(data.num_train, generator=generator).split(BATCH):
            out, lost = model.train()(data.tokens[part].float(), data.mask[part])
            optimizer.zero_grad()
            (sum(lost) + out.loss).backward()
            optimizer.step()
    test = torch.arange(data.num_train, len(data.labels))
    tokens, mask, labels = data.tokens[test].float(), data.mask[test], data.labels[test]
    with torch.inference_mode():
        out, _ = model.eval()(tokens, mask)
    given = give_back(model, data)
    levels = [describe(out, place, given[place], labels=labels, mask=mask) for place in range(2)]
    held = list_words(model, data, test) + list_classes(out, labels, data.classes)
    return {"levels": levels, "held": held}


def describe(
    out: StackOutput, place: int, given: float, *, labels: Tensor, mask: Tensor
) -> dict[str, float]:
    """Numbers of one level."""
    level = out.levels[place]
    kept = mask if place == 0 else out.levels[place - 1].mask
    shares = level.assignment[:, 0]
    nearest = shares.argmax(-1)
    classes = labels[:, None].expand_as(nearest)
    used = nearest[kept].unique()
    stats = {name: float(value) for name, value in level.stats.items()}
    return {
        "level": place + 1,
        "prototypes": PROTOTYPES[place],
        "spread_V": stats["spread"],
        "residual_OLS": stats["ols"],
        "V_over_L_q": stats["spread"] / stats["distortion"],
        "given_back": given,
        "used": len(used) / PROTOTYPES[place],
        "nmi_with_class": float(
            normalized_mutual_info_score(classes[kept].numpy(), nearest[kept].numpy())
        ),
    }


def list_words(model: Model, data: TokenSet, places: Tensor) -> list[str]:
    """The words nearest to the first prototypes of the lower level."""
    _, tokenizer = load_encoder()
    found = PrototypeNeighbours(model.stack.attentions[0].prototypes.quantizers[0], num=8)
    found.update(data.tokens[places].float(), mask=data.mask[places])
    lines = []
    for place, near in enumerate(found.tokens()[:8]):
        words = [
            split_words(tokenizer, data.ids[places[each.item]][each.position][None])[0]
            for each in near
        ]
        lines.append(f"level 1, prototype {place}: {', '.join(dict.fromkeys(words))}")
    return lines


def list_classes(out: StackOutput, labels: Tensor, classes: tuple[str, ...]) -> list[str]:
    """The mixture of classes behind each prototype of the upper level, by weight."""
    kept = out.levels[0].mask
    weights = out.levels[1].assignment[:, 0][kept]
    windows = rearrange(labels[:, None].expand(kept.shape)[kept], "n -> n")
    table = weights.T @ nn.functional.one_hot(windows, len(classes)).float()
    lines = []
    for place, row in enumerate(table / table.sum(1, keepdim=True).clamp_min(1e-9)):
        order = row.argsort(descending=True)[:3]
        mixed = ", ".join(f"{classes[int(k)]} {float(row[k]):.0%}" for k in order)
        lines.append(f"level 2, prototype {place} ({float(weights[:, place].mean()):.0%}): {mixed}")
    return lines


def _draw(rows: list[dict]) -> Figure:
    figure = Figure((8, 3.6), layout="constrained")
    names = ("V_over_L_q", "given_back", "used", "nmi_with_class")
    for axes, name in zip(figure.subplots(1, len(names)), names, strict=True):
        for place in (1, 2):
            mine = [row[name] for row in rows if row["level"] == place]
            axes.bar(place, sum(mine) / len(mine), color=COLOURS[place - 1])
        axes.set_xticks([1, 2], ["level 1", "level 2"])
        axes.set_title(name.replace("_", " "), fontsize=10)
    return figure
