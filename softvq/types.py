"""Result types: what the functions and modules of softvq give back.

Shape letters: B batch, N rows (tokens), D features, K codes, S temperatures, H heads.
"""

from collections.abc import Mapping
from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor


class SoftCodes(NamedTuple):
    """The soft assignment of rows to a codebook, one entry a row.

    With several temperatures every field but ``indices`` has a leading axis S; the nearest code
    does not depend on the temperature.
    """

    mean: Float[Tensor, "*batch n d"]
    """Soft centroid: the weighted mean of the codes."""
    spread: Float[Tensor, "*batch n"]
    """V: weighted squared distance of the codes from the mean, at least 0."""
    free_energy: Float[Tensor, "*batch n"]
    """F = -T log sum_k exp(-d_k / T); may be negative."""
    entropy: Float[Tensor, "*batch n"]
    """Entropy of the weights in nats, in [0, log K]."""
    indices: Int[Tensor, "*rows n"]
    """Nearest code, ties to the lowest; -1 where the mask drops the row."""


class SoftMean(NamedTuple):
    """The part of a soft assignment that one fused attention call gives."""

    mean: Float[Tensor, "n d"]
    spread: Float[Tensor, " n"]


class CodeSums(NamedTuple):
    """Sums over rows, one entry a code."""

    use: Float[Tensor, "*temperatures k"]
    """Mean weight of each code over the rows that count; sums to one."""
    counts: Int[Tensor, " k"]
    """Rows whose nearest code this is."""
    sums: Float[Tensor, "k d"]
    """Sum of those rows."""


class QuantizerOutput(NamedTuple):
    """What every quantizer returns.

    ``quantized`` is shaped and typed as the input; ``indices`` (int64) as the input without its
    feature axis; ``loss`` is 0-dim float32; ``stats`` maps names to detached 0-dim tensors.
    """

    quantized: Tensor
    indices: Tensor
    loss: Tensor
    stats: Mapping[str, Tensor]


class DDCLOutput(NamedTuple):
    """What a layer of prototypes makes of tokens.

    ``tokens`` is shaped and typed as the input, zeros where the mask drops a token.
    """

    tokens: Float[Tensor, "b n d"]
    assignment: Float[Tensor, "b h n k"]
    """Weight of each prototype in each token and head; sums to one over K, zeros where dropped."""
    loss: Float[Tensor, ""]
    stats: Mapping[str, Tensor]


class ReadoutOutput(NamedTuple):
    """One vector for each sequence, and its bag of prototypes."""

    mean: Float[Tensor, "b d"]
    """Mean soft centroid of the kept tokens; zeros where none is kept."""
    assignment: Float[Tensor, "b k"]
    """Mean weight of each prototype over the kept tokens; sums to one, or to zero where none is."""
    loss: Float[Tensor, ""]
    stats: Mapping[str, Tensor]


class LevelOutput(NamedTuple):
    """What one level of a stack leaves: a token a window, and how it assigned those that it got.

    ``mask`` says which windows hold a kept token; the others hold zeros. ``assignment`` has the
    order of the level's input.
    """

    tokens: Float[Tensor, "b m d"]
    mask: Bool[Tensor, "b m"]
    assignment: Float[Tensor, "b h n k"]
    loss: Float[Tensor, ""]
    stats: Mapping[str, Tensor]


class StackOutput(NamedTuple):
    """What a stack leaves: its last tokens, their mean, and every level's own output."""

    tokens: Float[Tensor, "b m d"]
    mask: Bool[Tensor, "b m"]
    mean: Float[Tensor, "b d"]
    """Mean of the last level's kept tokens."""
    levels: tuple[LevelOutput, ...]
    loss: Float[Tensor, ""]
    """Sum of the levels' losses."""
