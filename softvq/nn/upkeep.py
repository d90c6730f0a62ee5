"""What a codebook needs once a step: counts, running hits, revival, and a word where it goes wrong.

N rows, D features, K codes. Training passes leave a tally; `Upkeep.update_` works it off.
"""

import warnings
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from softvq.checks import check_count, check_kind
from softvq.functional.diagnostics import distinct_codes
from softvq.functional.distances import unit_rows
from softvq.nn.alarms import Advice, Alarms, CodebookWarning, advise_frozen
from softvq.nn.buffers import apply_keeping_dtypes, widen_buffers
from softvq.nn.frozen import Freezable
from softvq.nn.revival import Revival, Revived, pick_replacements
from softvq.nn.tally import Tally, is_mapped

HITS_MEMORY = 0.9
REFRESH_EVERY = 100
PATIENCE = 500
REVIVE_AFTER = 10


class Upkeep(Freezable):
    """A codebook (K, D) that is counted, revived and watched; the other half of `Quantizer`.

    Subclasses own ``codebook`` and say what an update does beyond counting and revival (`_learn`).
    """

    codebook: Tensor
    updates: Tensor
    hits: Tensor
    distinct: Tensor

    def __init__(self, num_codes: int, *, revival: Revival | None, seed: int) -> None:
        super().__init__()
        self.num_codes = check_count("num_codes", num_codes)
        self.seed = check_count("seed", seed, least=0)
        self.revival = None if revival is None else check_kind("revival", revival, Revival)
        self.on_sphere = False  # see softvq.nn.wrapped.Cosine
        self._tally = Tally(self.num_codes, with_sums=False)
        self._unanswered = 0
        self._told: set[str] = set()
        self._alarms = Alarms()
        self._updates: Any = None  # the attachment that calls update_, see softvq.nn.attach
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        self.register_buffer("hits", torch.ones(self.num_codes, dtype=torch.float32))
        self.register_buffer("distinct", torch.tensor(self.num_codes))

    @torch.no_grad()
    def update_(self) -> Revived | None:
        """Do what follows an optimizer step: schedule, counts, codebook averages, revival.

        Collective where several processes train together. Without a forward pass since the last
        call nothing happens.

        Returns:
            The codes that were revived, or None.
        """
        self._unanswered = 0
        if not self._tally:
            return None
        widen_buffers(self)
        counts, sums = self._tally.totals()
        rows = self._tally.sample()
        dropped = self._tally.num_dropped()
        self._tally.clear()
        if dropped:
            self._warn_once(
                "finite",
                f"{dropped} rows since the last update_() were NaN or infinite, or too large to be "
                "squared, and count nowhere. Look at the encoder's loss and learning rate, or mask "
                "those rows.",
            )
        total = counts.sum()
        if int(total) == 0:
            return None
        generator = self._generator(int(self.updates))
        self.updates += 1
        self.hits.lerp_(counts.float() * (self.num_codes / total.float()), 1 - HITS_MEMORY)
        self._settle()
        self._learn(rows, counts, sums)
        revived = self._revive(rows, generator)
        self._settle()
        if len(rows) and int(self.updates) % REFRESH_EVERY == 1:
            self.distinct.copy_(distinct_codes(self.codebook, rows.var(0, unbiased=False).sum()))
            if int(self.updates) > 1:
                self._check_codes(int(total))
        return revived

    def discard_(self, *, when_next_comes: bool = False) -> None:
        """Forget the forward passes since the last update, as when a step was skipped.

        Args:
            when_next_comes: Not now but at the next forward pass, unless an update comes first.
        """
        if when_next_comes:
            self._tally.expire()
        else:
            self._tally.clear()
        self._unanswered = 0

    def share_(self, passes: int) -> None:
        """Learn from so many forward passes a step, as a codebook that stages share."""
        self._tally.passes = passes

    def _learn(self, rows: Tensor, counts: Tensor, sums: Tensor | None) -> None:
        """What an update does to the codebook and its temperature.

        ``rows`` are those of the last pass, in their order; none, where only an earlier one had
        any.
        """

    def _count(self, rows: Tensor, indices: Tensor) -> None:
        """Leave a training pass in the tally."""
        if torch.compiler.is_compiling():
            self._tally.add(rows, indices)
            return
        if torch._C._current_graph_task_id() != -1:
            return  # activation checkpointing runs this pass a second time, inside backward
        if is_mapped(rows) or is_mapped(indices):
            self._warn_once(
                "mapped",
                "A training pass inside torch.func.vmap counts nowhere: update_() learns nothing "
                "of its rows. Quantize the whole batch outside of vmap, or call eval().",
            )
            return
        self._tally.add(rows, indices)
        self._unanswered += 1
        if self._unanswered > PATIENCE:
            self._warn_once(
                "update",
                f"{PATIENCE} training passes without update_(): schedule, revival and averages "
                "stand still. Call softvq.attach(model, optimizer) before training.",
            )

    def _settle(self) -> None:
        """Put the codes back where they belong, after anything that moved them."""
        if self.on_sphere and not self.is_frozen:
            self.codebook.copy_(unit_rows(self.codebook))

    def _revival_ends(self) -> float:
        """Updates after which no code is revived."""
        return float("inf")

    def _revive(self, rows: Tensor, generator: torch.Generator) -> Revived | None:
        updates = int(self.updates)
        if self.revival is None or self.is_frozen:
            return None
        if not REVIVE_AFTER < updates <= self._revival_ends():
            return None
        revived = pick_replacements(
            self.codebook, self.hits, rows, options=self.revival, generator=generator
        )
        if revived is not None:
            self._replace(revived)
        return revived

    def _replace(self, revived: Revived) -> None:
        self.codebook[revived.codes] = revived.rows.to(self.codebook.dtype)
        # Just above the threshold: a few updates to win rows before it counts as dead again.
        threshold = 0.0 if self.revival is None else self.revival.threshold
        self.hits[revived.codes] = 1.25 * threshold

    def _generator(self, updates: int) -> torch.Generator:
        """A generator that seed and step determine, so that a resumed run draws the same."""
        return torch.Generator().manual_seed(7 * (self.seed * 1_000_003 + updates) % 2**63)

    def _check_codes(self, num_rows: int) -> None:
        advice = advise_frozen() if self.is_frozen else self._advise()
        self._alarm(
            self._alarms.check_codes(
                self.hits, distinct=int(self.distinct), rows=num_rows, advice=advice
            )
        )

    @abstractmethod
    def _advise(self) -> Advice:
        """What may be done about codes that coincide or die, of what this quantizer has."""

    def _alarm(self, found: dict[str, str]) -> None:
        for key, message in found.items():
            self._warn_once(key, message)

    def _warn_once(self, key: str, message: str) -> None:
        if key not in self._told and not torch.compiler.is_compiling():
            self._told.add(key)
            warnings.warn(message, CodebookWarning, stacklevel=4)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Upkeep":
        """Follow the device; counters and averages keep their dtype through ``half()``."""
        apply_keeping_dtypes(self, lambda: super(Upkeep, self)._apply(fn, recurse))
        self._tally.apply(fn)
        return self

    def _replicate_for_data_parallel(self) -> "Upkeep":
        if self.training:
            raise ValueError(
                f"{type(self).__name__} cannot train under nn.DataParallel, whose copies are "
                "thrown away with what they count: use DistributedDataParallel, or eval()."
            )
        return super()._replicate_for_data_parallel()

    def __getstate__(self) -> dict[str, Any]:
        """A copy, pickled or deep, is attached to no optimizer."""
        return {**self.__dict__, "_updates": None}
