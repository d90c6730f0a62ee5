"""One training run of the prior, from exported tokens to nats on tokens that it has not seen."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Int
from torch import Tensor

from softvq.export import TokenDataset
from train.checkpoint import load_checkpoint, load_weights, read_state, save_checkpoint
from train.interrupt import noting_interrupts
from train.order import BatchOrder
from train.prior.config import PriorConfig
from train.prior.nats import Unigram, count_codes, measure_nats, measure_unigram
from train.prior.net import Prior
from train.prior.vocabulary import (
    NO_CLASS,
    check_same,
    flat_codes,
    read_vocabulary,
    take_vocabulary,
)
from train.provenance import find_commit, find_versions
from train.rate import find_rate
from train.terminal import Terminal
from train.values import find_changes, read_config, to_json

KIND = "softvq-prior-checkpoint"
CHECKPOINT = "prior.safetensors"
COLUMNS = ("loss", "nats/token", "unigram", "rate", "left")
MOST_GRADIENT = 1.0


@dataclass
class PriorResult:
    """What a run leaves.

    Attributes:
        prior: Trained.
        unigram: What frequencies alone give on the held-out tokens.
        evals: ``step``, ``images`` measured, ``nats_per_token``, ``nats_per_image``, ``seconds``.
        losses: Nats a token of training batches every ``log_every`` steps, with ``step``.
    """

    prior: Prior
    unigram: Unigram
    evals: list[dict[str, float]] = field(default_factory=list)
    losses: list[dict[str, float]] = field(default_factory=list)


class PriorRun:
    """A training run of the prior in progress.

    Args:
        config: What to do.
        train: Tokens to learn from.
        test: Tokens to be measured on, of the same model and specials.
        folder: For the checkpoint; None writes nothing.
        title: Before each line on the terminal.
        quiet: Say nothing.

    Raises:
        ValueError: If the two sets do not mean the same, or lack labels or special tokens.
    """

    def __init__(
        self,
        config: PriorConfig,
        *,
        train: TokenDataset,
        test: TokenDataset,
        folder: Path | None = None,
        title: str = "prior",
        quiet: bool = False,
    ) -> None:
        self.config, self.tokens, self.test = config, train, test
        self.folder, self.title, self.quiet = folder, title, quiet
        self.vocabulary = take_vocabulary(train, conditional=config.conditional)
        theirs = take_vocabulary(test, conditional=config.conditional)
        check_same(self.vocabulary, theirs, what=f"tokens in {test.folder}")
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.order = BatchOrder(len(train), config.optim.batch_size, seed=config.seed)
        torch.manual_seed(config.seed)  # transformers draws its weights from the global generator
        prior = Prior(self.vocabulary, config.net, drops_labels=config.drop_labels > 0)
        if config.net.from_codebook:
            generator = torch.Generator().manual_seed(config.seed)
            prior.start_from_(train.codebook, generator=generator)
        self.optimizer = _make_optimizer(prior.to(self.device), config)
        unigram = measure_unigram(count_codes(train), count_codes(test))
        self.result = PriorResult(prior, unigram)
        self.done = 0
        self.seconds = 0.0

    @property
    def path(self) -> Path:
        """The checkpoint."""
        if self.folder is None:
            raise ValueError("folder is None: a run without a folder has no checkpoint.")
        return self.folder / CHECKPOINT

    def resume(self) -> None:
        """Go on from the folder's checkpoint, bit for bit as if the run had never stopped (CPU).

        Raises:
            ValueError: If it is of other settings or tokens, or cut short.
            FileNotFoundError: If there is none.
        """
        saved = read_state(self.path, kind=KIND)
        changes = find_changes(
            {"config": saved["config"], "tokens": saved["tokens"]},
            {"config": to_json(self.config), "tokens": self._tell_tokens()},
        )
        if changes:
            raise ValueError(
                f"path {self.path} is of another run: {'; '.join(changes)}. Resume with the same "
                "settings and tokens, or use another folder."
            )
        state = load_checkpoint(self.path, self.result.prior, self.optimizer, kind=KIND)
        self.done, self.seconds = state["step"], state["seconds"]
        self.result.evals, self.result.losses = state["evals"], state["losses"]

    def train(self) -> PriorResult:
        """Train to the end, measuring on the way.

        Returns:
            The result.

        Raises:
            KeyboardInterrupt: After Ctrl-C, once the step that it came in is done and saved.
        """
        steps = self.config.optim.steps
        terminal = Terminal(self.title, total=steps, quiet=self.quiet, columns=COLUMNS)
        with terminal, noting_interrupts() as interrupted:
            if self.done == 0:
                terminal.say(
                    f"{len(self.tokens)} items of {self.vocabulary.length} tokens; "
                    f"{self.result.prior.num_parameters / 1e6:.2f} million parameters"
                )
            for step in range(self.done, steps):
                self._step(step, terminal)
                if self.done in self.config.eval_steps():
                    self._evaluate(terminal)
                stopping = interrupted()
                due = self.done % self.config.checkpoint_every == 0 or self.done == steps
                if stopping or due:
                    self.save()
                if stopping:
                    raise KeyboardInterrupt
        return self.result

    def save(self) -> None:
        """Write the checkpoint; without a folder, nothing."""
        if self.folder is None:
            return
        state = {
            "config": to_json(self.config),
            "vocabulary": self.vocabulary.to_json(),
            "tokens": self._tell_tokens(),
            "step": self.done,
            "seconds": self.seconds,
            "evals": self.result.evals,
            "losses": self.result.losses,
            "commit": find_commit(),
            "versions": find_versions(),
        }
        save_checkpoint(self.path, self.result.prior, self.optimizer, state=state, kind=KIND)

    def _tell_tokens(self) -> dict[str, str]:
        """What tells one pair of token sets from another: everything that was exported."""
        return {"train": self.tokens.manifest.plan.job, "test": self.test.manifest.plan.job}

    def _step(self, step: int, terminal: Terminal) -> None:
        begin = time.perf_counter()
        optim = self.config.optim
        factor = find_rate(
            step, steps=optim.steps, warmup_steps=optim.warmup_steps, decay_from=optim.decay_from
        )
        for group in self.optimizer.param_groups:
            group["lr"] = optim.lr * factor
        prior = self.result.prior.train()
        items = self.tokens.batch(self.order.batch(step))
        codes = flat_codes(items.tokens).to(self.device)
        inputs = self.vocabulary.inputs(codes, self._choose_labels(items.label, step))
        logits = rearrange(prior(inputs).float(), "b l k -> (b l) k")
        loss = F.cross_entropy(logits, codes.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(prior.parameters(), MOST_GRADIENT)
        self.optimizer.step()
        self.done = step + 1
        self.seconds += time.perf_counter() - begin
        terminal.step(self.done, rate=self.done / max(self.seconds, 1e-9))
        if self.done % self.config.log_every == 0 or self.done == 1:
            self.result.losses.append({"step": self.done, "loss": loss.item()})
            terminal.show({"loss": f"{loss.item():.3f}"})

    def _choose_labels(self, labels: Int[Tensor, " b"], step: int) -> Int[Tensor, " b"]:
        """Labels of a step, some dropped: a function of seed and step, as a resumed run needs."""
        if not self.config.conditional:
            return torch.full_like(labels, NO_CLASS).to(self.device)
        generator = torch.Generator().manual_seed(self.config.seed * 1_000_003 + step)
        dropped = torch.rand(len(labels), generator=generator) < self.config.drop_labels
        return labels.masked_fill(dropped, NO_CLASS).to(self.device)

    def _evaluate(self, terminal: Terminal) -> None:
        last = self.done == self.config.optim.steps
        most = None if last else self.config.num_eval
        found = measure_nats(self.result.prior, self.test, num_images=most)
        self.result.evals.append(
            {
                "step": self.done,
                "images": found.images,
                "nats_per_token": found.per_token,
                "nats_per_image": found.per_image,
                "seconds": self.seconds,
            }
        )
        known = self.result.unigram.cross_entropy
        shown = f"{found.per_token:.3f}"
        terminal.show({"nats/token": shown, "unigram": f"{known:.3f}"})
        terminal.say(
            f"step {self.done:>5}  {shown} nats a token on {found.images} unseen items "
            f"(unigram {known:.3f}, margin {known - found.per_token:.3f})"
        )


def load_prior(path: Path | str) -> Prior:
    """The prior of a checkpoint, in eval mode, on the CPU.

    Args:
        path: The file, or the folder of a run.

    Raises:
        ValueError: If it is no such file, or cut short.
        FileNotFoundError: If there is none.
    """
    path = Path(path)
    path = path / CHECKPOINT if path.is_dir() else path
    state = read_state(path, kind=KIND)
    config = read_config(state["config"], PriorConfig)
    vocabulary = read_vocabulary(state["vocabulary"])
    prior = Prior(vocabulary, config.net, drops_labels=config.drop_labels > 0)
    load_weights(path, prior, kind=KIND)
    return prior.eval()


def _make_optimizer(prior: Prior, config: PriorConfig) -> torch.optim.Optimizer:
    """AdamW; embeddings, biases and gains are not pulled to 0."""
    named: list[tuple[str, Any]] = list(prior.named_parameters())
    is_matrix = [
        each.ndim > 1 and ".wte." not in name and ".wpe." not in name for name, each in named
    ]
    groups = [
        {
            "params": [p for (_, p), big in zip(named, is_matrix, strict=True) if big == which],
            "weight_decay": config.optim.weight_decay if which else 0.0,
        }
        for which in (True, False)
    ]
    return torch.optim.AdamW(groups, lr=config.optim.lr, betas=(0.9, config.optim.beta2))
