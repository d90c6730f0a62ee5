"""Levels of prototypes that compress a sequence step by step, each with its own loss and split.

B batch, N tokens, M windows, D features.
"""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from softvq.checks import check_count, check_kind
from softvq.functional.windows import masked_mean, window_means
from softvq.nn.readout import DDCLAttention
from softvq.types import LevelOutput, StackOutput


class DDCLLevel(nn.Module):
    """A layer of prototypes, and the mean of its tokens over windows.

    Windows count kept tokens alone, so that padding on either side changes nothing; where the
    number of tokens is no multiple of the window, the last one is short. An empty window is masked.

    Args:
        attention: The layer.
        window: Tokens that become one; None makes one of all.

    Raises:
        ValueError: For a window below 1.

    Example:
        >>> level = DDCLLevel(DDCLAttention(8, 4), window=2)
        >>> level(torch.sin(torch.arange(80.0)).reshape(2, 5, 8)).tokens.shape
        torch.Size([2, 3, 8])
    """

    def __init__(self, attention: DDCLAttention, *, window: int | None) -> None:
        super().__init__()
        self.attention = check_kind("attention", attention, DDCLAttention)
        self.window = None if window is None else check_count("window", window)

    def forward(
        self, tokens: Float[Tensor, "b n d"], *, mask: Bool[Tensor, "b n"] | None = None
    ) -> LevelOutput:
        """Read the tokens and take the means of windows.

        Args:
            tokens: Tokens.
            mask: True keeps a token.

        Returns:
            Tokens typed as the input, one a window; which of them hold anything; weights in the
            order of the input; loss and stats.

        Raises:
            ValueError: For a wrong shape, dtype or mask.
        """
        read = self.attention(tokens, mask=mask)
        window = self.window or max(tokens.shape[1], 1)
        means, kept = window_means(read.tokens, mask, window=window)
        return LevelOutput(means.to(tokens.dtype), kept, read.assignment, read.loss, read.stats)


class DDCLStack(nn.Module):
    """Levels one after the other: each reads the windows that the one before it left.

    Args:
        levels: In the order in which tokens pass them; all of one number of features.

    Raises:
        ValueError: For no level, or levels whose features differ.

    Example:
        >>> levels = [DDCLLevel(DDCLAttention(8, 4), window=size) for size in (2, 3)]
        >>> out = DDCLStack(levels)(torch.sin(torch.arange(96.0)).reshape(2, 6, 8))
        >>> out.tokens.shape, len(out.levels)
        (torch.Size([2, 1, 8]), 2)
    """

    def __init__(self, levels: Sequence[DDCLLevel]) -> None:
        super().__init__()
        if not isinstance(levels, Iterable) or isinstance(levels, str):
            raise ValueError(f"levels must be a list of DDCLLevel; got {levels!r}.")
        levels = [check_kind("levels", each, DDCLLevel) for each in levels]
        if not levels:
            raise ValueError("levels must hold at least one DDCLLevel; got none.")
        sizes = [level.attention.prototypes.dim for level in levels]
        if len(set(sizes)) > 1:
            raise ValueError(
                f"levels must have the same number of features; got {sizes}. Put a linear map "
                "between stacks of different sizes."
            )
        self.levels = nn.ModuleList(levels)

    @property
    def attentions(self) -> list[DDCLAttention]:
        """The layer of each level."""
        return [level.attention for level in self.levels if isinstance(level, DDCLLevel)]

    def forward(
        self, tokens: Float[Tensor, "b n d"], *, mask: Bool[Tensor, "b n"] | None = None
    ) -> StackOutput:
        """Pass the tokens through all levels.

        Args:
            tokens: Tokens.
            mask: True keeps a token.

        Returns:
            What the last level leaves, its mean, every level's output, and the sum of losses.

        Raises:
            ValueError: For a wrong shape, dtype or mask.
        """
        found: list[LevelOutput] = []
        for level in self.levels:
            out = level(tokens, mask=mask)
            tokens, mask = out.tokens, out.mask
            found.append(out)
        last = found[-1]
        mean = masked_mean(last.tokens, last.mask).to(last.tokens.dtype)
        loss = torch.stack([level.loss for level in found]).sum()
        return StackOutput(last.tokens, last.mask, mean, tuple(found), loss)
