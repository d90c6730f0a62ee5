"""The swapped module: the host's own object and class, with a SoftVQ that answers in training.

In eval mode the host's own forward runs on the host's own tensors, so that nothing can differ. In
training, and for soft means, an adapter turns the input into rows and the answer into the host's.
"""

import functools
from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from softvq.hosts.geometry import CodebookAt
from softvq.types import QuantizerOutput


class Adapter(ABC):
    """How a SoftVQ takes the place of one kind of quantizer; write one for a kind of your own.

    ``softvq.swap(model, adapter=choose)`` calls ``choose(module)`` on every module; it gives an
    adapter for those to be swapped and None for the rest.

    Attributes:
        family: Name for the report.
        metric: "euclidean", "unit codes" (rows come normalised, codes are kept on the unit sphere)
            or "normalised" (rows come normalised, codes are normalised on use).
        averaged: Whether the host learns its codes by averages, outside the optimizer.

    Example:
        >>> class Pair(Adapter):
        ...     family = "pair"
        ...     def codebooks(self):
        ...         return (CodebookAt(owner="embedding", name="weight"),)
        ...     def rows(self, host, z):
        ...         return [z], None
        ...     def answer(self, host, z, *, outputs):
        ...         return outputs[0].quantized, outputs[0].indices
        >>> Pair().codebooks()[0].key
        'embedding.weight'
    """

    family: str = "own adapter"
    metric: str = "euclidean"
    averaged: bool = False

    @abstractmethod
    def codebooks(self) -> tuple[CodebookAt, ...]:
        """Where the host keeps its codes: one place, or one for each head."""

    @abstractmethod
    def rows(
        self, host: nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[list[Tensor], Tensor | None]:
        """The vectors (..., D) for each codebook, and a mask (True keeps) or None.

        Args:
            host: The quantizer that was called.
            args: As its forward got them.
            kwargs: As its forward got them.
        """

    @abstractmethod
    def answer(
        self, host: nn.Module, *args: Any, outputs: list[QuantizerOutput], **kwargs: Any
    ) -> Any:
        """What the host's forward returns, from what SoftVQ made of the rows."""

    def hard(self, host: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """What the host's forward returns in eval mode: the host's own answer."""
        return original_class(host).forward(host, *args, **kwargs)

    def soft(self, host: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """What the host's forward returns in training: `answer`, of what SoftVQ makes of `rows`."""
        rows, mask = self.rows(host, *args, **kwargs)
        frozen = self.freezes(host, *args, **kwargs)
        outputs = [
            _quantize(core, each, mask, frozen=frozen)
            for core, each in zip(host.softvq, rows, strict=True)  # type: ignore[arg-type]
        ]
        return self.answer(host, *args, outputs=outputs, **kwargs)

    def passes(self) -> tuple[int, ...]:
        """How many passes of one call each codebook gets: one, unless stages share it."""
        return (1,) * len(self.codebooks())

    def freezes(self, host: nn.Module, *args: Any, **kwargs: Any) -> bool:
        """Whether this call asks that codes stay as they are."""
        return False


class Swapped(nn.Module):
    """Stands before the host's class in the method resolution order of a swapped module."""

    softvq: nn.ModuleList
    _adapter: Adapter

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Answer as the host would: its own hard answer in eval, SoftVQ's in training."""
        soft = self.softvq[0].mode == "soft"
        if not (self.training or soft):
            return self._adapter.hard(self, *args, **kwargs)
        return self._adapter.soft(self, *args, **kwargs)

    def train(self, mode: bool = True) -> "Swapped":
        """Set the mode; codes of the unit sphere are on it whenever the host reads them."""
        for core in self.softvq:
            core.normalise_()  # type: ignore[operator]
        return super().train(mode)

    def __reduce_ex__(self, protocol: Any) -> tuple:
        # The class is made at run time: copies and pickles name the host's class instead.
        return _blank, (original_class(self),), dict(self.__dict__)


def _quantize(core: Any, rows: Tensor, mask: Tensor | None, *, frozen: bool) -> QuantizerOutput:
    if mask is not None:
        mask = mask.reshape(*mask.shape, *[1] * (rows.ndim - 1 - mask.ndim)).expand(rows.shape[:-1])
    if not frozen:
        return core(rows, mask=mask)
    with core.frozen():
        return core(rows, mask=mask)


@functools.cache
def swapped_class(original: type[nn.Module]) -> type[nn.Module]:
    """The class of a swapped ``original``, which is still an ``original``.

    Example:
        >>> swapped_class(nn.Identity).__name__, issubclass(swapped_class(nn.Identity), nn.Identity)
        ('SoftIdentity', True)
    """
    body = {"__module__": original.__module__, "__doc__": original.__doc__}
    return type(f"Soft{original.__name__}", (Swapped, original), body)


def original_class(module: nn.Module) -> type[nn.Module]:
    """The class that a swapped module had.

    Example:
        >>> original_class(swapped_class(nn.Identity)()).__name__
        'Identity'
    """
    return type(module).__mro__[2]


def _blank(original: type[nn.Module]) -> nn.Module:
    return object.__new__(swapped_class(original))
