"""MiniLM, a real Hugging Face encoder, fine-tuned end to end with a DDCL readout behind it.

On Rotten Tomatoes; with a page that shows which prototype owns which word of unseen sentences.
"""

import textwrap
import time
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from transformers import PreTrainedModel

from eval.paper.features import load_encoder
from eval.paper.sizes import Sizes
from eval.paper.store import Store, make_table
from eval.paper.texts import TextSet, load_texts
from eval.paper.words import split_words
from softvq import DDCLReadout, HealthMonitor, Temperature, attach, with_readout
from softvq.explain import PrototypeNeighbours, explain_shares
from softvq.explain.page import PrototypeCard, TextExample, write_page

PROTOTYPES, BATCH, MAX_TOKENS = 8, 8, 32
ENCODER_RATE, HEAD_RATE = 3e-5, 1e-3
FIRST_LAYER = "encoder.layer.0.output.dense.weight"
EVALUATIONS = 3
LEAST_SHARE = 0.01  # of an input, for a prototype's card to show it


class Classifier(nn.Module):
    """An encoder, a readout, and a line over the mean centroid and the bag of prototypes."""

    def __init__(self, encoder: PreTrainedModel, *, anneal_steps: int) -> None:
        super().__init__()
        options = Temperature(gradient=0.5, prototypes=(0.3, 0.1), anneal_steps=anneal_steps)
        dim = encoder.config.hidden_size
        self.readout = DDCLReadout(dim, PROTOTYPES, temperature=options)
        self.body = with_readout(encoder, self.readout)
        self.head = nn.Linear(dim + PROTOTYPES, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and the readout's loss."""
        out = self.body(input_ids=ids, attention_mask=mask)
        return self.head(torch.cat([out.mean, out.assignment], -1)), out.loss


def run(sizes: Sizes, folder: Path) -> None:
    """Fine-tune, write ``finetune.json``, ``.md``, ``.png`` and ``explain-text.html``."""
    store = Store(folder, "finetune", sizes=sizes.take("finetune_texts"))
    rows: list[dict] = []
    key = {"steps": sizes.finetune_steps, "seed": 0}
    row = store.row(key, lambda: train(sizes, folder))
    rows = row["curve"]
    store.write_table(
        [
            make_table(
                rows,
                title=f"MiniLM with a DDCL readout of {PROTOTYPES} prototypes, fine-tuned end to "
                f"end on Rotten Tomatoes: {row['steps']} steps of {BATCH} sentences, "
                f"{row['num_test']} unseen sentences; verdict: {row['verdict']}",
                by=["step"],
                measures={
                    "accuracy": ".3f",
                    "task_loss": ".3f",
                    "separation": ".2f",
                    "entropy": ".2f",
                    "spread_share": ".3f",
                    "temperature_ratio": ".3f",
                    "distinct": ".2f",
                },
            )
        ]
    )
    store.write_figure(_draw(rows))


def train(sizes: Sizes, folder: Path) -> dict:
    """Train, and write the page of explanations.

    Returns:
        The curve, the verdict and the encoder's change.
    """
    torch.manual_seed(0)
    num_train, num_test = sizes.finetune_texts
    texts = load_texts("rotten-tomatoes", num_train=num_train, num_test=num_test)
    encoder, tokenizer = load_encoder()
    held = tokenizer(
        list(texts.texts), truncation=True, max_length=MAX_TOKENS, padding=True, return_tensors="pt"
    )
    ids, mask, labels = held["input_ids"], held["attention_mask"], torch.tensor(texts.labels)
    model = Classifier(encoder, anneal_steps=sizes.finetune_steps)
    optimizer = torch.optim.AdamW(
        [
            {"params": encoder.parameters(), "lr": ENCODER_RATE},
            {"params": [*model.readout.parameters(), *model.head.parameters()]},
        ],
        lr=HEAD_RATE,
    )
    attach(model, optimizer)
    monitor = HealthMonitor(model)
    watched = encoder.get_parameter(FIRST_LAYER)
    before = watched.detach().clone()
    curve, began = [], time.process_time()
    every = max(1, sizes.finetune_steps // EVALUATIONS)
    generator = torch.Generator().manual_seed(0)
    for step in range(sizes.finetune_steps):
        chosen = torch.randint(num_train, (BATCH,), generator=generator)
        length = int(mask[chosen].sum(1).max())
        logits, loss = model.train()(ids[chosen, :length], mask[chosen, :length])
        task = nn.functional.cross_entropy(logits, labels[chosen])
        optimizer.zero_grad()
        (task + loss).backward()
        optimizer.step()
        if (step + 1) % every == 0 or step == 0:
            reading = monitor.read()._asdict()
            accuracy = evaluate(model, ids[num_train:], mask[num_train:], labels[num_train:])
            curve.append(
                {
                    "step": step + 1,
                    "accuracy": accuracy,
                    "task_loss": float(task.detach()),
                    **reading,
                }
            )
            print("  " + str({k: round(v, 3) for k, v in curve[-1].items()}), flush=True)
    change = (watched - before).norm() / before.norm()
    verdict = monitor.verdict()
    monitor.detach()
    explain(model, texts, ids, mask, folder=folder, tokenizer=tokenizer)
    return {
        "curve": curve,
        "verdict": verdict,
        "num_test": num_test,
        "first_layer_change": float(change.detach()),
        "processor_seconds": time.process_time() - began,
    }


@torch.no_grad()
def evaluate(model: Classifier, ids: Tensor, mask: Tensor, labels: Tensor) -> float:
    """Accuracy."""
    right = 0
    for start in range(0, len(ids), 50):
        part = slice(start, start + 50)
        length = int(mask[part].sum(1).max())
        logits, _ = model.eval()(ids[part, :length], mask[part, :length])
        right += int((logits.argmax(-1) == labels[part]).sum())
    return right / len(ids)


@torch.no_grad()
def explain(
    model: Classifier,
    texts: TextSet,
    ids: Tensor,
    mask: Tensor,
    *,
    folder: Path,
    tokenizer: object,
) -> None:
    """Write the page: unseen sentences by prototype, and each prototype's nearest words."""
    first = texts.num_train
    ids, mask = ids[first:], mask[first:].bool()
    length = int(mask.sum(1).max())
    ids, mask = ids[:, :length], mask[:, :length]
    encoder, readout = model.eval().body.encoder, model.readout
    tokens = encoder(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    shares = explain_shares(readout, tokens, mask=mask)
    found = PrototypeNeighbours(readout.prototypes.quantizers[0], num=12)
    found.update(tokens, mask=mask)
    words = [split_words(tokenizer, each[kept]) for each, kept in zip(ids, mask, strict=True)]
    examples = [
        TextExample(
            title=f"{texts.classes[texts.labels[first + place]]}, unseen sentence {place}",
            words=words[place],
            shares=shares.tokens[place, 0][mask[place]],
        )
        for place in range(min(12, len(ids)))
    ]
    use = shares.tokens[:, 0][mask].mean(0)
    lean = model.head.weight[1] - model.head.weight[0]
    pull = readout.prototypes.quantizers[0].codebook @ lean[:-PROTOTYPES] + lean[-PROTOTYPES:]
    cards = [
        PrototypeCard(
            share=float(use[place]),
            tokens=[words[each.item][each.position].strip() for each in near],
            inputs=[
                f"{share:.0%} of: {textwrap.shorten(texts.texts[first + item], 110)}"
                for item, share in found.inputs()[place][:3]
                if share >= LEAST_SHARE
            ],
            note=f"pulls to {'positive' if pull[place] > pull.mean() else 'negative'}",
        )
        for place, near in enumerate(found.tokens())
    ]
    write_page(
        folder / "explain-text.html",
        examples,
        prototypes=cards,
        title="Which prototype owns which word",
        note="MiniLM with a DDCL readout, fine-tuned end to end on Rotten Tomatoes; sentences that "
        "training never saw.",
    )


def _draw(rows: list[dict]) -> Figure:
    figure = Figure((9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    steps = [row["step"] for row in rows]
    left.plot(steps, [row["accuracy"] for row in rows], marker="o")
    left.set_xlabel("step")
    left.set_ylabel("accuracy, unseen sentences")
    for name in ("entropy_share", "spread_share", "temperature_ratio", "distinct"):
        right.plot(steps, [row[name] for row in rows], marker="o", label=name.replace("_", " "))
    right.set_xlabel("step")
    right.legend()
    return figure
