"""The codebook as a map: what each code decodes to, alike ones close, how often, what is near.

Shape letters: K codes, M of them shown, C channels, F pixels to a code along each side, D features.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int64, UInt8
from torch import Tensor
from torch.nn.functional import pad

from softvq.data import from_model_range
from train.patches import Patches

MOST_CODES = 1024
NEIGHBOURS = 5


class Atlas(NamedTuple):
    """One method's map, cell by cell, row by row; the last cells may be empty.

    ``sprite`` is the RGBA picture of all cells. Of each cell: ``codes`` its index in the codebook,
    ``counts`` how often it is taken on the test set, ``tokens`` how many patches were averaged,
    ``near`` the cells of the codes nearest to it. ``num_codes`` is K, ``total`` the tokens counted.
    """

    sprite: Tensor
    columns: int
    codes: list[int]
    counts: list[int]
    tokens: list[int]
    near: list[list[int]]
    num_codes: int
    total: int


def pick_codes(
    patches: Patches,
    counts: Int64[Tensor, " k"],
    vectors: Float[Tensor, "k d"],
    *,
    most: int = MOST_CODES,
) -> dict[str, Tensor]:
    """Return what the atlas stores: all codes, or the most frequent where there are too many.

    Args:
        patches: Mean decoded patches of all codes.
        counts: How often each code is taken on the test set.
        vectors: The codebook.
        most: How many codes to keep.

    Returns:
        ``codes``, ``tokens``, ``patches`` and ``vectors`` as `eval.pictures.save_pictures` takes
        them.

    Example:
        >>> patches = Patches(torch.zeros(3, 1, 2, 2), torch.ones(3).long(), 1)
        >>> pick_codes(patches, torch.tensor([1, 0, 5]), torch.zeros(3, 2), most=2)["codes"]
        tensor([0, 2])
    """
    codes = counts.cpu().argsort(descending=True, stable=True)[:most].sort().values
    return {
        "codes": codes,
        "tokens": patches.tokens[codes],
        "patches": from_model_range(patches.means[codes]),
        "vectors": vectors.detach().cpu().float()[codes].nan_to_num(0, 0, 0),
    }


def draw_atlas(pictures: Mapping[str, Tensor], name: str) -> Atlas | None:
    """Return the map of one method, or None where none was stored.

    Args:
        pictures: As `eval.pictures.load_pictures` gives them.
        name: Of the method.

    Example:
        >>> draw_atlas({}, "ste") is None
        True
    """
    if f"{name}/codes" not in pictures:
        return None
    codes, tokens, patches, vectors = (
        pictures[f"{name}/{part}"] for part in ("codes", "tokens", "patches", "vectors")
    )
    counts = pictures[f"{name}/counts"]
    columns = math.ceil(math.sqrt(len(codes)))
    order = lay_out(vectors, patches.double().flatten(1).mean(1), columns=columns)
    codes, tokens, patches, vectors = codes[order], tokens[order], patches[order], vectors[order]
    return Atlas(
        sprite=join_cells(patches, tokens > 0, columns=columns),
        columns=columns,
        codes=codes.tolist(),
        counts=counts[codes].tolist(),
        tokens=tokens.tolist(),
        near=find_neighbours(vectors).tolist(),
        num_codes=len(counts),
        total=int(counts.sum()),
    )


def lay_out(
    vectors: Float[Tensor, "m d"], brightness: Float[Tensor, " m"], *, columns: int
) -> Int64[Tensor, " m"]:
    """Return the order in which codes fill a grid, row by row, so that alike ones lie close.

    The first principal component of the codebook decides on the row, the second on the place in it.

    Args:
        vectors: Codes.
        brightness: Of what each decodes to; the bright ones go to the top.
        columns: Cells a row.

    Example:
        >>> codes = torch.tensor([[3.0, 0.1], [0.0, 0.0], [1.0, 0.2], [2.0, 0.0]])
        >>> lay_out(codes, torch.tensor([9.0, 6.0, 7.0, 8.0]), columns=2)
        tensor([3, 0, 1, 2])
    """
    centred = vectors.double() - vectors.double().mean(0)
    axes = torch.linalg.eigh(centred.mT @ centred).eigenvectors.flip(1)[:, :2]
    # An eigenvector has no sign of its own: its largest entry shall be positive on every machine.
    places = centred @ (axes * axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign())
    if places[:, 0] @ (brightness.double() - brightness.double().mean()) > 0:
        places[:, 0] *= -1  # maps of several methods are the same way up
    rows = places[:, 0].argsort(stable=True).split(columns)
    return torch.cat([row[places[row, -1].argsort(stable=True)] for row in rows])


def find_neighbours(
    vectors: Float[Tensor, "m d"], *, most: int = NEIGHBOURS
) -> Int64[Tensor, "m n"]:
    """Return the places of the nearest other codes, the nearest first.

    Example:
        >>> find_neighbours(torch.tensor([[0.0], [1.0], [3.0]]), most=1)
        tensor([[1],
                [0],
                [1]])
    """
    distances = torch.cdist(vectors.double(), vectors.double())
    distances.fill_diagonal_(math.inf)
    return distances.argsort(dim=1, stable=True)[:, : min(most, len(vectors) - 1)]


def join_cells(
    patches: UInt8[Tensor, "m c f f"], seen: Tensor, *, columns: int
) -> UInt8[Tensor, "h w 4"]:
    """Return one RGBA picture of all patches; what was never seen, and empty cells, are clear.

    Example:
        >>> cells = join_cells(torch.zeros(3, 1, 4, 4).byte(), torch.ones(3).bool(), columns=2)
        >>> cells.shape, cells[-1, -1].tolist()
        (torch.Size([8, 8, 4]), [0, 0, 0, 0])
    """
    colour = patches.expand(-1, 3, -1, -1)
    alpha = (255 * seen.byte())[:, None, None, None].expand_as(colour[:, :1])
    cells = torch.cat([colour, alpha], dim=1)
    cells = pad(cells, (0, 0, 0, 0, 0, 0, 0, -len(cells) % columns))
    return rearrange(cells, "(i j) c h w -> (i h) (j w) c", j=columns)
