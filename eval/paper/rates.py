"""The rate ablation: encoder and prototypes at different speeds, with and without a task beside.

epsilon is the encoder's rate over the prototypes'. The paper: stable up to 0.1, collapse from 0.5.
"""

import warnings
from dataclasses import replace
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from eval.paper.features import load_features
from eval.paper.gradients import compare_gradients
from eval.paper.sizes import Sizes
from eval.paper.store import Row, Store, make_table
from eval.paper.texts import load_texts
from eval.style import COLOURS
from softvq import DDCLReadout, HealthMonitor, Loss, SoftVQ, Temperature, attach
from softvq.functional.windows import masked_mean
from softvq.nn.alarms import CodebookWarning
from softvq.nn.prototypes import READOUT_TEMPERATURE

EPSILONS = (0.01, 0.03, 0.1, 0.5, 1.0)
RATE, DIM, PROTOTYPES, BATCH = 1e-2, 16, 16, 128
DEFAULT = "with reconstruction, a readout's defaults"
MERGED = 0.1  # separation, of the latents' deviation, under which prototypes are one to the eye
RECIPES = {
    "L_q alone, T held, weights held": ("fixed", 0.0, True),
    "L_q alone, T held, through the weights": ("full", 0.0, True),
    "with reconstruction, T held": ("fixed", 1.0, True),
    "with reconstruction, T follows the data": ("fixed", 1.0, False),
    DEFAULT: ("fixed", 1.0, False),
}


def run(sizes: Sizes, folder: Path) -> None:
    """All rates and recipes; writes ``rates.json``, ``.md`` and ``.png``."""
    store = Store(folder, "rates", sizes={**sizes.take("steps"), "bbc": sizes.texts["bbc"]})
    num_train, num_test, max_tokens = sizes.texts["bbc"]
    texts = load_texts("bbc", num_train=num_train, num_test=num_test)
    data = load_features(texts, max_tokens=max_tokens)
    rows = masked_mean(data.tokens.float(), data.mask)
    rows = (rows - rows.mean(0)) / rows.std()
    found = []
    warnings.simplefilter("ignore", CodebookWarning)  # that codebooks collapse is the experiment
    for recipe in RECIPES:
        for epsilon in EPSILONS:
            for seed in range(sizes.seeds):

                def make(recipe: str = recipe, epsilon: float = epsilon, seed: int = seed) -> dict:
                    return train(rows, recipe, epsilon=epsilon, seed=seed, steps=sizes.steps)

                key = {"recipe": recipe, "epsilon": epsilon, "seed": seed}
                found.append(store.row(key, make))
    store.write_table(
        [
            make_table(
                [{**row, "collapsed": float(has_collapsed(row))} for row in found],
                title=f"Rates: epsilon = encoder / prototypes; BBC means, {PROTOTYPES} prototypes, "
                "at the end. Collapsed: share of seeds with prototypes merged (separation under "
                f"{MERGED}) or latents drawn under T (T / T_c above 1)",
                by=["recipe", "epsilon"],
                measures={
                    "collapsed": ".2f",
                    "separation": ".2f",
                    "use_hard": ".2f",
                    "temperature_ratio": ".2f",
                    "entropy_share": ".2f",
                    "latent_scale": ".3f",
                },
            ),
            make_table(
                compare_gradients(rows, num=PROTOTYPES),
                title="The encoder's gradient of L_q beside 2 (z - mu): length of the difference "
                "over that of 2 (z - mu), cosine; and the share of the prototypes' pulls that push",
                by=["T / T_c", "gradient"],
                measures={"difference": ".3f", "cosine": ".3f", "pushed": ".2f"},
            ),
        ]
    )
    store.write_figure(_draw(found))


def has_collapsed(row: Row) -> bool:
    """Whether prototypes are one to the eye, or latents so close that they will be.

    Example:
        >>> has_collapsed({"separation": 3.0, "temperature_ratio": 7.3})
        True
    """
    return row["separation"] < MERGED or row["temperature_ratio"] > 1


def train(rows: Tensor, recipe: str, *, epsilon: float, seed: int, steps: int) -> dict:
    """Train a small autoencoder with prototypes on its latents, and read its health."""
    grad, weight, held = RECIPES[recipe]
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Linear(rows.shape[1], 64), nn.GELU(), nn.Linear(64, DIM))
    decoder = nn.Sequential(nn.Linear(DIM, 64), nn.GELU(), nn.Linear(64, rows.shape[1]))
    first = encoder(rows).detach()
    if recipe == DEFAULT:
        vq = DDCLReadout(
            DIM, PROTOTYPES, temperature=replace(READOUT_TEMPERATURE, anneal_steps=steps), seed=seed
        ).prototypes.quantizers[0]
        vq.start_(first)
    else:
        vq = make_quantizer(first, grad=grad, held=held, seed=seed, steps=steps)
    model = nn.ModuleList([encoder, vq, decoder])
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE * epsilon)
    attach(model, optimizer, codebook_lr=RATE)
    monitor = HealthMonitor(vq)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        batch = rows[torch.randint(len(rows), (BATCH,), generator=generator)]
        out = vq.train()(encoder(batch))
        loss = out.loss
        if weight:
            loss = loss + weight * nn.functional.mse_loss(decoder(out.quantized), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.inference_mode():
        latents = encoder(rows)
        out = vq.eval()(latents)
    vq.train()(latents)
    reading = monitor.read()._asdict()
    scale = latents.var(0).sum().sqrt() / first.var(0).sum().sqrt()
    used = float(out.stats["use_hard_batch"])
    return {
        **reading,
        "use_hard": used,
        "latent_scale": float(scale),
        "verdict": monitor.verdict(),
    }


def make_quantizer(first: Tensor, *, grad: str, held: bool, seed: int, steps: int) -> SoftVQ:
    """Prototypes on the first latents, T half of their T_c and held there, or following them."""
    vq = SoftVQ(
        PROTOTYPES,
        DIM,
        temperature=Temperature(
            gradient=0.5,
            prototypes=None,
            noise=0.0,
            warmup_share=0.0,
            unit="critical",
            anneal_steps=steps,
        ),
        loss=Loss(weight=1.0, beta=1.0, use_entropy=0.0, assignment_grad=grad, unit="absolute"),
        revival=None,
        forward_value="soft",
        seed=seed,
    )
    vq.start_(first)
    if held:
        level = float(vq.temperature)
        vq.schedule.options = Temperature(
            gradient=level,
            prototypes=None,
            noise=0.0,
            warmup_share=0.0,
            unit="absolute",
            anneal_steps=steps,
        )
    return vq


def _draw(rows: list[Row]) -> Figure:
    figure = Figure((9, 3.8), layout="constrained")
    plots = figure.subplots(1, 2)
    for axes, name in zip(plots, ("separation", "latent_scale"), strict=True):
        for place, recipe in enumerate(RECIPES):
            means = []
            for epsilon in EPSILONS:
                mine = [r[name] for r in rows if (r["recipe"], r["epsilon"]) == (recipe, epsilon)]
                means.append(sum(mine) / len(mine))
            axes.loglog(EPSILONS, means, marker="o", label=recipe, color=COLOURS[place])
        axes.set_xlabel("epsilon")
        axes.set_ylabel(name.replace("_", " "))
    figure.legend(*plots[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure
