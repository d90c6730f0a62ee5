"""The loss of a soft codebook: its weights, and what they make of an assignment and of use."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from softvq.checks import check_number, choose
from softvq.functional.losses import (
    distortion_loss,
    free_energy_loss,
    orthogonality_loss,
    use_entropy,
)
from softvq.types import SoftCodes

TRUSTED_ROWS = 4  # a code, from which on a batch's use is taken at its word
UNITS = ("variance", "absolute")
LEAST_UNIT = 1e-12  # a feature: latents a millionth wide have no variance


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Weights of the quantizer's loss, beside a mean squared error of images in [-1, 1].

    Attributes:
        weight: w, of the assignment loss.
        beta: Share of it that pulls the encoder to the codes. A strong pull in units of the
            variance draws latents into few heaps: 2 ended in a collapse (`eval/NOTES.md`).
        use_entropy: gamma, of the entropy of the batch's mean weights, which is raised. A batch of
            fewer than 4 rows a code says less about their use, and weighs that much less: gamma
            N / (4 K). It evens use at any price: where reconstruction ends far below the 0.015 of
            CIFAR-10, lower it as much; ten times too large costs 0.7 dB (`eval/NOTES.md`).
        orthogonality: Of the mean squared cosine between codes, which is lowered.
        assignment_grad: "fixed" trains on the free energy, whose gradient holds the weights fixed;
            "full" on the distortion L_q through the weights, as DDCL is published.
        unit: Of the assignment loss. "variance": of the rows' total variance, or of itself where it
            is more, so that vectors of any scale are pulled alike and w bounds it; in absolute
            terms a pull grows with the square of their scale, and large ones are drawn together
            until the decoder can tell nothing (`eval/NOTES.md`). "absolute": a feature's square as
            it stands, as other quantizers have it.
    """

    weight: float = 0.04
    beta: float = 0.08
    use_entropy: float = 0.002
    orthogonality: float = 0.0
    assignment_grad: str = "fixed"
    unit: str = "variance"

    def __post_init__(self) -> None:
        for name in ("weight", "beta", "use_entropy", "orthogonality"):
            check_number(f"Loss.{name}", getattr(self, name), least=0)
        choose("Loss.assignment_grad", self.assignment_grad, ("fixed", "full"))
        choose("Loss.unit", self.unit, UNITS)


def soft_loss(
    rows: Float[Tensor, "n d"],
    codes: SoftCodes,
    *,
    use: Float[Tensor, " k"],
    codebook: Float[Tensor, "k d"],
    variance: Float[Tensor, ""],
    options: Loss,
    mask: Bool[Tensor, " n"] | None = None,
) -> Float[Tensor, ""]:
    """W A / U - gamma H(use) + the weight of orthogonality times its own loss.

    A is F(sg z, P) + beta F(z, sg P) with ``assignment_grad="fixed"``, and L_q with ``"full"``; a
    mean over the rows that count. U is the larger of the rows' variance and A itself with
    ``unit="variance"``, and D with ``"absolute"``; nothing trains through it.

    Args:
        rows: Rows, attached to the encoder.
        codes: Their soft assignment at the prototypes' temperature, attached.
        use: Mean weight of each code over the batch.
        codebook: Codes, attached.
        variance: Total variance of the rows of late.
        options: The weights.
        mask: True keeps a row.

    Returns:
        0-dim loss; may be negative.

    Example:
        >>> from softvq.functional.assign import soft_assign
        >>> rows, codebook = torch.tensor([[1.0]]), torch.tensor([[0.0]])
        >>> codes, use = soft_assign(rows, codebook, temperature=1.0), torch.tensor([1.0])
        >>> options = Loss(weight=0.5, beta=0.0)
        >>> variance = torch.tensor(4.0)
        >>> soft_loss(
        ...     rows, codes, use=use, codebook=codebook, variance=variance, options=options
        ... ).item()
        0.125
    """
    if options.assignment_grad == "full":
        assignment = distortion_loss(rows, codes, mask=mask)
    else:
        assignment = free_energy_loss(rows, codes, beta=options.beta, mask=mask)
    loss = options.weight * assignment / _unit(assignment, rows, variance, options)
    if options.use_entropy > 0:
        # Not len(rows), which in a graph is the number of this batch and no other.
        trust = _trust(use, num_rows=rows.shape[0], mask=mask)
        loss = loss - options.use_entropy * trust * use_entropy(use)
    if options.orthogonality > 0 and (mask is None or mask.numel()):
        loss = loss + options.orthogonality * orthogonality_loss(codebook)
    return loss


def _unit(assignment: Tensor, rows: Tensor, variance: Tensor, options: Loss) -> Tensor | int:
    num_rows, dim = rows.shape
    if options.unit == "absolute":
        return dim
    seen = variance.nan_to_num(1.0).to(assignment.dtype)  # none where there was no row
    # Rows that leave what was seen of late, or codes that lie far from them, are no reason for a
    # pull without bounds; nor is what rounding makes of rows that are equal.
    rounding = torch.finfo(rows.dtype).eps ** 2
    rounded = rounding * rows.detach().to(assignment.dtype).square().sum() / max(num_rows, 1)
    bound = torch.maximum(assignment.detach().abs(), rounded)
    return torch.maximum(seen, bound).clamp_min(dim * LEAST_UNIT)


def _trust(use: Tensor, *, num_rows: int, mask: Tensor | None) -> Tensor | float | torch.SymFloat:
    """Up to 1, less where the batch is too small to tell: its entropy is low by about K / 2N."""
    enough = TRUSTED_ROWS * len(use)
    if mask is None:
        return torch.sym_min(1.0, num_rows / enough)  # min() would tie a graph to some batch sizes
    return (mask.sum().to(use.dtype) / enough).clamp_max(1.0)
