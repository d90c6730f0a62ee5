"""Codes that stay as they are while the rest of a model trains."""

from torch import Tensor, nn


class Freezable(nn.Module):
    """A module whose own parameters, and what its updates change beside them, can be frozen.

    Example:
        >>> from softvq.nn.soft import SoftVQ
        >>> vq = SoftVQ(8, 4)
        >>> vq.freeze_()
        >>> vq.is_frozen, vq.codebook.requires_grad
        (True, False)
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_fixed = False

    @property
    def is_frozen(self) -> bool:
        """Whether the codes stay as they are: after `freeze_`, or as they require no gradient."""
        return self._is_fixed or any(not each.requires_grad for each in self._learned())

    def freeze_(self, frozen: bool = True) -> None:
        """Keep the codes as they are while the rest of a model trains, or let them learn again.

        Training passes decode, count and follow the temperature as before, and the rows get their
        gradient; the codes get none, are averaged with nothing, not revived and not placed on data.
        Not in the state dict, as ``requires_grad`` is not.

        Args:
            frozen: False ends it.
        """
        self._is_fixed = frozen
        for each in self._learned():
            each.requires_grad_(not frozen)
            if frozen:
                each.grad = None  # which an optimizer would still step along

    def _learned(self) -> list[Tensor]:
        """What an optimizer moves the codes by; none where they are averages."""
        return [*self.parameters(recurse=False)]
