"""What every quantizer shares: layout, masks, the start on data, looking codes up, state.

N rows, D features, K codes. A forward pass changes nothing but the pending tally; `update_` of
`softvq.nn.upkeep`, once a step, changes the rest. `softvq.attach` calls it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor

from softvq.checks import check_count, check_features, check_finite, check_mask, choose
from softvq.functional.precision import at_least_float32
from softvq.nn.buffers import widen_buffers
from softvq.nn.layout import (
    LAYOUTS,
    check_indices,
    feature_axis,
    from_rows,
    index_shape,
    resolve_mask,
    to_rows,
)
from softvq.nn.processes import anywhere, gather_rows
from softvq.nn.revival import Revival
from softvq.nn.stored import find_lack, find_misfit
from softvq.nn.tally import are_finite
from softvq.nn.upkeep import Upkeep
from softvq.types import QuantizerOutput


class RowsOutput(NamedTuple):
    """What a quantizer makes of rows: `QuantizerOutput` before the layout is put back."""

    quantized: Tensor
    indices: Tensor
    loss: Tensor
    stats: dict[str, Tensor]


class Quantizer(Upkeep, ABC):
    """A codebook of K codes of D features, and all that does not depend on how rows are assigned.

    Subclasses own ``codebook`` and say how rows become codes (`_quantize`), how the codebook is
    placed (`_place`) and what an update does beyond counting and revival (`_learn`).
    """

    started: Tensor
    has_soft = False
    index_tail: tuple[int, ...] = ()
    _stored = "codebook"  # key of the codes in the state dict

    def __init__(
        self, num_codes: int, dim: int, *, revival: Revival | None, layout: str, seed: int
    ) -> None:
        super().__init__(num_codes, revival=revival, seed=seed)
        self.dim = check_count("dim", dim)
        self.layout = choose("layout", layout, LAYOUTS)
        self.mode: str | None = None
        self.sampler: torch.Generator | None = None  # see softvq.nn.sampling
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

    def forward(
        self,
        z: Float[Tensor, "..."],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        lengths: Integer[Tensor, " b"] | None = None,
    ) -> QuantizerOutput:
        """Quantize every vector of ``z``.

        Args:
            z: (..., N, D), or (B, D, ...) with ``layout="channels_first"``.
            mask: True keeps a position; shaped as ``z`` without its feature axis. Dropped
                positions give a zero vector and index -1, and touch no loss and no count.
            lengths: In place of a mask, how many positions count in each item of the batch.

        Returns:
            ``quantized`` shaped and typed as ``z``; ``indices`` int64; ``loss`` 0-dim, float32 at
            least; ``stats`` of 0-dim tensors.

        Raises:
            ValueError: For a wrong feature size, dtype or mask; in the first training pass for
                values that are not finite, or no valid row.
        """
        check_features("z", z, dim=self.dim, axis=feature_axis(self.layout))
        mask = resolve_mask(mask, lengths, shape=index_shape(z, layout=self.layout))
        if self.training and (self._awaits_start or not self._is_started):
            self._start_if_due(z, mask)
        if self._lacks is not None:
            self._warn_once(
                "load",
                f"The checkpoint that was loaded holds no {self._lacks}: these are the codes of "
                f"before, which are {'of other data' if self.is_started else 'random'}.",
            )
        rows = to_rows(z, layout=self.layout)
        keep = None if mask is None else mask.reshape(-1)
        if keep is not None:
            rows = torch.where(keep[:, None], rows, 0)
        out = self._quantize(rows, keep)
        if self.training:
            self._count(rows, out.indices)
        else:
            self._warn_of_no_gradient(rows)
        quantized, indices = out.quantized.to(z.dtype), out.indices
        if keep is not None:
            quantized = torch.where(keep[:, None], quantized, 0)
        shape = index_shape(z, layout=self.layout)
        return QuantizerOutput(
            from_rows(quantized, like=z, layout=self.layout),
            indices.reshape(shape),
            out.loss,
            out.stats,
        )

    def codes(
        self, indices: Integer[Tensor, "..."], *, mask: Bool[Tensor, "..."] | None = None
    ) -> Tensor:
        """The code of each index: exactly what ``forward`` gives in eval mode.

        Args:
            indices: Whole numbers in [0, K), any shape ((B, ...) for channels first).
            mask: True keeps a position; zeros elsewhere, where -1 is allowed.

        Returns:
            (..., D), or (B, D, ...) with ``layout="channels_first"``, in the codebook's dtype.

        Raises:
            ValueError: For indices that are no integers or out of range.
        """
        found = self.look_up(check_indices(indices, mask, num_codes=self.num_codes))
        return found.movedim(-1, 1) if self.layout == "channels_first" else found

    def look_up(self, indices: Integer[Tensor, "..."]) -> Tensor:
        """The code (..., D) of each index, zeros at -1; nothing is checked and nothing waits."""
        flat = indices.reshape(-1)
        rows = self.codebook[flat.clamp_min(0).long()]
        rows = torch.where((flat >= 0)[:, None], rows, 0)
        return rows.reshape(*indices.shape, self.dim)

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

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """What the constructor was given, as plain JSON values; ``from_config`` takes it back."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: dict[str, Any]) -> "Quantizer":
        """A fresh module of the sizes and options that ``config`` names."""

    @abstractmethod
    def _quantize(self, rows: Tensor, keep: Tensor | None) -> RowsOutput:
        """Quantize rows (N, D); masked ones are zero and get index -1."""

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

    def _warn_of_no_gradient(self, rows: Tensor) -> None:
        soft = self.has_soft and self.mode == "soft"
        if torch.is_grad_enabled() and rows.requires_grad and not soft:
            self._warn_once(
                "eval",
                f"{type(self).__name__} is in eval mode and its input requires grad: it "
                "returns hard codes, so no gradient reaches the encoder. Call train().",
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

    def extra_repr(self) -> str:
        """Sizes and layout, for ``print(model)``."""
        return f"num_codes={self.num_codes}, dim={self.dim}, layout={self.layout!r}"
