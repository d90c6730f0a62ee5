"""Attaching where a trainer has made optimizer and scheduler before anyone is asked."""

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from softvq.nn.attach import Updates, attach


def attach_scheduled(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    schedulers: Sequence[Any],
    codebook_lr: float | str = "10x",
) -> Updates:
    """`softvq.attach` for an optimizer that schedulers already hold.

    The codebooks' new groups join each scheduler with their own base rate, and follow the same
    curve as the group that they come from. That can be done for the schedulers that scale a base
    rate by a function of the step (``LambdaLR``, which Hugging Face's are); a scheduler of another
    kind is refused, and ``softvq.attach`` before it is made is the way.

    Args:
        model: Holds quantizers.
        optimizer: Steps them.
        schedulers: All that hold the optimizer.
        codebook_lr: As in `softvq.attach`.

    Returns:
        The attachment.

    Raises:
        ValueError: As `softvq.attach`, and for schedulers of other kinds.

    Example:
        >>> import torch
        >>> from softvq.nn.soft import SoftVQ
        >>> model = nn.Sequential(nn.Linear(4, 4), SoftVQ(8, 4))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        >>> scheduler = LambdaLR(optimizer, lambda step: 1 / (step + 1))
        >>> _ = attach_scheduled(model, optimizer, schedulers=[scheduler])
        >>> optimizer.step(); scheduler.step()
        >>> [group["lr"] for group in optimizer.param_groups]
        [0.5, 5.0]
    """
    inner = [getattr(scheduler, "scheduler", scheduler) for scheduler in schedulers]
    if codebook_lr == "keep":
        return attach(model, optimizer, codebook_lr=codebook_lr)
    for scheduler in inner:
        if not isinstance(scheduler, LambdaLR):
            raise ValueError(
                f"scheduler {type(scheduler).__name__} was made before the codebooks had a group "
                "of their own, and cannot be extended. Make the optimizer, call softvq.attach, "
                "make the scheduler, and give both to the trainer; or use codebook_lr='keep'."
            )
    groups = list(optimizer.param_groups)
    # The group that codebooks get is a copy of the one that they leave, with its marks.
    for place, group in enumerate(groups):
        group["softvq_place"] = place
    present = [group["lr"] for group in groups]
    initial = [group.pop("initial_lr", group["lr"]) for group in groups]
    for group, rate in zip(groups, initial, strict=True):
        group["lr"] = rate
    try:
        updates = attach(model, optimizer, codebook_lr=codebook_lr)
    finally:
        for group, rate, lr in zip(groups, initial, present, strict=True):
            group["lr"] = lr
            if inner:
                group["initial_lr"] = rate
        places = [group.pop("softvq_place") for group in optimizer.param_groups]
    for scheduler in inner:
        _extend(scheduler, places)
    return updates


def _extend(scheduler: LambdaLR, places: list[int]) -> None:
    """Give the scheduler one entry a group: the curve of the group at that place before."""
    groups = scheduler.optimizer.param_groups
    scheduler.lr_lambdas = [scheduler.lr_lambdas[place] for place in places]
    scheduler.base_lrs = [group.setdefault("initial_lr", group["lr"]) for group in groups]
    for group, base, curve in zip(groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True):
        group["lr"] = base * curve(scheduler.last_epoch)
    scheduler._last_lr = [group["lr"] for group in groups]
