"""Lightning's Trainer: prototypes are updated after each step, their health joins the logs."""

from pytorch_lightning import Callback, LightningModule, Trainer

from softvq.callbacks.scheduled import attach_scheduled
from softvq.nn.health import HealthMonitor


class DDCLCallback(Callback):
    """``Trainer(..., callbacks=[DDCLCallback()])``; the first optimizer steps the prototypes.

    Args:
        codebook_lr: As in `softvq.attach`.

    Example:
        >>> DDCLCallback(codebook_lr="5x").codebook_lr
        '5x'
    """

    def __init__(self, *, codebook_lr: float | str = "10x") -> None:
        self.codebook_lr = codebook_lr
        self.monitor: HealthMonitor | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach, and watch."""
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        self._updates = attach_scheduled(
            pl_module,
            trainer.optimizers[0],
            schedulers=schedulers,
            codebook_lr=self.codebook_lr,
        )
        self.monitor = HealthMonitor(pl_module)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Log the health as often as the trainer logs."""
        every: int = trainer.log_every_n_steps  # pyright: ignore[reportAttributeAccessIssue]
        if self.monitor is not None and (batch_idx + 1) % every == 0:
            reading = self.monitor.read()._asdict()
            pl_module.log_dict({f"ddcl/{name}": value for name, value in reading.items()})

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say the verdict, and let go."""
        if self.monitor is not None:
            print(f"prototypes: {self.monitor.verdict()}")
            self.monitor.detach()
            self._updates.detach()
