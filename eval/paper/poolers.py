"""Ways to make one class of many tokens, with about the same number of parameters but for one.

B batch, N tokens, D features, C classes, K prototypes, slots or latents.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from einops import rearrange, repeat
from torch import Tensor, nn

from softvq import DDCLAttention, DDCLReadout, Temperature
from softvq.checks import choose
from softvq.functional.windows import masked_mean

DIM, NUM, HEADS = 384, 16, 4


class Pooler(nn.Module, ABC):
    """Tokens (B, N, D) and mask (B, N) to logits (B, C) and a loss of the pooler's own."""

    @abstractmethod
    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and loss."""


class Plain(Pooler):
    """A pooling without parameters, and a net of one hidden layer behind it.

    Args:
        pool: Tokens and mask to (B, size).
        size: What it gives.
        num_classes: C.
    """

    def __init__(
        self, pool: Callable[[Tensor, Tensor], Tensor], *, size: int, num_classes: int
    ) -> None:
        super().__init__()
        self.pool = pool
        hidden = round((budget(num_classes) - num_classes) / (size + 1 + num_classes))
        self.net = nn.Sequential(nn.Linear(size, hidden), nn.GELU(), nn.Linear(hidden, num_classes))

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and no loss."""
        return self.net(self.pool(tokens, mask)), tokens.new_zeros(())


class AttentionPooling(Pooler):
    """Weights softmax(v . tanh(W z)) over tokens, as in hierarchical attention networks (2016)."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        hidden = round((budget(num_classes) - num_classes * (DIM + 1)) / (DIM + 2))
        self.score = nn.Sequential(
            nn.Linear(DIM, hidden), nn.Tanh(), nn.Linear(hidden, 1, bias=False)
        )
        self.head = nn.Linear(DIM, num_classes)

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and no loss."""
        scores = self.score(tokens)[..., 0].masked_fill(~mask, -torch.inf)
        pooled = (scores.softmax(-1)[..., None] * tokens).sum(1)
        return self.head(pooled), tokens.new_zeros(())


class CrossAttention(Pooler):
    """K learned latents attend to the tokens by PyTorch's attention, as Perceiver's first step."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        size = _solve(
            lambda d: 2 * DIM * d + 2 * d * d + (NUM + 6 + num_classes) * d, num_classes, step=HEADS
        )
        self.latents = nn.Parameter(0.02 * torch.randn(NUM, size))
        self.attention = nn.MultiheadAttention(size, HEADS, kdim=DIM, vdim=DIM, batch_first=True)
        self.norm = nn.LayerNorm(size)
        self.head = nn.Linear(size, num_classes)

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and no loss."""
        queries = repeat(self.latents, "k d -> b k d", b=len(tokens))
        read, _ = self.attention(
            queries, tokens, tokens, key_padding_mask=~mask, need_weights=False
        )
        return self.head(self.norm(read).mean(1)), tokens.new_zeros(())


class SlotAttention(Pooler):
    """K slots that compete for tokens over three rounds.

    "Object-Centric Learning with Slot Attention" (Locatello et al., 2020). Written here because the
    package ``slot-attention`` has no masks: padding would be read as tokens.
    """

    noise: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        rest = 2 * DIM + num_classes  # that does not hang on the size
        size = _solve(
            lambda d: 2 * DIM * d + 11 * d * d + (15 + num_classes) * d + rest, num_classes, step=1
        )
        self.start = nn.Parameter(torch.randn(size) * size**-0.5)
        self.deviation = nn.Parameter(torch.zeros(size))
        self.norm_tokens, self.norm_slots = nn.LayerNorm(DIM), nn.LayerNorm(size)
        self.key = nn.Linear(DIM, size, bias=False)
        self.value = nn.Linear(DIM, size, bias=False)
        self.query = nn.Linear(size, size, bias=False)
        self.update = nn.GRUCell(size, size)
        self.net = nn.Sequential(
            nn.LayerNorm(size), nn.Linear(size, 2 * size), nn.ReLU(), nn.Linear(2 * size, size)
        )
        self.head = nn.Linear(size, num_classes)
        self.size = size
        # The same noise at every call, so that an evaluation can be done again.
        self.register_buffer("noise", torch.randn(NUM, size))

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and no loss."""
        tokens = self.norm_tokens(tokens)
        key, value = self.key(tokens), self.value(tokens)
        first = self.start + self.deviation.exp() * self.noise * self.size**-0.5
        slots = repeat(first, "k d -> b k d", b=len(tokens))
        for _ in range(3):
            scores = self.query(self.norm_slots(slots)) @ key.mT * self.size**-0.5
            shares = torch.where(mask[:, None], scores.softmax(1), 0) + 1e-8
            shares = torch.where(mask[:, None], shares, 0)
            read = shares / shares.sum(-1, keepdim=True) @ value
            flat = self.update(
                rearrange(read, "b k d -> (b k) d"), rearrange(slots, "b k d -> (b k) d")
            )
            slots = rearrange(flat, "(b k) d -> b k d", k=NUM)
            slots = slots + self.net(slots)
        return self.head(slots.mean(1)), tokens.new_zeros(())


class AttentionReadout(Pooler):
    """`softvq.DDCLAttention`, and the mean of its tokens."""

    def __init__(self, num_classes: int, *, options: Temperature, seed: int) -> None:
        super().__init__()
        self.layer = DDCLAttention(DIM, NUM, heads=HEADS, temperature=options, seed=seed)
        self.head = nn.Linear(DIM, num_classes)

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and the prototypes' loss."""
        out = self.layer(tokens, mask=mask)
        return self.head(masked_mean(out.tokens, mask)), out.loss


class BagReadout(Pooler):
    """`softvq.DDCLReadout`: mean centroid and bag of prototypes, and a net behind them."""

    def __init__(self, num_classes: int, *, options: Temperature, seed: int) -> None:
        super().__init__()
        self.readout = DDCLReadout(DIM, NUM, temperature=options, seed=seed)
        left = budget(num_classes) - NUM * DIM - num_classes
        hidden = round(left / (DIM + NUM + 1 + num_classes))
        self.net = nn.Sequential(
            nn.Linear(DIM + NUM, hidden), nn.GELU(), nn.Linear(hidden, num_classes)
        )

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and the prototypes' loss."""
        out = self.readout(tokens, mask=mask)
        return self.net(torch.cat([out.mean, out.assignment], -1)), out.loss


class BesideReadout(Pooler):
    """The bag of `softvq.DDCLReadout` beside the mean of the tokens, which pass by the prototypes.

    So the prototypes explain what was read and stand in the way of nothing.
    """

    def __init__(self, num_classes: int, *, options: Temperature, seed: int) -> None:
        super().__init__()
        self.inner = BagReadout(num_classes, options=options, seed=seed)

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and the prototypes' loss."""
        out = self.inner.readout(tokens, mask=mask)
        pooled = torch.cat([masked_mean(tokens, mask), out.assignment], -1)
        return self.inner.net(pooled), out.loss


class LinePooling(Pooler):
    """The mean of LayerNorm(z), and a line: `AttentionReadout` without its prototypes."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, num_classes)

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and no loss."""
        return self.head(masked_mean(self.norm(tokens), mask)), tokens.new_zeros(())


class HardBag:
    """How often each of K fixed centres is a token's nearest: k-means on frozen tokens."""

    def __init__(self, centres: Tensor) -> None:
        self.centres = centres

    def __call__(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """(B, K) shares, followed by the mean centre (B, D)."""
        nearest = torch.cdist(tokens, self.centres[None]).argmin(-1)
        shares = masked_mean(nn.functional.one_hot(nearest, len(self.centres)).float(), mask)
        return torch.cat([shares, shares @ self.centres], -1)


def max_pool(tokens: Tensor, mask: Tensor) -> Tensor:
    """The largest value of each feature over kept tokens.

    Example:
        >>> max_pool(torch.tensor([[[1.0], [3.0]]]), torch.tensor([[True, False]])).item()
        1.0
    """
    return tokens.masked_fill(~mask[..., None], -torch.inf).amax(1)


LINE = "mean of LayerNorm, a line"
BESIDE = "DDCLReadout beside the mean"
NAMES = (
    LINE,
    "CLS",
    "mean",
    "max",
    "attention pooling",
    "Slot Attention",
    "Perceiver cross-attention",
    "k-means bag",
    "DDCLAttention, mean",
    "DDCLReadout",
    BESIDE,
)


def make_pooler(
    name: str, *, num_classes: int, centres: Tensor, options: Temperature, seed: int
) -> Pooler:
    """A fresh pooler of that name.

    Args:
        name: A member of `NAMES`.
        num_classes: C.
        centres: (K, D) of k-means, for the one that takes them.
        options: Temperature of the DDCL layers.
        seed: Of the DDCL layers; torch's own seed gives the rest.

    Raises:
        ValueError: For an unknown name.
    """
    choose("pooler", name, NAMES)
    plain = {"CLS": lambda z, _: z[:, 0], "mean": masked_mean, "max": max_pool}
    if name in plain:
        return Plain(plain[name], size=DIM, num_classes=num_classes)
    if name == "k-means bag":
        return Plain(HardBag(centres), size=DIM + len(centres), num_classes=num_classes)
    if name.startswith("DDCL"):
        kind = DDCL_KINDS[name]
        return kind(num_classes, options=options, seed=seed)
    return OTHER_KINDS[name](num_classes)


DDCL_KINDS = {
    "DDCLAttention, mean": AttentionReadout,
    "DDCLReadout": BagReadout,
    BESIDE: BesideReadout,
}
OTHER_KINDS = {
    LINE: LinePooling,
    "attention pooling": AttentionPooling,
    "Slot Attention": SlotAttention,
    "Perceiver cross-attention": CrossAttention,
}


def budget(num_classes: int) -> int:
    """Parameters that each may have: those of DDCLAttention and a line to the classes.

    Example:
        >>> budget(2)
        155906
    """
    layer = NUM * DIM + DIM * DIM + DIM + DIM + 2 * DIM  # prototypes, W_o, its gate, LayerNorm
    return layer + (DIM + 1) * num_classes


def _solve(count: Callable[[int], int], num_classes: int, *, step: int) -> int:
    """The size, a multiple of ``step``, whose number of parameters is nearest to the budget."""
    size = step
    while count(size + step) <= budget(num_classes):
        size += step
    return min((size, size + step), key=lambda each: abs(count(each) - budget(num_classes)))
