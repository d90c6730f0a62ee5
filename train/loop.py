"""One training run, from a config to its measures."""

import atexit
import gc
import math
import os
import time
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor

from softvq import Quantizer, attach
from softvq.data import ImageSet, to_model_range
from softvq.models import VQVAE
from softvq.nn import Arrangement
from softvq.nn.alarms import IN_WARMUP
from softvq.nn.processes import anywhere
from train.build import build_model
from train.checkpoint import load_checkpoint, read_state, save_checkpoint
from train.config import RunConfig
from train.evaluate import Evaluation, evaluate, reconstruct, warn_of_gap
from train.images import ImagePair
from train.interrupt import noting_interrupts
from train.journal import Journal
from train.methods import get_method
from train.objective import Objective
from train.order import BatchOrder
from train.provenance import find_commit, find_versions
from train.rate import find_rate
from train.result import RunResult
from train.values import find_changes, to_json

CHECKPOINT = "checkpoint.safetensors"
NUM_PICTURES = 16
RECENT = 50


def learning_rate(step: int, config: RunConfig) -> float:
    """Factor on the rate at a step: a climb, a plain, a cosine down to 0.

    Example:
        >>> from train.presets import quick
        >>> learning_rate(100, quick())
        1.0
    """
    optim = config.optim
    return find_rate(
        step, steps=optim.steps, warmup_steps=optim.warmup_steps, decay_from=optim.decay_from
    )


class Run:
    """A training run in progress.

    Args:
        config: What to do.
        images: Training and test images; read by the config if None.
        folder: For checkpoints and TensorBoard; None writes nothing.
        quiet: Say nothing on the terminal.
        build: Makes the model of the config; an experiment may have its own.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        images: ImagePair | None = None,
        folder: Path | None = None,
        quiet: bool = False,
        build: Callable[[RunConfig, ImageSet], VQVAE] = build_model,
    ) -> None:
        self.config = config
        self.images = images or ImagePair(config)
        self.folder = folder
        self.quiet = quiet
        self.accelerator = _make_accelerator(config.precision)
        world = self.accelerator.num_processes
        if config.optim.batch_size % world:
            raise ValueError(
                f"optim.batch_size is {config.optim.batch_size}; it must be a multiple of the "
                f"{world} processes."
            )
        self.order = BatchOrder(len(self.images.train), config.optim.batch_size, seed=config.seed)
        model = build(config, self.images.train)
        self.model, self.optimizer = self._prepare(model)
        self.objective = Objective(config.optim, device=self.accelerator.device)
        self.result = RunResult(model)
        self.done = 0
        self.seconds = 0.0
        self._recent: deque[float] = deque(maxlen=RECENT)  # seconds of the last steps

    def _prepare(self, model: VQVAE) -> tuple[Any, Any]:
        net = self.config.net
        method = get_method(self.config.method.name).at(net.num_codes, net.dim)
        rate = self.config.method.lr or method.lr
        optim = self.config.optim
        optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=(optim.beta1, optim.beta2))
        if any(isinstance(each, Quantizer) for each in model.modules()):
            codes = self.config.method.codebook_lr
            attach(model, optimizer, codebook_lr=method.codebook_lr if codes is None else codes)
        for group in optimizer.param_groups:
            group["full_lr"] = group["lr"]
        return self.accelerator.prepare(model, optimizer)

    def start(self) -> None:
        """Place the codebook on the first training batch, before anything is measured."""
        images = self._batch(0)
        model = self.result.model
        with torch.no_grad(), self.accelerator.autocast():
            latents = model.latents(images)
            if isinstance(model.quantizer, Quantizer | Arrangement):
                model.quantizer.start_(latents.float())
            else:
                model.quantizer(latents)  # peers place theirs in their first training pass

    def resume(self) -> None:
        """Go on from the folder's checkpoint.

        Raises:
            ValueError: If it is of another config, or cut short.
            FileNotFoundError: If there is none.
        """
        path = self._checkpoint_path()
        changes = find_changes(read_state(path)["config"], to_json(self.config))
        if changes:
            raise ValueError(
                f"path {path} is of another run: {'; '.join(changes)}. Resume with the same "
                "settings, or use another folder."
            )
        state = load_checkpoint(path, self.result.model, _inner(self.optimizer))
        self.done = state["step"]
        self.seconds = state["seconds"]
        self.result.restore(state)

    def resume_if_same(self) -> bool:
        """Go on from the folder's checkpoint if config and commit are those of this run.

        Returns:
            Whether it does. Code with changes that are not committed is never the same.
        """
        saved = read_state(self._checkpoint_path())
        commit = find_commit()
        if (saved["config"], saved["commit"]) != (to_json(self.config), commit):
            return False
        if commit.endswith("-dirty") or commit == "unknown":
            return False
        self.resume()
        return True

    def train(self) -> RunResult:
        """Train to the end, measuring on the way.

        Returns:
            The result.

        Raises:
            KeyboardInterrupt: After Ctrl-C or SIGTERM on any process, once the step that it came in
                is done and saved.
        """
        config = self.config
        title = f"{config.method.name} seed {config.seed}"
        board = None if self.folder is None else self.folder / "tensorboard"
        main, began = self.accelerator.is_main_process, self.done
        with (
            Journal(
                title,
                total=config.optim.steps,
                folder=board if main else None,
                quiet=self.quiet or not main,
                settings=to_json(config),
            ) as journal,
            warnings.catch_warnings(record=True) as caught,
            noting_interrupts() as interrupted,
        ):
            warnings.simplefilter("default")
            if self.done == 0:
                journal.say(f"starts on {self.images.train.name}: {len(self.images.train)} images")
                self.start()
            if 0 in config.eval_steps() and not self.result.evals:
                journal.say(f"measures {len(self.images.test)} test images before step 1")
                self._evaluate(journal)
            for step in range(self.done, config.optim.steps):
                self._step(step, journal)
                if self.done in config.eval_steps():
                    self._evaluate(journal)
                self._take(caught, journal)
                stopping, last = self._agree(interrupted()), self.done == config.optim.steps
                if stopping or last or self.done % config.checkpoint_every == 0:
                    self.save()
                if stopping:
                    self.accelerator.wait_for_everyone()  # a launcher kills the rest with the first
                    raise KeyboardInterrupt
            if began < config.optim.steps:
                journal.codebook(self.done, self.result.model, images=self.images.test)
        return self.result

    def _agree(self, interrupted: bool) -> bool:
        """Whether any process is to stop: then all do, after the same step, and none waits."""
        return anywhere(int(interrupted), device=self.accelerator.device)

    def _step(self, step: int, journal: Journal) -> None:
        begin = time.perf_counter()
        factor = learning_rate(step, self.config)
        for group in self.optimizer.param_groups:
            group["lr"] = group["full_lr"] * factor
        images = self._batch(step)
        self.model.train()
        with self.accelerator.autocast():
            reconstruction, out = self.model(images)
        terms = self.objective(reconstruction, images, quantizer=out.loss)
        self.optimizer.zero_grad()
        self.accelerator.backward(terms.total)
        self.optimizer.step()
        self.done = step + 1
        self._recent.append(time.perf_counter() - begin)
        self.seconds += self._recent[-1]
        journal.step(self.done, rate=self._rate())
        if self.done % self.config.log_every == 0 or self.done == 1:
            self.result.losses.append({"step": self.done, "loss": terms.reconstruction.item()})
            journal.scalars(
                self.done,
                {
                    **terms.to_scalars(),
                    "rate/learning_rate": self.optimizer.param_groups[0]["lr"],
                    **{f"codebook/{name}": value for name, value in out.stats.items()},
                },
            )

    def _rate(self) -> float:
        """Steps a second of late: other jobs come and go."""
        return len(self._recent) / max(sum(self._recent), 1e-9)

    def _batch(self, step: int) -> Tensor:
        indices = self.order.batch(step)
        share = len(indices) // self.accelerator.num_processes
        begin = self.accelerator.process_index * share
        images = self.images.train.batch(indices[begin : begin + share])
        return to_model_range(images.to(self.accelerator.device, non_blocking=True))

    def _evaluate(self, journal: Journal) -> None:
        device = self.accelerator.device
        if self.done == self.config.optim.steps:
            journal.say(f"measures {len(self.images.test)} test images")
        with warnings.catch_warnings():
            if self.done < self.config.optim.steps:
                # Amid a run the warm-up is no fault.
                warnings.filterwarnings("ignore", IN_WARMUP)
            found = evaluate(self.result.model, self.images.test, device=device)
        if self.done == self.config.optim.steps:
            found = self._perceive(found)
            warn_of_gap(self.result.model, found)
        self.result.conditions = {name: dict(each) for name, each in found.conditions.items()}
        self.result.missing = dict(found.missing)
        images = self.done * self.config.optim.batch_size
        place = {"images": images, "step": self.done, "seconds": self.seconds}
        self.result.evals.append({**place, **found.measures})
        self.result.counts = found.counts
        left = (self.config.optim.steps - self.done) / self._rate() if self._recent else math.inf
        journal.evaluation(self.done, found, rate=self._rate(), left=left)
        shown = self.images.test.batch(torch.arange(min(NUM_PICTURES, len(self.images.test))))
        journal.pictures(
            self.done, reconstruct(self.result.model, to_model_range(shown).to(device))
        )

    def _perceive(self, found: Evaluation) -> Evaluation:
        data = self.config.data
        if not (data.num_lpips or data.num_frechet or data.num_fid):
            return found
        # Image nets take seconds to import, and most runs want none of them.
        from train.perceptual import Counts, add_perceptual

        return add_perceptual(
            found,
            self.result.model,
            images=self.images.test,
            training_images=self.images.train,
            counts=Counts(lpips=data.num_lpips, frechet=data.num_frechet, fid=data.num_fid),
            device=self.accelerator.device,
        )

    def _take(self, caught: list[warnings.WarningMessage], journal: Journal) -> None:
        for each in caught:
            text = str(each.message)
            if text not in self.result.warnings:
                self.result.warnings.append(text)
                journal.say(f"warning: {text}")
        caught.clear()

    def _checkpoint_path(self) -> Path:
        if self.folder is None:
            raise ValueError("folder is None: a run without a folder has no checkpoint.")
        return self.folder / CHECKPOINT

    def save(self) -> None:
        """Write a checkpoint; without a folder, nothing."""
        if self.folder is None or not self.accelerator.is_main_process:
            return
        state = {
            "config": to_json(self.config),
            "step": self.done,
            "seconds": self.seconds,
            **self.result.to_state(),
            "commit": find_commit(),
            "versions": find_versions(),
        }
        save_checkpoint(
            self._checkpoint_path(), self.result.model, _inner(self.optimizer), state=state
        )


def _make_accelerator(precision: str) -> Accelerator:
    has_gpu = torch.cuda.is_available()
    if precision == "auto":
        precision = "bf16" if has_gpu else "no"
    # Processes without a GPU join on the CPU only if accelerate is told to: else each would train
    # alone, and all write to one folder.
    alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    if not alone:
        atexit.register(_leave_group)
    return Accelerator(mixed_precision=precision, cpu=not (alone or has_gpu))


def _leave_group() -> None:
    """End the process group: one that is alive when the interpreter goes may abort the process."""
    gc.collect()  # a model that is still wrapped holds the group's threads
    if dist.is_initialized():
        dist.destroy_process_group()


def _inner(optimizer: Any) -> torch.optim.Optimizer:  # noqa: ANN401 - accelerate's wrapper
    return getattr(optimizer, "optimizer", optimizer)
