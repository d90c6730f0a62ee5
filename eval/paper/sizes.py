"""How large the experiments are: one place, so that a quick look and the real run differ by it."""

from dataclasses import dataclass, field
from typing import Any

from softvq.checks import choose


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Numbers that decide how long the experiments take.

    Attributes:
        seeds: Runs of each method.
        texts: Training and test texts, and most tokens a text, by text set.
        epochs: Passes over the training texts.
        finetune_texts: Sentences for training and test of MiniLM with the readout.
        finetune_steps: Its optimizer steps.
        objects: Simulated objects in orbit.
        pictures: Training and test pictures of CIFAR-10.
        picture_epochs: Passes over the training pictures.
        steps: Steps of clustering and rate runs.
        codebook_steps: Steps of the runs that follow the use of a codebook.
        codebook_test: Pictures on which it is measured.
        longest: Sequence of the timings.
    """

    seeds: int = 3
    texts: dict[str, tuple[int, int, int]] = field(
        default_factory=lambda: {
            "rotten-tomatoes": (2000, 2000, 64),
            "imdb": (400, 1000, 64),
            "bbc": (500, 1000, 48),
            "sst-2": (2000, 872, 64),
            "20-newsgroups": (1500, 1000, 64),
        }
    )
    epochs: int = 6
    finetune_texts: tuple[int, int] = (2000, 300)
    finetune_steps: int = 300
    objects: int = 4000
    pictures: tuple[int, int] = (1500, 1000)
    picture_epochs: int = 4
    steps: int = 300
    codebook_steps: int = 100
    codebook_test: int = 500
    longest: int = 65_536

    def take(self, *names: str) -> dict[str, Any]:
        """Some of them by name, as an experiment keeps them beside its rows.

        Example:
            >>> Sizes().take("seeds", "steps")
            {'seeds': 3, 'steps': 300}
        """
        return {name: getattr(self, name) for name in names}


SIZES = {
    "full": Sizes(),
    "smoke": Sizes(
        seeds=1,
        texts=dict.fromkeys(
            ("rotten-tomatoes", "imdb", "bbc", "sst-2", "20-newsgroups"), (40, 20, 12)
        ),
        epochs=1,
        finetune_texts=(40, 20),
        finetune_steps=3,
        objects=200,
        pictures=(64, 32),
        picture_epochs=1,
        steps=20,
        codebook_steps=4,
        codebook_test=20,
        longest=2048,
    ),
}


def choose_sizes(name: str) -> Sizes:
    """The sizes of that name.

    Raises:
        ValueError: For another name.

    Example:
        >>> choose_sizes("smoke").seeds
        1
    """
    return SIZES[choose("sizes", name, SIZES)]
