"""A SoftVQ whose codes live in the host's own tensor, so that all that reads it sees them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softvq.hosts.geometry import CodebookAt
from softvq.nn.revival import Revived
from softvq.nn.soft import SoftVQ
from softvq.nn.tally import Tally

ON_SPHERE = 1e-5


class HeldSoftVQ(SoftVQ):
    """SoftVQ on codes that a host's quantizer keeps.

    A subclass, against the habit of this library: ``codebook`` must be a view of a tensor that
    somebody else owns, and a module that registered it too would save it twice.

    Attributes:
        averaged: Whether the host learned its codes by averages, so that no optimizer knew them.
    """

    averaged: bool
    at: CodebookAt
    _host: nn.Module
    _metric: str
    _keep: bool
    _is_frozen: bool

    def bind(
        self, host: nn.Module, at: CodebookAt, *, metric: str, keep: bool, averaged: bool
    ) -> "HeldSoftVQ":
        """Take the host's codes for one's own.

        Args:
            host: The quantizer.
            at: Where in it the codes are.
            metric: As in `Geometry`.
            keep: Start from the codes as they are, rather than by k-means.
            averaged: Whether the host learned its codes by averages.
        """
        del self._parameters["codebook"]
        # Past nn.Module, which would take the host for a child of its own child.
        object.__setattr__(self, "_host", host)
        self.at, self._metric, self._keep = at, metric, keep
        self._is_frozen, self.averaged = False, averaged
        self.schedule.guess_(self.codebook)
        if keep:  # codes that are worth keeping are not to be placed anew
            self.schedule.warming.fill_(False)
        return self

    @property
    def codebook(self) -> Tensor:  # type: ignore[override]
        """The codes (K, D), with gradient to the host's tensor."""
        if "_host" not in self.__dict__:
            raise AttributeError("codebook")  # nn.Module's own, until it is bound
        codes = self.held().detach() if self._is_frozen else self.held()
        return F.normalize(codes, dim=-1) if self._metric == "normalised" else codes

    @property
    def parameter(self) -> Tensor:
        """The host's tensor that is trained."""
        return self.at.tensor(self._host)

    def held(self) -> Tensor:
        """The codes as the host stores them; writing to them writes there."""
        return self.at.see(self.parameter)

    def see(self, like_parameter: Tensor) -> Tensor:
        """These codes' part (K, D) of a tensor shaped as the host's, such as a moment of it."""
        return self.at.see(like_parameter)

    @torch.no_grad()
    def normalise_(self) -> None:
        """Put codes that belong on the unit sphere back on it; those on it keep every bit."""
        if self._metric == "unit codes":
            codes = self.held()
            off = (codes.norm(dim=-1, keepdim=True) - 1).abs() > ON_SPHERE
            codes.copy_(torch.where(off, F.normalize(codes, dim=-1), codes))

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Inside the block a pass trains no code and leaves nothing for the next update."""
        tally, self._tally = self._tally, Tally(self.num_codes, with_sums=False)
        self._is_frozen = True
        try:
            yield
        finally:
            self._tally, self._is_frozen = tally, False

    def _place(self, rows: Tensor) -> None:
        if self._keep:
            self._follow(rows, self._generator(int(self.updates)), memory=0.0)
        else:
            super()._place(rows)

    def _put(self, codes: Tensor) -> None:
        self.held().copy_(codes.to(self.held().dtype))
        self.normalise_()

    def _learn(self, rows: Tensor, counts: Tensor, sums: Tensor | None) -> None:
        self.normalise_()
        super()._learn(rows, counts, sums)

    def _replace(self, revived: Revived) -> None:
        super()._replace(revived)  # writes to a copy where codes are normalised on use
        self.held()[revived.codes] = revived.rows.to(self.held().dtype)
        self.normalise_()

    def _learned(self) -> list[Tensor]:
        return [self.parameter]

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        if not any(key.startswith(prefix) for key in state_dict):
            # A checkpoint of before the swap: its codes are the host's to load, all else is fresh.
            fresh = SoftVQ(self.num_codes, self.dim, temperature=self.schedule.options)
            del fresh._parameters["codebook"]
            fresh.schedule.warming.copy_(self.schedule.warming)
            state_dict.update({f"{prefix}{key}": each for key, each in fresh.state_dict().items()})
        nn.Module._load_from_state_dict(
            self,
            state_dict,
            prefix,
            local_metadata,
            strict,
            missing_keys,
            unexpected_keys,
            error_msgs,
        )
        self._lacks = None
        self._note_start(state_dict, prefix)
        self._tally.clear()
