"""Reading a token set: `load_tokens` and the torch data set that it gives."""

import json
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn
from torch.utils.data import Dataset

from softvq.export.codebook import Codebook, load_codebook
from softvq.export.indices import check_each
from softvq.export.manifest import Manifest, read_manifest
from softvq.export.shards import check_entry, open_shard
from softvq.export.source import find_device, give_grid, take_codebook
from softvq.export.vocabulary import check_tokens
from softvq.models.vqvae import VQVAE


class TokenItem(NamedTuple):
    """One item, or a batch of them with a leading axis."""

    tokens: Int[Tensor, "..."]
    """Codes (*grid), row by row."""
    label: Int[Tensor, "..."]
    """Class; -1 where there are none."""
    soft_indices: Int[Tensor, "..."]
    """(*grid, m) codes of the soft target, the hard one first; m = 0 where there are none."""
    soft_weights: Float[Tensor, "..."]
    """(*grid, m); what they lack of 1 lies on the codes left out."""


@final
class TokenDataset(Dataset[TokenItem]):
    """Tokens on disk, mapped into memory; made by `load_tokens`.

    Args:
        folder: Of the set.
        manifest: Of the set, its files checked.

    Attributes:
        folder: Of the set.
        manifest: All that is told of it.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._opened: dict[int, dict[str, Tensor]] = {}

    def __len__(self) -> int:
        return self.manifest.plan.num_items

    def __getitem__(self, index: int) -> TokenItem:
        if not 0 <= index < len(self):
            raise IndexError(f"index must be in [0, {len(self)}); got {index}.")
        shard, row = divmod(int(index), self.manifest.plan.shard_size)
        tensors = self._open(shard)
        return TokenItem(
            tensors["tokens"][row].to(torch.int64),
            tensors["labels"][row].clone(),
            tensors["soft_indices"][row].to(torch.int64),
            tensors["soft_weights"][row].clone(),
        )

    def batch(self, indices: Integer[Tensor, " b"]) -> TokenItem:
        """Items at ``indices``, in that order.

        Args:
            indices: Whole numbers in [0, len); repeats are allowed.

        Raises:
            ValueError: If one is not.
        """
        check_tokens("indices", indices, num_codes=len(self))
        items = [self[i] for i in indices.tolist()]
        if not items:
            empty = self[0]
            return TokenItem(*(part[None][:0] for part in empty))
        return TokenItem(*(torch.stack(parts) for parts in zip(*items, strict=True)))

    @property
    def num_codes(self) -> int:
        """K; of several codebooks the largest."""
        return self.manifest.plan.num_codes

    @property
    def index_tail(self) -> tuple[int, ...]:
        """Shape of the indices of one vector, the last axes of the grid; () for one index."""
        return self.manifest.plan.index_tail

    @property
    def codes_per_index(self) -> tuple[int, ...]:
        """K of each index of a vector, in the order in which they lie."""
        return self.manifest.plan.codes_per_index or (self.num_codes,)

    @property
    def specials(self) -> dict[str, int]:
        """Numbers of the special tokens, from K on; none is in the tokens themselves."""
        return dict(self.manifest.plan.specials)

    @property
    def vocab_size(self) -> int:
        """K and the specials: rows of the next model's embedding."""
        return self.manifest.plan.vocab_size

    @property
    def num_classes(self) -> int | None:
        """Classes of the labels; None without labels."""
        return self.manifest.num_classes

    @property
    def grid(self) -> tuple[int, ...]:
        """Shape of the tokens of one item, the indices of a vector last."""
        return self.manifest.plan.grid

    @property
    def keys(self) -> list[str]:
        """Name of each item in the source set; read anew at each call."""
        path = self.folder / self.manifest.keys.file
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    @property
    def labels(self) -> Int[Tensor, " n"] | None:
        """Class of each item; None without labels."""
        if not self.manifest.plan.has_labels:
            return None
        return torch.cat([self._open(i)["labels"] for i in range(len(self.manifest.shards))])

    @property
    def codebook(self) -> Codebook:
        """The codes that the tokens stand for, counted over this set; read anew at each call."""
        return load_codebook(self.folder / self.manifest.codebook.file)

    def shard_tokens(self, index: int) -> Integer[Tensor, "n ..."]:
        """Tokens of a whole shard as they are stored, unsigned and mapped; not to be written to.

        Args:
            index: Which shard.
        """
        return self._open(index)["tokens"]

    def shard_tensors(self, index: int) -> dict[str, Tensor]:
        """All tensors of a shard as they are stored, see FORMAT.md; not to be written to.

        Args:
            index: Which shard.
        """
        return dict(self._open(index))

    def decode(self, tokens: Integer[Tensor, "b ..."], model: Any) -> Float[Tensor, "b ..."]:  # noqa: ANN401
        """Pictures of tokens, of this set or sampled by a model that learned on it.

        Args:
            tokens: (B, *grid), or flat (B, product of grid) row by row; codes alone.
            model: The model that made the tokens: ``decode(tokens)`` gives pictures.

        Returns:
            Of a VQVAE the very hard reconstruction, cropped to the size of the source images.

        Raises:
            ValueError: For special tokens, numbers that are no codes, a wrong shape, or a model
                with another codebook.
        """
        self.check_codebook(model)
        check_tokens("tokens", tokens, num_codes=self.num_codes, specials=self.specials)
        whole = tokens.to(find_device(model), torch.int64)
        stacked = give_grid(whole, grid=self.grid)
        check_each("tokens", stacked, tail=self.index_tail, codes=self.codes_per_index)
        with torch.no_grad():
            if not isinstance(model, VQVAE):
                return model.decode(stacked)
            height, width = self.manifest.plan.image_size
            return model.decode(stacked, size=(height, width))

    def check_codebook(self, codebook: Codebook | nn.Module) -> None:
        """Raise unless these are the codes that the tokens stand for.

        Args:
            codebook: A codebook, or a model that holds one.

        Raises:
            ValueError: With both digests.
        """
        held = codebook if isinstance(codebook, Codebook) else take_codebook(codebook)
        expected = self.manifest.plan.codebook_digest
        if held.digest != expected:
            raise ValueError(
                f"codebook has digest {held.digest}; the tokens in {self.folder} stand for codes "
                f"of digest {expected}. Use the model or codebook file that they were made with."
            )

    def _open(self, shard: int) -> dict[str, Tensor]:
        if shard not in self._opened:
            path = self.folder / self.manifest.shards[shard].file
            self._opened[shard] = open_shard(path, plan=self.manifest.plan)
        return self._opened[shard]

    def __getstate__(self) -> dict[str, Any]:
        """A worker maps the files anew instead of getting a copy of what they hold."""
        return {**self.__dict__, "_opened": {}}


def load_tokens(
    folder: Path | str, *, codebook: Codebook | nn.Module | None = None, verify: bool = True
) -> TokenDataset:
    """Open a token set that `export_tokens` wrote.

    Args:
        folder: Of the set.
        codebook: If given, the tokens must stand for these codes.
        verify: Whether to read every file once and compare its SHA-256; sizes are compared anyway.

    Returns:
        A torch data set of `TokenItem`, memory-mapped.

    Raises:
        ValueError: If the export is not finished, a file is missing, truncated or altered (which,
            what was expected, what was found), or the codebook is another one.
        FileNotFoundError: If there is no token set.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    for entry in (*manifest.shards, manifest.codebook, manifest.keys):
        check_entry(folder, entry, verify=verify)
    tokens = TokenDataset(folder, manifest)
    held = tokens.codebook
    tokens.check_codebook(held)
    _check_books(manifest, [len(each) for each in held.codebooks], folder=folder)
    if manifest.shards:
        tokens.shard_tokens(0)  # an edited manifest is told here and not by its first item
    if codebook is not None:
        tokens.check_codebook(codebook)
    return tokens


def _check_books(manifest: Manifest, sizes: list[int], *, folder: Path) -> None:
    """Raise unless each index of a vector has a codebook of its size."""
    plan = manifest.plan
    found = [sizes[book] if book < len(sizes) else None for book in plan.index_codebooks]
    if found != list(plan.codes_per_index):
        raise ValueError(
            f"path {folder}, manifest: codes_per_index should be {found}, the sizes of the "
            f"codebooks that index_codebooks names; they are {list(plan.codes_per_index)}: damaged."
        )
