"""Quantizers by name, so that a config can name its parts and a file what it holds."""

from typing import Any, TypeVar

from softvq.checks import choose
from softvq.nn.arrangement import AnyQuantizer, Arrangement
from softvq.nn.base import Quantizer
from softvq.nn.hard import HardVQ
from softvq.nn.soft import SoftVQ

KINDS: dict[str, type[Quantizer] | type[Arrangement]] = {"SoftVQ": SoftVQ, "HardVQ": HardVQ}
Kind = TypeVar("Kind", bound=type[Quantizer] | type[Arrangement])


def register(kind: Kind) -> Kind:
    """Let configs name a class; used as its decorator.

    Example:
        >>> register(HardVQ) is KINDS["HardVQ"]
        True
    """
    KINDS[kind.__name__] = kind
    return kind


def describe(quantizer: AnyQuantizer) -> dict[str, Any]:
    """Kind and config, as plain JSON values.

    Example:
        >>> describe(HardVQ(8, 4))["kind"]
        'HardVQ'
    """
    return {"kind": type(quantizer).__name__, **quantizer.config()}


def build(config: dict[str, Any]) -> Any:  # noqa: ANN401 - a Quantizer or an Arrangement
    """A fresh quantizer from what `describe` gave.

    Raises:
        ValueError: For a kind that is unknown.

    Example:
        >>> build(describe(HardVQ(8, 4))).num_codes
        8
    """
    options = dict(config)
    kind = choose("quantizer kind", options.pop("kind"), KINDS)
    return KINDS[kind].from_config(options)
