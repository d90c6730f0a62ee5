"""`attach`: what a quantizer does after each optimizer step, without a line in the loop."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from softvq.checks import check_number
from softvq.nn.alarms import CodebookWarning
from softvq.nn.base import Quantizer
from softvq.nn.revival import Revived

PATIENT_STEPS = 3


class Updates:
    """Handle of an attachment: the quantizers that are updated, and the way to stop.

    Attributes:
        quantizers: Updated after every step of the optimizer; none after ``detach``.
    """

    def __init__(self, quantizers: list[Quantizer], optimizer: Optimizer) -> None:
        for quantizer in quantizers:
            if quantizer._updates is not None:
                quantizer._updates.release(quantizer)
            quantizer._updates = self
        self.quantizers = quantizers
        self._optimizer = optimizer
        self._stepped = False
        self._idle = dict.fromkeys(map(id, quantizers), 0)  # steps in a row without a gradient
        self._hook = optimizer.register_step_post_hook(self._after_step)
        self._zero_grad = optimizer.zero_grad
        optimizer.zero_grad = self._on_zero_grad  # type: ignore[method-assign]

    def detach(self) -> None:
        """Stop updating. The codebooks' parameter group stays as it is."""
        for quantizer in list(self.quantizers):
            self.release(quantizer)

    def release(self, quantizer: Quantizer) -> None:
        """Stop updating one of the quantizers; with the last one the optimizer is itself again."""
        quantizer._updates = None
        self.quantizers = [each for each in self.quantizers if each is not quantizer]
        if self.quantizers:
            return
        self._hook.remove()
        if self._optimizer.zero_grad == self._on_zero_grad:
            self._optimizer.zero_grad = self._zero_grad  # type: ignore[method-assign]

    def _after_step(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        self._stepped = True
        found = getattr(optimizer, "found_inf", None)  # set by a scaler for fused optimizers
        skipped = found is not None and bool(torch.as_tensor(found).sum() > 0)
        for quantizer in self.quantizers:
            if skipped:
                quantizer.discard_()
                continue
            self._check_gradient(quantizer)
            revived = quantizer.update_()
            if revived is not None:
                _copy_moments(optimizer, quantizer, revived)

    def _check_gradient(self, quantizer: Quantizer) -> None:
        """Warn of codes that steps go by, most likely for a loss that was left out."""
        held = _parameter(quantizer)
        idle = held is not None and held.grad is None and not quantizer.is_frozen
        steps = self._idle[id(quantizer)] + 1 if idle and quantizer._tally else 0
        self._idle[id(quantizer)] = steps
        if steps == PATIENT_STEPS:
            quantizer._warn_once(
                "no gradient",
                f"No gradient reached the codes in {steps} steps: they learn by the quantizer's "
                "loss, so add out.loss to the model's. A codebook that is to stay as it is, is "
                "told so by freeze_().",
            )

    def _on_zero_grad(self, set_to_none: bool = True) -> None:
        # Gradients thrown away before any step: a scaler skipped it. The passes behind them go, but
        # only when the next one comes, since a loop may also call this between pass and backward.
        if not self._stepped and _holds_gradients(self._optimizer):
            for quantizer in self.quantizers:
                quantizer.discard_(when_next_comes=True)
        self._stepped = False
        self._zero_grad(set_to_none=set_to_none)


def attach(model: nn.Module, optimizer: Optimizer, *, codebook_lr: float | str = "10x") -> Updates:
    """Update every quantizer of ``model`` after each step of ``optimizer``.

    Learned codebooks move to a parameter group of their own, without weight decay (which would
    shrink codes that no row chose) and at ten times the rate: codes must follow the encoder. Codes
    that `softvq.swap` took over from averages join an optimizer that was made before, and moments
    of before the swap are dropped. Call it after the optimizer is made and before a scheduler is.
    One optimizer at a time updates a quantizer: attaching again ends the earlier attachment, and a
    group made then stays as it is.

    Args:
        model: Holds quantizers of softvq anywhere inside.
        optimizer: The one that steps the codebooks, or a wrapper with it as ``.optimizer``.
        codebook_lr: A multiple of the host's rate such as "10x", a number, or "keep" for the
            host's rate and group as they are.

    Returns:
        A handle with ``.detach()``.

    Raises:
        ValueError: If the model has no quantizer, the optimizer not all codebooks, a scheduler
            already holds its groups, or ``codebook_lr`` is none of the forms above.

    Example:
        >>> from softvq.nn.soft import SoftVQ
        >>> model = nn.Sequential(nn.Linear(4, 4), SoftVQ(8, 4))
        >>> optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        >>> updates = attach(model, optimizer)
        >>> [round(group["lr"], 4) for group in optimizer.param_groups]
        [0.001, 0.01]
    """
    optimizer = _unwrap(optimizer)
    quantizers = [module for module in model.modules() if isinstance(module, Quantizer)]
    if not quantizers:
        raise ValueError(
            f"model ({type(model).__name__}) holds no quantizer of softvq: nothing to update."
        )
    rate = _parse_rate(codebook_lr)
    learned = [each for each in quantizers if _parameter(each) is not None]
    _check_held(learned, optimizer)
    if learned and rate is not None and isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "optimizer is LBFGS, which takes a single group of parameters: the codebooks cannot "
            "have one of their own. Give attach() codebook_lr='keep'."
        )
    if rate is not None:
        _check_unscheduled(learned, optimizer)
    _add_averaged(model, learned, optimizer)
    _drop_stale_moments(learned, optimizer)
    if rate is None:
        if learned:
            warnings.warn(
                "codebook_lr='keep': the codes learn at the host's rate. Codes slower than the "
                "encoder fall behind it; '10x' is the default for that reason.",
                CodebookWarning,
                stacklevel=2,
            )
    else:
        _move_to_own_group(learned, optimizer, rate)
        # Of a number nothing can be said: what is slow depends on the scale of the codes.
        if learned and str(codebook_lr).endswith("x") and rate(1.0) < 1:
            warnings.warn(
                f"codebook_lr={codebook_lr!r} makes codes learn slower than the encoder, behind "
                "which they then fall: '10x' is the default for that reason.",
                CodebookWarning,
                stacklevel=2,
            )
    return Updates(quantizers, optimizer)


def _unwrap(optimizer: Optimizer) -> Optimizer:
    inner = optimizer
    while not isinstance(inner, Optimizer) or hasattr(inner, "optimizer"):
        inner = getattr(inner, "optimizer", None)
        if inner is None:
            raise ValueError(
                f"optimizer must be a torch.optim.Optimizer or wrap one as .optimizer; got "
                f"{type(optimizer).__name__}."
            )
    return inner


def _parse_rate(codebook_lr: float | str) -> Callable[[float], float] | None:
    """The codebooks' rate as a function of the host's; None keeps it."""
    if codebook_lr == "keep":
        return None
    text = str(codebook_lr)
    try:
        number = float(text.removesuffix("x"))
    except ValueError:
        raise ValueError(
            f"codebook_lr must be a multiple such as '10x', a number, or 'keep'; got "
            f"{codebook_lr!r}."
        ) from None
    check_number("codebook_lr", number, above=0)
    return (lambda host: host * number) if text.endswith("x") else (lambda host: number)


def _group_of(parameter: Tensor | None, optimizer: Optimizer) -> dict | None:
    for group in optimizer.param_groups:
        if any(parameter is held for held in group["params"]):
            return group
    return None


def _holds_gradients(optimizer: Optimizer) -> bool:
    held = (each.grad for group in optimizer.param_groups for each in group["params"])
    return any(grad is not None for grad in held)


def _parameter(quantizer: Quantizer) -> nn.Parameter | None:
    """What an optimizer trains: the codebook, or the tensor of a host that the codes live in."""
    held = getattr(quantizer, "parameter", quantizer.codebook)
    return held if isinstance(held, nn.Parameter) else None


def _check_held(learned: list[Quantizer], optimizer: Optimizer) -> None:
    needed = [each for each in learned if not getattr(each, "averaged", False)]
    missing = sum(_group_of(_parameter(each), optimizer) is None for each in needed)
    if missing:
        raise ValueError(
            f"optimizer does not hold {missing} of the model's {len(learned)} codebooks. Make it "
            "from model.parameters() after the quantizers are in place, and give attach() the "
            "optimizer that trains them."
        )


def _check_unscheduled(learned: list[Quantizer], optimizer: Optimizer) -> None:
    if learned and any("initial_lr" in group for group in optimizer.param_groups):
        raise ValueError(
            "optimizer already has a scheduler, which would not know the codebooks' group. Call "
            "softvq.attach(model, optimizer) first and make the scheduler after it."
        )


def _add_averaged(model: nn.Module, learned: list[Quantizer], optimizer: Optimizer) -> None:
    """Add codes to the optimizer that a host learned by averages, where it was made before a swap.

    They join the group of the model's other parameters, from where they get one of their own.
    """
    for quantizer in learned:
        parameter = _parameter(quantizer)
        if parameter is None or _group_of(parameter, optimizer) is not None:
            continue
        groups = (_group_of(each, optimizer) for each in model.parameters())
        host = next((group for group in groups if group is not None), None)
        if host is None:
            raise ValueError(
                "optimizer holds no parameter of model, so that the codes, which the host learned "
                "by averages, cannot join it. Give attach() the optimizer that trains model."
            )
        host["params"].append(parameter)
        if "param_names" in host:
            names = [name for name, each in model.named_parameters() if each is parameter]
            host["param_names"].append(names[0])


def _drop_stale_moments(learned: list[Quantizer], optimizer: Optimizer) -> None:
    """Forget moments of a swapped host's codes: they are those of another loss."""
    for quantizer in learned:
        parameter = _parameter(quantizer)
        swapped = hasattr(quantizer, "averaged")
        if parameter is not None and swapped and int(quantizer.updates) == 0:
            optimizer.state.pop(parameter, None)


def _move_to_own_group(
    learned: list[Quantizer], optimizer: Optimizer, rate: Callable[[float], float]
) -> None:
    for quantizer in learned:
        parameter = _parameter(quantizer)
        host = _group_of(parameter, optimizer)
        if host is None or host.get("softvq", False):
            continue
        place = next(i for i, held in enumerate(host["params"]) if held is parameter)
        group = {key: value for key, value in host.items() if key not in ("params", "param_names")}
        group.update(params=[host["params"].pop(place)], softvq=True)
        if "param_names" in host:  # the optimizer was made from named parameters
            group["param_names"] = [host["param_names"].pop(place)]
        group["lr"] = rate(host["lr"])
        if "weight_decay" in group:
            group["weight_decay"] = 0.0
        optimizer.add_param_group(group)
    optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["params"]]


@torch.no_grad()
def _copy_moments(optimizer: Optimizer, quantizer: Quantizer, revived: Revived) -> None:
    """Give revived codes their neighbours' moments: with zeros they would jump."""
    parameter = _parameter(quantizer)
    if parameter is None:
        return
    # Codes that live in a host's tensor may be a part of it, or its transpose.
    see: Callable[[Tensor], Tensor] = getattr(quantizer, "see", lambda held: held)
    for held in optimizer.state.get(parameter, {}).values():
        if isinstance(held, Tensor) and held.shape == parameter.shape:
            moments = see(held)
            moments[revived.codes] = moments[revived.donors]
