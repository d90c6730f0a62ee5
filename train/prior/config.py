"""What a run of the prior is, and how it is drawn from: frozen, checked, written with results."""

import dataclasses
from dataclasses import field

from pydantic.dataclasses import dataclass

from softvq.checks import check_count, check_number
from train.config import STRICT


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PriorNetConfig:
    """Sizes of the transformer.

    Attributes:
        layers: Blocks.
        width: Features of a position; a multiple of ``heads``.
        heads: Of the attention.
        dropout: Share of activations dropped in training.
        from_codebook: Whether the embeddings of codes start as the codebook, through a random
            linear map to the width, and not at random.
    """

    layers: int = 4
    width: int = 192
    heads: int = 4
    dropout: float = 0.0
    from_codebook: bool = False

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads"):
            check_count(f"net.{name}", getattr(self, name))
        check_number("net.dropout", self.dropout, least=0, most=0.9)
        if self.width % self.heads:
            raise ValueError(
                f"net.width must be a multiple of net.heads, {self.heads}; got {self.width}."
            )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PriorOptimConfig:
    """Budget and rate: AdamW, gradients cut to length 1; the rate climbs, stays, falls to 0.

    Attributes:
        steps: Optimizer steps.
        batch_size: Items a step.
        lr: Rate.
        warmup_steps: Steps of the climb.
        decay_from: Share of the run at which the fall begins.
        weight_decay: Of matrices; biases, gains and embeddings have none.
        beta2: AdamW's memory of the square of the gradient.
    """

    steps: int = 1000
    batch_size: int = 64
    lr: float = 2e-3
    warmup_steps: int = 50
    decay_from: float = 0.3
    weight_decay: float = 0.1
    beta2: float = 0.98

    def __post_init__(self) -> None:
        check_count("optim.steps", self.steps)
        check_count("optim.batch_size", self.batch_size)
        check_count("optim.warmup_steps", self.warmup_steps, least=0)
        check_number("optim.lr", self.lr, above=0)
        check_number("optim.decay_from", self.decay_from, least=0, most=1)
        check_number("optim.weight_decay", self.weight_decay, least=0)
        check_number("optim.beta2", self.beta2, least=0, most=0.999999)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PriorConfig:
    """One run of the prior.

    Attributes:
        net: Sizes.
        optim: Budget.
        conditional: Whether an item begins with the token of its class; else all begin with BOS.
        drop_labels: Share of items that begin with BOS all the same, for guidance.
        seed: Of the start, the order of items and the labels that are dropped.
        eval_at: Shares of the run at which held-out tokens are measured.
        num_eval: Held-out items measured on the way; at the end all are.
        log_every: Steps between the losses that are kept.
        checkpoint_every: Steps between checkpoints.
    """

    net: PriorNetConfig = field(default_factory=PriorNetConfig)
    optim: PriorOptimConfig = field(default_factory=PriorOptimConfig)
    conditional: bool = True
    drop_labels: float = 0.1
    seed: int = 0
    eval_at: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
    num_eval: int = 500
    log_every: int = 10
    checkpoint_every: int = 100

    def __post_init__(self) -> None:
        check_number("drop_labels", self.drop_labels, least=0, most=1)
        check_count("seed", self.seed, least=0)
        for name in ("num_eval", "log_every", "checkpoint_every"):
            check_count(name, getattr(self, name))
        for share in self.eval_at:
            check_number("eval_at", share, least=0, most=1)
        if not self.eval_at or self.eval_at[-1] != 1.0:
            raise ValueError(f"eval_at must end at 1.0, the whole run; got {self.eval_at}.")

    def eval_steps(self) -> list[int]:
        """Steps after which held-out tokens are measured, in order, each once."""
        return sorted({round(share * self.optim.steps) for share in self.eval_at})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How codes are drawn, in this order: guidance, temperature, top-k, top-p.

    Attributes:
        temperature: Logits are divided by it.
        top_k: Only the so many likeliest codes; None for all.
        top_p: Of those, only the fewest likeliest that have this share of the mass; 1 for all.
        guidance: s in (1 - s) log p(code) + s log p(code | class): 1 leaves guidance out.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    guidance: float = 1.0

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, above=0)
        check_number("top_p", self.top_p, above=0, most=1)
        check_number("guidance", self.guidance, least=0)
        if self.top_k is not None:
            check_count("top_k", self.top_k)
