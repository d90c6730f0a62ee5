from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch

from softvq.hosts.tree import describe, leaves, map_tree, skeleton

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Record:
    a: int
    b: tuple


@pytest.mark.parametrize(
    "tree",
    [
        (1, [2, None], {"a": 3}),
        Pair(1, (2,)),
        OrderedDict(a=1, b=Pair(2, 3)),
        Record(1, (2, 3)),
        5,
    ],
    ids=["nested", "named", "ordered", "dataclass", "leaf"],
)
def test_mapping_the_identity_gives_the_same_tree(tree):
    again = map_tree(lambda _, leaf: leaf, tree)
    assert again == tree
    assert type(again) is type(tree)


def test_paths_lead_to_their_leaves():
    assert leaves({"a": Pair(1, [2])}) == {("a", 0): 1, ("a", 1, 0): 2}


def test_a_skeleton_holds_no_values():
    (empty, kept) = skeleton((torch.ones(3), "word"))
    assert empty.numel() == 0
    assert kept == "word"


def test_a_description_shows_types_and_shapes():
    assert describe([torch.zeros(2, dtype=torch.int64), None]) == "(int64[2], None)"
