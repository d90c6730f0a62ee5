"""Hugging Face's Trainer: prototypes are updated after each step, their health joins the logs."""

from typing import Any

from torch import nn
from torch.optim import Optimizer
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from softvq.callbacks.scheduled import attach_scheduled
from softvq.nn.health import HealthMonitor


class DDCLCallback(TrainerCallback):
    """``Trainer(..., callbacks=[DDCLCallback()])``.

    Args:
        codebook_lr: As in `softvq.attach`.

    Example:
        >>> DDCLCallback(codebook_lr="5x").codebook_lr
        '5x'
    """

    def __init__(self, *, codebook_lr: float | str = "10x") -> None:
        self.codebook_lr = codebook_lr
        self.monitor: HealthMonitor | None = None

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        lr_scheduler: Any,  # noqa: ANN401 - whatever the trainer made
        **others: Any,  # noqa: ANN401 - the trainer gives all that it has
    ) -> None:
        """Attach, and watch."""
        held = getattr(optimizer, "optimizer", optimizer)
        self._updates = attach_scheduled(
            model, held, schedulers=[lr_scheduler], codebook_lr=self.codebook_lr
        )
        self.monitor = HealthMonitor(model)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        logs: dict[str, Any],
        **others: Any,  # noqa: ANN401
    ) -> None:
        """Add the health to what is logged, and to the entry of ``log_history`` made of it.

        Callbacks before this one, a board's among them, have had their look by then.
        """
        if self.monitor is not None and self.monitor.read_each():
            reading = self.monitor.read()._asdict()
            for held in (logs, state.log_history[-1]):
                held.update({f"ddcl_{name}": value for name, value in reading.items()})

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **others: Any,  # noqa: ANN401
    ) -> None:
        """Say the verdict, and let go."""
        if self.monitor is not None:
            print(f"prototypes: {self.monitor.verdict()}")
            self.monitor.detach()
            self._updates.detach()
