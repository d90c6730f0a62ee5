"""Tests of softvq; importing the package makes the run-time type checker reachable by name."""

from tests import shapes

__all__ = ["shapes"]
