"""SST-2 and 20 Newsgroups by their own loaders, for those with an open network.

No package carries them. Both come with a split of their own, which is kept.
"""

import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import datasets
import huggingface_hub
from sklearn.datasets import fetch_20newsgroups

from softvq.checks import choose
from softvq.data.fetch import FetchError

PATIENCE = 10.0  # seconds of silence after which a host counts as out of reach
Pairs = list[tuple[str, int]]


class Split(NamedTuple):
    """Training and test texts, each with the place of its class in ``classes``."""

    train: Pairs
    test: Pairs
    classes: tuple[str, ...]


def read_sst2() -> Split:
    """Sentences of film reviews; the test is the validation split, whose labels are public."""
    held = datasets.load_dataset("stanfordnlp/sst2")
    train, test = (
        list(zip(held[name]["sentence"], held[name]["label"], strict=True))
        for name in ("train", "validation")
    )
    return Split(train, test, ("negative", "positive"))


def read_newsgroups() -> Split:
    """Posts by group, split by date, without headers, footers and quotes, which tell the group."""
    bare = ("headers", "footers", "quotes")
    held: list[Any] = [  # the type in its signature is that of return_X_y as well
        fetch_20newsgroups(subset=name, remove=bare, n_retries=1, delay=0.1)
        for name in ("train", "test")
    ]
    train, test = (
        [(text, int(label)) for text, label in zip(part["data"], part["target"], strict=True)]
        for part in held
    )
    return Split(train, test, tuple(held[0]["target_names"]))


READERS = {"sst-2": read_sst2, "20-newsgroups": read_newsgroups}


def read_hub(name: str) -> Split:
    """Read a set from its home, or from that loader's own cache.

    Args:
        name: A key of `READERS`.

    Raises:
        ValueError: For an unknown name.
        FetchError: Where the network refuses.

    Example:
        >>> read_hub("sst2")
        Traceback (most recent call last):
        ValueError: text set is 'sst2'; valid are: sst-2, 20-newsgroups. Did you mean 'sst-2'?
    """
    reader = READERS[choose("text set", name, READERS)]
    try:
        with quiet():
            return reader()
    except OSError as error:  # what both loaders raise when nobody answers
        reason = " ".join(str(error).split())
        raise FetchError(f"{name} could not be had from its home: {reason}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Give up on a silent host soon, and without the loaders' lines about each attempt."""
    level, patience = huggingface_hub.logging.get_verbosity(), socket.getdefaulttimeout()
    huggingface_hub.logging.set_verbosity_error()
    socket.setdefaulttimeout(PATIENCE)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        socket.setdefaulttimeout(patience)
        huggingface_hub.logging.set_verbosity(level)
