"""How large the experiments are: one place, so that a quick look and the real run differ by it."""

from dataclasses import dataclass, field

from softvq.checks import choose


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Numbers that decide how long the experiments take.

    Attributes:
        seeds: Runs of each method.
        texts: Training and test texts, and most tokens a text, by text set.
        epochs: Passes over the training texts.
        finetune_steps: Optimizer steps of MiniLM with the readout.
        objects: Simulated objects in orbit.
        pictures: Training and test pictures of CIFAR-10.
        picture_epochs: Passes over the training pictures.
        steps: Steps of clustering, stack and rate runs.
    """

    seeds: int = 3
    texts: dict[str, tuple[int, int, int]] = field(
        default_factory=lambda: {
            "rotten-tomatoes": (1000, 500, 32),
            "imdb": (400, 300, 64),
            "bbc": (500, 300, 48),
        }
    )
    epochs: int = 6
    finetune_steps: int = 200
    objects: int = 4000
    pictures: tuple[int, int] = (1500, 1000)
    picture_epochs: int = 4
    steps: int = 300


SIZES = {
    "full": Sizes(),
    "smoke": Sizes(
        seeds=1,
        texts={name: (40, 20, 12) for name in ("rotten-tomatoes", "imdb", "bbc")},
        epochs=1,
        finetune_steps=3,
        objects=200,
        pictures=(64, 32),
        picture_epochs=1,
        steps=20,
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
