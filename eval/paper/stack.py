"""A stack of two levels on documents: tokens to windows to one vector, each level by prototypes.

On BBC News, tokens of a frozen MiniLM, trained without labels: each level's tokens must give back
the mean of what they stand for.
"""

from pathlib import Path

import torch
from einops import rearrange
from matplotlib.figure import Figure
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
        windows = window_means(tokens, mask, window=WINDOW)
        wanted = [
            (windows.means, windows.mask),
            (masked_mean(tokens, mask)[:, None], mask.any(-1, keepdim=True)),
        ]
        lost = []
        for decoder, level, (target, kept) in zip(self.decoders, out.levels, wanted, strict=True):
            error = (decoder(level.tokens) - target)[kept].square().sum(-1).mean()
            rows = target[kept]
            lost.append(error / (rows - rows.mean(0)).square().sum(-1).mean())
        return out, lost


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
        out, lost = model.eval()(tokens, mask)
    levels = [
        describe(out, place, float(lost[place]), labels=labels, mask=mask) for place in range(2)
    ]
    held = list_words(model, data, test) + list_classes(out, labels, data.classes)
    return {"levels": levels, "held": held}


def describe(
    out: StackOutput, place: int, lost: float, *, labels: Tensor, mask: Tensor
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
        "given_back": 1 - lost,
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
