"""A codebook in a file of its own: `Codebook`, `export_codebook`, `load_codebook`. See FORMAT.md.

Shape letters: K codes, D features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from softvq.checks import check_finite, choose
from softvq.export.digests import digest_tensors
from softvq.export.vocabulary import check_tokens
from softvq.files import blaming
from softvq.models.io import check_format, read_tensors, write_tensors
from softvq.nn import HardVQ

FORMAT = "softvq-codebook"
FORMAT_VERSION = 1
METRICS = ("squared_euclidean", "cosine")
FACTS = ("metric", "grid", "downsampling", "image_range", "dataset", "step", "source_digest")


@dataclass(frozen=True, kw_only=True, eq=False)
class Codebook:
    """One codebook, or those of several stages or heads, and what the next program must know.

    Attributes:
        codebooks: (K, D) each, in the order of stages or heads.
        counts: How often each code was the nearest, int64 (K,) a codebook; None if not counted.
        specials: Numbers of the special tokens, K and up.
        metric: What is nearest: "squared_euclidean" or "cosine".
        grid: Shape of the tokens of one item, such as (8, 8).
        downsampling: Pixels to a token along each side.
        image_range: What the decoder takes for black and white.
        dataset: Where tokens and counts come from.
        step: Updates of the codebook in training.
        source_digest: SHA-256 of the state dict of the model that it was taken from.
    """

    codebooks: tuple[Tensor, ...]
    counts: tuple[Tensor, ...] | None = None
    specials: Mapping[str, int] = field(default_factory=dict)
    metric: str = "squared_euclidean"
    grid: tuple[int, ...] | None = None
    downsampling: int | None = None
    image_range: tuple[float, float] | None = None
    dataset: str | None = None
    step: int | None = None
    source_digest: str | None = None

    def __post_init__(self) -> None:
        choose("metric", self.metric, METRICS)
        if not self.codebooks:
            raise ValueError("codebooks must hold at least one (K, D) tensor; got none.")
        for each in self.codebooks:
            if each.ndim != 2 or not each.is_floating_point() or each.numel() == 0:
                raise ValueError(
                    "codebooks must be floating-point (K, D) with K and D at least 1; got "
                    f"{each.dtype} of shape {tuple(each.shape)}."
                )
            check_finite("codebook", each, remedy="Take an earlier checkpoint.")
        _check_counts(self.counts, self.codebooks)
        expected = range(self.num_codes, self.num_codes + len(self.specials))
        if sorted(self.specials.values()) != list(expected):
            raise ValueError(
                f"specials must be numbered from K = {self.num_codes} on; got {self.specials}."
            )

    @property
    def codebook(self) -> Tensor:
        """The codes (K, D), where there is one codebook.

        Raises:
            ValueError: If there are several.
        """
        if len(self.codebooks) != 1:
            raise ValueError(f"this holds {len(self.codebooks)} codebooks: take one of codebooks.")
        return self.codebooks[0]

    @property
    def num_codes(self) -> int:
        """K; of several codebooks the largest."""
        return max(len(each) for each in self.codebooks)

    @property
    def vocab_size(self) -> int:
        """K and the specials: rows of the next model's embedding."""
        return self.num_codes + len(self.specials)

    @property
    def normalized(self) -> bool:
        """Whether every code has length 1."""
        lengths = torch.cat([each.float().norm(dim=1) for each in self.codebooks])
        return bool(((lengths - 1).abs() < 1e-3).all())

    @property
    def digest(self) -> str:
        """SHA-256 of the codes; token sets name the one that they need."""
        return digest_tensors(_name_tensors("codebook", self.codebooks))

    def codes(self, indices: Integer[Tensor, "..."]) -> Float[Tensor, "... d"]:
        """The codes of indices.

        Args:
            indices: Whole numbers in [0, K), of any shape.

        Raises:
            ValueError: For special tokens, negative numbers, or numbers that are not whole.
        """
        check_tokens("indices", indices, num_codes=len(self.codebook), specials=self.specials)
        return self.codebook[indices.to(self.codebook.device, torch.int64)]

    def to_embedding(self, *, freeze: bool = False) -> nn.Embedding:
        """An embedding of ``vocab_size`` rows that starts as the codes.

        Args:
            freeze: Whether it shall not be trained.

        Returns:
            Rows 0 to K - 1 are a copy of the codes; those of specials are the codes' mean.
        """
        codes = self.codebook
        rows = codes.mean(0, keepdim=True).expand(len(self.specials), -1)
        return nn.Embedding.from_pretrained(torch.cat([codes, rows]).clone(), freeze=freeze)

    def to_quantizer(self, *, layout: str = "channels_last") -> HardVQ:
        """A `softvq.HardVQ` with these codes, started, in eval mode.

        Args:
            layout: As for `softvq.HardVQ`.

        Raises:
            ValueError: If there are several codebooks, or the metric is not its own.
        """
        if self.metric != "squared_euclidean":
            raise ValueError(f"metric is {self.metric!r}; HardVQ assigns by squared_euclidean.")
        codes = self.codebook
        quantizer = HardVQ(*codes.shape, layout=layout)
        state = quantizer.state_dict()
        state |= {"codebook": codes.to(state["codebook"].dtype), "started": torch.tensor(True)}
        quantizer.load_state_dict(state)
        return quantizer.eval()


def save_codebook(codebook: Codebook, path: Path | str) -> Path:
    """Write a codebook file, whole or not at all.

    Args:
        codebook: What to write.
        path: File; by custom it ends in ``.safetensors``.

    Returns:
        The path.

    Example:
        >>> import tempfile
        >>> path = f"{tempfile.mkdtemp()}/codebook.safetensors"
        >>> load_codebook(save_codebook(Codebook(codebooks=(torch.eye(3),)), path)).vocab_size
        3
    """
    sizes = [list(each.shape) for each in codebook.codebooks]
    config: dict[str, Any] = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "num_codes": codebook.num_codes,
        "dim": sizes[0][1],
        "codebooks": sizes,
        "vocab_size": codebook.vocab_size,
        "specials": dict(codebook.specials),
        "normalized": codebook.normalized,
        "codebook_digest": codebook.digest,
        **{name: getattr(codebook, name) for name in FACTS},
    }
    tensors = _name_tensors("codebook", codebook.codebooks)
    if codebook.counts is not None:
        tensors |= _name_tensors("counts", codebook.counts)
    write_tensors(path, tensors, config)
    return Path(path)


def load_codebook(path: Path | str) -> Codebook:
    """Read a file that `export_codebook` wrote.

    Args:
        path: The file.

    Returns:
        The codebook, on the CPU.

    Raises:
        ValueError: If the file is no such codebook, of a newer version, cut short, altered.
        FileNotFoundError: If there is none.
    """
    config, tensors = read_tensors(path)
    check_format(path, config, name=FORMAT, version=FORMAT_VERSION)
    with blaming(path):
        return _parse(path, config, tensors)


def _parse(path: Path | str, config: dict[str, Any], tensors: dict[str, Tensor]) -> Codebook:
    num = len(config["codebooks"])
    facts = {name: config[name] for name in FACTS}
    for name in ("grid", "image_range"):
        facts[name] = None if facts[name] is None else tuple(facts[name])
        if not all(type(each) in (int, float) for each in facts[name] or ()):
            raise ValueError(f"{name} should hold numbers; it is {config[name]!r:.80}.")
    codebook = Codebook(
        codebooks=_take_tensors("codebook", tensors, num=num),
        counts=_take_tensors("counts", tensors, num=num) if _has_counts(tensors) else None,
        specials=config["specials"],
        **facts,
    )
    sizes = [list(each.shape) for each in codebook.codebooks]
    told = {name: config[name] for name in ("codebooks", "num_codes", "dim", "vocab_size")}
    held = (sizes, codebook.num_codes, sizes[0][1], codebook.vocab_size)
    for (name, value), found in zip(told.items(), held, strict=True):
        if value != found:
            raise ValueError(f"{name} is {value!r:.80} in its config and {found} in its tensors.")
    if codebook.digest != config["codebook_digest"]:
        raise ValueError(
            f"path {path} was altered: its codes should have SHA-256 "
            f"{config['codebook_digest']}, they have {codebook.digest}. Take another copy."
        )
    return codebook


def _has_counts(tensors: Mapping[str, Tensor]) -> bool:
    return any(name.split(".")[0] == "counts" for name in tensors)


def _name_tensors(name: str, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """``codebook`` where there is one; ``codebook.0``, ``codebook.1``, ... where there are more."""
    if len(tensors) == 1:
        return {name: tensors[0]}
    return {f"{name}.{i}": each for i, each in enumerate(tensors)}


def _take_tensors(name: str, tensors: Mapping[str, Tensor], *, num: int) -> tuple[Tensor, ...]:
    if num == 1:
        return (tensors[name],)
    return tuple(tensors[f"{name}.{i}"] for i in range(num))


def _check_counts(counts: tuple[Tensor, ...] | None, codebooks: tuple[Tensor, ...]) -> None:
    if counts is None:
        return
    sizes = [(len(each),) for each in codebooks]
    found = [tuple(each.shape) for each in counts]
    whole = all(each.dtype == torch.int64 for each in counts)
    if found != sizes or not whole or any(bool((each < 0).any()) for each in counts):
        raise ValueError(
            f"counts must be int64, at least 0, of shapes {sizes}, one a code; got "
            f"{[each.dtype for each in counts]} of shapes {found}."
        )
