"""Result trees: what a host's forward returns, leaf by leaf, and the same tree built anew."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Path = tuple[int | str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Role:
    """What one leaf of a result tree is.

    Attributes:
        kind: "quantized", "indices", "loss", "zero", "perplexity", "one_hot", "distances", "input",
            "none", "constant" or "unknown".
        form: How its shape hangs on the input: "flat" (N,), "column" (N, 1) or "grid" for indices;
            "scalar", "one" (1,) or "batch" (B,) for losses; "number" for a plain Python number.
        dtype: Of a tensor.
        value: Of a constant.
    """

    kind: str
    form: str = ""
    dtype: torch.dtype | None = None
    value: Any = None


def map_tree(fn: Callable[[Path, Any], Any], tree: Any, path: Path = ()) -> Any:
    """The same tree with ``fn(path, leaf)`` in place of each leaf.

    Tuples, named tuples, lists, mappings and dataclasses are nodes; all else is a leaf.

    Example:
        >>> map_tree(lambda path, leaf: path, ("a", {"b": 0}))
        ((0,), {'b': (1, 'b')})
    """
    if isinstance(tree, Mapping):
        items = {key: map_tree(fn, value, (*path, key)) for key, value in tree.items()}
        return type(tree)(**items) if type(tree) is not dict else items
    if isinstance(tree, tuple | list):
        items = [map_tree(fn, value, (*path, i)) for i, value in enumerate(tree)]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = [field.name for field in dataclasses.fields(tree)]
        return dataclasses.replace(
            tree, **{name: map_tree(fn, getattr(tree, name), (*path, name)) for name in names}
        )
    return fn(path, tree)


def leaves(tree: Any) -> dict[Path, Any]:
    """Each leaf by its path.

    Example:
        >>> leaves((1, [2, None]))
        {(0,): 1, (1, 0): 2, (1, 1): None}
    """
    found: dict[Path, Any] = {}

    def note(path: Path, leaf: Any) -> Any:
        found[path] = leaf
        return leaf

    map_tree(note, tree)
    return found


def skeleton(tree: Any) -> Any:
    """The tree with empty tensors: its containers, without what they hold.

    Example:
        >>> skeleton((torch.zeros(5), 1.0))
        (tensor([]), 1.0)
    """
    return map_tree(lambda _, leaf: torch.empty(0) if isinstance(leaf, Tensor) else leaf, tree)


def describe(tree: Any) -> str:
    """The tree in one line: types and shapes.

    Example:
        >>> describe((torch.zeros(2, 3), None, {"n": 4}))
        '(float32[2,3], None, {n: int})'
    """
    if isinstance(tree, Mapping):
        return "{" + ", ".join(f"{key}: {describe(value)}" for key, value in tree.items()) + "}"
    if isinstance(tree, tuple | list):
        inner = ", ".join(describe(value) for value in tree)
        return f"({inner})"
    if isinstance(tree, Tensor):
        shape = ",".join(str(size) for size in tree.shape)
        return f"{str(tree.dtype).removeprefix('torch.')}[{shape}]"
    return "None" if tree is None else type(tree).__name__
