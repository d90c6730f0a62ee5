"""Where a codebook's codes come from: a first draw, data, another model, a checkpoint.

N rows, D features, K codes. Random codes wait for the first training pass, which places them on its
rows; codes that were given or loaded stay.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from softvq.checks import check_count, check_features, check_finite, check_mask, choose
from softvq.functional.precision import at_least_float32
from softvq.nn.buffers import widen_buffers
from softvq.nn.layout import LAYOUTS, feature_axis, index_shape, to_rows
from softvq.nn.processes import anywhere, gather_rows
from softvq.nn.revival import Revival
from softvq.nn.stored import find_lack, find_misfit
from softvq.nn.tally import are_finite
from softvq.nn.upkeep import Upkeep


class Startable(Upkeep, ABC):
    """A codebook (K, D) that is placed once, and knows whether it was; the start of a `Quantizer`.

    Subclasses own ``codebook`` and say how it is placed on rows (`_place`).
    """

    started: Tensor
    _stored = "codebook"  # key of the codes in the state dict

    def __init__(
        self, num_codes: int, dim: int, *, revival: Revival | None, layout: str, seed: int
    ) -> None:
        super().__init__(num_codes, revival=revival, seed=seed)
        self.dim = check_count("dim", dim)
        self.layout = choose("layout", layout, LAYOUTS)
        self._is_started = False
        self._awaits_start = True
        self._lacks: str | None = None  # what the last checkpoint should have held
        self.register_buffer("started", torch.zeros((), dtype=torch.bool))

    @property
    def is_started(self) -> bool:
        """Whether the codebook has been placed on data, here or in the checkpoint it came from."""
        if not self._is_started and self.started.device.type != "meta" and bool(self.started):
            # Averaged copies and the loaders of other packages write to the tensor alone.
            self._is_started, self._awaits_start = True, self._is_to_start_again()
        return self._is_started

    @property
    def awaits_start(self) -> bool:
        """Whether the next training pass places the codebook on its rows."""
        if not self.is_started:
            return True
        return self._awaits_start and self._is_to_start_again()

    @torch.no_grad()
    def set_codes_(self, codes: Float[Tensor, "k d"]) -> None:
        """Take these codes, such as another model's; training goes on from them, not from data.

        Written into ``codebook`` by hand they would not stay: the first training pass places codes
        on its data, and averages hold sums of their own.

        Args:
            codes: Finite, (K, D).

        Raises:
            ValueError: For another shape, or values that are not finite.

        Example:
            >>> from softvq.nn.hard import HardVQ
            >>> vq = HardVQ(2, 2)
            >>> vq.set_codes_(torch.eye(2))
            >>> vq(torch.tensor([[0.1, 0.8]])).indices.tolist(), vq.codebook.tolist()
            ([1], [[1.0, 0.0], [0.0, 1.0]])
        """
        check_features("codes", codes, dim=self.dim, axis=-1)
        if codes.shape != (self.num_codes, self.dim):
            raise ValueError(
                f"codes must be (K, D) = {(self.num_codes, self.dim)}; got {tuple(codes.shape)}."
            )
        check_finite("codes", codes, remedy="Give codes of a model that trained well.")
        self._put(codes)
        self._settle()
        self._took_codes()
        self.hits.fill_(1.0)
        self._tally.clear()
        self.started.fill_(True)
        self._is_started, self._awaits_start, self._lacks = True, False, None

    @torch.no_grad()
    def start_(self, z: Float[Tensor, "..."], *, mask: Bool[Tensor, "..."] | None = None) -> None:
        """Place the codebook on data; the first training pass does this by itself.

        Collective where several processes train together: each gives its own rows, all end with
        the same codebook. With fewer rows than codes, rows repeat with a little noise.

        Args:
            z: As in ``forward``.
            mask: As in ``forward``.

        Raises:
            ValueError: If a kept value is not finite, or no row is kept on any process.
        """
        check_features("z", z, dim=self.dim, axis=feature_axis(self.layout))
        check_mask("mask", mask, shape=index_shape(z, layout=self.layout))
        self._start(z, mask, again=False)

    def _start_if_due(self, z: Tensor, mask: Tensor | None) -> None:
        """What breaks a graph, as it reads values: once or twice in a run."""
        if self.awaits_start and anywhere(z.numel(), device=z.device):
            self._start(z, mask, again=self._is_started)

    @torch.no_grad()
    def _start(self, z: Tensor, mask: Tensor | None, *, again: bool) -> None:
        """`start_`, or a second start in the middle of a run, which no values may stop."""
        rows = to_rows(z.detach(), layout=self.layout)
        if mask is not None:
            rows = rows[mask.reshape(-1)]
        widen_buffers(self)
        rows = gather_rows(at_least_float32(rows))
        if again:
            rows = rows[are_finite(rows)]
            if len(rows) == 0:
                return
        # After the exchange, so that all processes raise and none is left waiting.
        remedy = "A codebook starts on finite data: mask those rows."
        check_finite("z", rows, remedy=remedy)
        if len(rows) and not bool(are_finite(rows).all()):
            raise ValueError(
                f"z holds values up to {rows.abs().max().item():.3g}, whose squares float32 does "
                f"not hold. {remedy}"
            )
        if len(rows) == 0:
            raise ValueError(
                f"z holds no row to start from: shape {tuple(z.shape)}, of which the mask keeps "
                "none. Start on a batch with at least one valid row."
            )
        self._place(rows)
        self._settle()
        self.started.fill_(True)
        self._is_started, self._awaits_start = True, False
        self._lacks = None

    def _put(self, codes: Tensor) -> None:
        """Write the codebook."""
        self.codebook.copy_(codes.to(self.codebook.dtype))

    def _is_to_start_again(self) -> bool:
        """Whether a codebook that was placed is to be placed once more."""
        return False

    def _took_codes(self) -> None:
        """What follows from codes that come from elsewhere."""

    @abstractmethod
    def _place(self, rows: Tensor) -> None:
        """Put the codebook on these rows, the same on every process."""

    def _draw(self, draw: Callable[..., Tensor]) -> Tensor:
        """First codes (K, D) in float32, where a `with torch.device(...)` around us wants them."""
        drawn = draw(
            self.num_codes,
            self.dim,
            generator=self._generator(0),
            dtype=torch.float32,
            device="cpu",
        )
        return drawn.to(self.hits.device)

    def _warn_of_lack(self) -> None:
        self._warn_once(
            "load",
            f"The checkpoint that was loaded holds no {self._lacks}: these are the codes of "
            f"before, which are {'of other data' if self.is_started else 'random'}.",
        )

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
        key = f"{prefix}{self._stored}"
        # A strict load will raise, but torch says strict=True here whatever the caller said: so the
        # warning waits until the codes that did not come are used.
        self._lacks = find_lack(key, state_dict)
        misfit = find_misfit(key, state_dict, sizes=(self.num_codes, self.dim))
        if misfit is not None:
            error_msgs.append(misfit)
            return
        rest = (strict, missing_keys, unexpected_keys, error_msgs)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)
        self._note_start(state_dict, prefix)
        self._tally.clear()

    def _note_start(self, state_dict: dict[str, Any], prefix: str) -> None:
        """Read from a state that was loaded whether there is a codebook yet."""
        self._is_started = self.started.device.type != "meta" and bool(self.started)
        self._awaits_start = not self._is_started
