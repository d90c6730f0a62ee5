"""What a run leaves, and how a checkpoint holds it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from softvq.models import VQVAE


@dataclass
class RunResult:
    """What a run leaves.

    Attributes:
        model: Trained and unwrapped.
        evals: Measures of the test set, with ``step``, ``images`` seen and ``seconds`` of training.
        counts: Hard counts per code at the last of them.
        losses: Training loss every ``log_every`` steps, with ``step``.
        warnings: What was warned about.
        conditions: What the last measures were taken under, by measure.
        missing: Why a measure could not be taken, by measure.
    """

    model: VQVAE
    evals: list[dict[str, Any]] = field(default_factory=list)
    counts: Tensor = field(default_factory=lambda: torch.empty(0))
    losses: list[dict[str, float]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    conditions: dict[str, dict[str, Any]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def to_state(self) -> dict[str, Any]:
        """All but the model, as the plain JSON values that a checkpoint holds."""
        return {
            "evals": self.evals,
            "losses": self.losses,
            "warnings": self.warnings,
            "conditions": self.conditions,
            "missing": self.missing,
            "counts": self.counts.tolist(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `to_state` gave; the first checkpoints had no conditions."""
        self.evals = state["evals"]
        self.losses = state["losses"]
        self.warnings = state["warnings"]
        self.conditions = state.get("conditions", {})
        self.missing = state.get("missing", {})
        self.counts = torch.tensor(state["counts"], dtype=torch.int64)
