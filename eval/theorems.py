"""What the papers prove, tried on a toy: `python -m eval theorems`.

64 clusters in 16 dimensions, an encoder to 4, K = 64. Rates of encoder and codes (their Theorem 1),
annealing with and without repulsion (Theorems 2 and 3), and a collapse that is provoked, to see who
notices first. S(P) is the separation of the codes, H(Q) the mean entropy of the weights in nats.
"""

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eval.runs import save_study
from eval.terminal import print_rows
from softvq import Loss, Revival, SoftVQ, Temperature, attach
from softvq.checks import check_count
from softvq.functional.distances import squared_distances
from softvq.nn.alarms import IN_WARMUP

RATIOS = (0.01, 0.03, 0.1, 0.3, 0.5, 1.0)
SHARES = {"fast": 0.2, "even": 0.5, "slow": 0.9}
CODES_RATE, DECODER_RATE = 2e-2, 5e-3
NUM, WIDTH, DIM, CODES, ROWS = 64, 16, 4, 64, 1024
CHECKS = 30
MEASURES = ("separation", "entropy", "temperature_ratio", "use_hard_batch", "distinct_codes")
THEOREMS_FILE = "theorems.json"

Course = list[dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class Toy:
    """One training on the toy.

    Attributes:
        ratio: Encoder's rate over the codes'.
        temperature: Of the quantizer.
        loss: Of the quantizer.
        forward_value: What training decodes.
        revive: Whether dead codes are revived.
        repulsion: Weight of `repel`.
        seed: Of net, data and quantizer.
    """

    ratio: float = 0.1
    temperature: Temperature
    loss: Loss = field(default_factory=Loss)
    forward_value: str = "blurred"
    revive: bool = True
    repulsion: float = 0.0
    seed: int = 0


def theorems(*, out: Path = Path("runs/theorems"), steps: int = 600, seed: int = 0) -> None:
    """Try what the papers prove on a toy: rates, schedules, a provoked collapse.

    Args:
        out: Folder for theorems.json, which holds all courses.
        steps: Of each training.
        seed: Of all of them.
    """
    check_count("steps", steps, least=CHECKS)
    content: dict[str, Any] = {}
    for name, study in (
        ("ratios", study_ratios),
        ("schedules", study_schedules),
        ("collapse", study_collapse),
    ):
        content[name] = study(steps, seed)
        save_study(out / THEOREMS_FILE, {"steps": steps, "seed": seed, **content})
    print(f"Written: {out / THEOREMS_FILE}")


def make_literal(steps: int, **options: Any) -> Toy:  # noqa: ANN401 - fields of Toy
    """DDCL as written: one T on the scale of the variance, gradient through q, soft mean."""
    fixed: dict[str, Any] = {
        "temperature": Temperature(
            gradient=(0.5, 0.02),
            prototypes=None,
            unit="variance",
            anneal_steps=steps,
            warmup_share=0.0,
        ),
        "loss": Loss(weight=0.25, use_entropy=0.0, assignment_grad="full", unit="absolute"),
        "forward_value": "soft",
        "revive": False,
    }
    return Toy(**{**fixed, **options})


def study_ratios(steps: int, seed: int) -> dict[str, Course]:
    """Theorem 1: the codes must be faster than the encoder, by ten at least."""
    makers: dict[str, Callable[[float], Toy]] = {
        "literal": lambda ratio: make_literal(steps, ratio=ratio, seed=seed),
        "default": lambda ratio: Toy(
            ratio=ratio, temperature=Temperature(anneal_steps=steps), seed=seed
        ),
    }
    courses, rows = {}, []
    for name, make in makers.items():
        for ratio in RATIOS:
            course = follow(make(ratio), steps=steps)
            courses[f"{name} {ratio:g}"] = course
            end = course[-1]
            lowest = min(each["use_hard_batch"] for each in course)
            cells = [f"{end['separation']:.2f}", f"{end['entropy']:.2f}"]
            cells += [f"{end['temperature_ratio']:.3f}", f"{100 * end['use_hard_batch']:.0f}"]
            cells += [f"{100 * lowest:.0f}", f"{end['distinct_codes']:.0f}", f"{end['error']:.4f}"]
            rows.append([f"{name}, {ratio:g}", *cells])
    header = ["Method, epsilon", "S(P)", "H(Q)", "T / T_c", "hard use %", "lowest", "distinct"]
    print_rows("Encoder's rate over the codes', at the end", [*header, "error"], rows)
    return courses


def study_schedules(steps: int, seed: int) -> dict[str, Course]:
    """Theorems 2 and 3: monotone annealing, with and without repulsion as regularisation."""
    courses, rows = {}, []
    for name, share in SHARES.items():
        for repulsion in (0.0, 0.02):
            path = Temperature(
                gradient=(2.2, 0.05),
                prototypes=None,
                unit="critical",
                anneal_steps=steps,
                anneal_share=share,
                warmup_share=0.0,
            )
            toy = Toy(
                temperature=path,
                loss=Loss(weight=0.25, use_entropy=0.0, unit="absolute"),
                forward_value="soft",
                revive=False,
                repulsion=repulsion,
                seed=seed,
            )
            course = follow(toy, steps=steps)
            key = f"{name}, {'repulsion' if repulsion else 'none'}"
            courses[key] = course
            pairs = list(itertools.pairwise(course))
            fell = sum(b["separation"] < a["separation"] for a, b in pairs)
            rose = sum(b["free_energy"] > a["free_energy"] for a, b in pairs)
            end = course[-1]
            cells = [f"{end['free_energy']:.3f}", f"{rose} of {len(pairs)}"]
            cells += [f"{end['separation']:.2f}", f"{fell} of {len(pairs)}"]
            cells += [f"{end['distinct_codes']:.0f}", f"{100 * end['use_hard_batch']:.0f}"]
            rows.append([key, *cells, f"{end['error']:.4f}"])
    header = ["Annealing, repulsion", "F", "times it rose", "S(P)", "times it fell", "distinct"]
    print_rows("From 2.2 to 0.05 T_c", [*header, "hard use %", "error"], rows)
    return courses


def study_collapse(steps: int, seed: int) -> dict[str, Any]:
    """T rises from under to over critical: do S(P) and H(Q) tell before the hard codes do?"""
    path = Temperature(
        gradient=(0.02, 4.0),
        prototypes=None,
        unit="critical",
        anneal_steps=steps,
        anneal_share=1.0,
        warmup_share=0.0,
    )
    toy = Toy(
        temperature=path,
        loss=Loss(weight=0.25, use_entropy=0.0, unit="absolute"),
        forward_value="soft",
        revive=False,
        seed=seed,
    )
    course = follow(toy, steps=steps)
    alarms = find_alarms(course)
    every = steps // CHECKS
    rows = [
        [what, "never" if place is None else f"{place} (step {place * every})"]
        for what, place in alarms.items()
    ]
    print_rows("A collapse that is provoked: evaluation of the alarm", ["Sign", "at"], rows)
    return {"course": course, "alarms": alarms}


def find_alarms(course: Course) -> dict[str, int | None]:
    """The evaluation at which each sign first shows, or None.

    Signs: S(P) under nine tenths of its highest; H(Q) at twice its lowest; the error of hard codes
    a tenth above its lowest, which is what the others should come before. All by what was seen so
    far, and to the end: a sign that goes away was none.

    Example:
        >>> quiet = {"separation": 1.0, "entropy": 0.1, "error": 1.0}
        >>> apart = quiet | {"separation": 0.5}
        >>> find_alarms([quiet, apart, {**apart, "error": 2.0}])
        {'S(P)': 1, 'H(Q)': None, 'hard error': 2}
    """
    separation, entropy, error = (
        [each[name] for each in course] for name in ("separation", "entropy", "error")
    )
    places = range(len(course))
    signs = {
        "S(P)": [separation[n] < 0.9 * max(separation[: n + 1]) for n in places],
        "H(Q)": [entropy[n] > 2 * min(entropy[: n + 1]) for n in places],
        "hard error": [error[n] > 1.1 * min(error[: n + 1]) for n in places],
    }
    return {
        name: next((n for n in places if all(shown[n:])), None) for name, shown in signs.items()
    }


def follow(toy: Toy, *, steps: int) -> Course:
    """Train a toy and measure it at even steps, from before the first on.

    Returns:
        By evaluation: the measures, ``free_energy`` at the first temperature, and ``error``, of
        hard codes, as a share of the data's variance.
    """
    torch.manual_seed(toy.seed)
    rows, unseen = make_rows(toy.seed)
    vq = SoftVQ(
        CODES,
        DIM,
        temperature=toy.temperature,
        loss=toy.loss,
        forward_value=toy.forward_value,
        revival=Revival() if toy.revive else None,
        seed=toy.seed,
    )
    encoder = nn.Linear(WIDTH, DIM)
    decoder = nn.Sequential(nn.Linear(DIM, 64), nn.GELU(), nn.Linear(64, WIDTH))
    model = nn.ModuleList([encoder, vq, decoder])
    groups = [
        {"params": encoder.parameters(), "lr": toy.ratio * CODES_RATE},
        {"params": decoder.parameters(), "lr": DECODER_RATE},
        {"params": vq.parameters(), "lr": CODES_RATE},
    ]
    optimizer = torch.optim.Adam(groups, betas=(0.9, 0.99))
    attach(model, optimizer, codebook_lr=CODES_RATE)
    with torch.no_grad():
        vq.start_(encoder(rows))
    course = [_measure(encoder, vq, decoder, unseen)]
    for step in range(steps):
        out = vq.train()(encoder(rows))
        loss = F.mse_loss(decoder(out.quantized), rows) + out.loss
        if toy.repulsion:
            loss = loss + toy.repulsion * repel(vq.codebook)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % (steps // CHECKS) == 0:
            course.append(_measure(encoder, vq, decoder, unseen))
    return course


def make_rows(seed: int) -> tuple[Tensor, Tensor]:
    """Rows to train on and rows to measure, of the same 64 clusters.

    Example:
        >>> [each.shape for each in make_rows(0)]
        [torch.Size([1024, 16]), torch.Size([1024, 16])]
    """
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(NUM, WIDTH, generator=generator)
    draws = torch.randn(2, ROWS, WIDTH, generator=generator)
    first, second = centres.repeat(ROWS // NUM, 1) + 0.1 * draws
    return first, second


def repel(codebook: Tensor) -> Tensor:
    """Mean over pairs of -log(d / s + 1e-3) / 2, d their squared distance and s its mean.

    No source gives the papers' regularisation; this is one that parts close codes by far the most.

    Example:
        >>> round(repel(torch.zeros(3, 2)).item(), 4)
        3.4539
    """
    distances = squared_distances(codebook, codebook)
    pairs = distances[~torch.eye(len(codebook), dtype=torch.bool)]
    scale = pairs.detach().mean().clamp_min(1e-12)
    return -0.5 * (pairs / scale + 1e-3).log().mean()


@torch.no_grad()
def _measure(encoder: nn.Module, vq: SoftVQ, decoder: nn.Module, rows: Tensor) -> dict[str, float]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", IN_WARMUP)  # a course begins there
        out = vq.eval()(encoder(rows))
    stats = {name: out.stats[name].item() for name in MEASURES}
    energy = out.stats["distortion"] - out.stats["temperature"] * out.stats["entropy"]
    error = F.mse_loss(decoder(out.quantized), rows) / rows.var(correction=0)
    return {**stats, "free_energy": energy.item(), "error": error.item()}
