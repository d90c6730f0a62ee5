"""Weights of image nets for the tests: the real ones, fetched once a session, and drawn ones."""

import atexit
import functools
import math
import shutil
import tempfile
from pathlib import Path

import pytest
import torch

from softvq.data import weights
from softvq.data.fetch import SourceError


def refuse(*_, **__):
    raise SourceError("switched off by the test")


@functools.cache
def folder():
    """A cache folder with the real weights, out of the package."""
    made = Path(tempfile.mkdtemp(prefix="softvq-weights-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "_from_home", refuse)
        weights.load_weights("alex", cache=made)
    return made


@functools.cache
def real_weights(net):
    return weights.load_weights(net, cache=folder())


@functools.cache
def drawn_weights(net):
    """Kernels that keep the size of what passes through them."""
    generator = torch.Generator().manual_seed(0)
    drawn = {}
    for name, shape in weights._names(weights.NETS[net]):
        scale = math.sqrt(2 / math.prod(shape[1:])) if len(shape) > 1 else 0.1
        drawn[name] = torch.randn(shape, generator=generator) * scale
    return drawn
