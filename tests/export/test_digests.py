import hashlib

import pytest
import torch
from torch import nn

from softvq.export.digests import digest_file, digest_items, digest_tensors, plain_state


def test_the_digest_is_that_of_names_types_shapes_and_bytes():
    head = b"a float32 [2, 1]\n" + bytes.fromhex("0000803f00000040")
    tail = b"b int64 []\n" + bytes([7, 0, 0, 0, 0, 0, 0, 0])
    found = digest_tensors({"b": torch.tensor(7), "a": torch.tensor([[1.0], [2.0]])})
    assert found == hashlib.sha256(head + tail).hexdigest()


def test_strides_and_gradients_make_no_difference():
    table = torch.arange(6.0).reshape(2, 3)
    turned = nn.Parameter(table.mT.contiguous()).mT
    assert digest_tensors({"a": turned}) == digest_tensors({"a": table})


@pytest.mark.parametrize(
    "other",
    [
        {"b": torch.zeros(4)},
        {"a": torch.zeros(2, 2)},
        {"a": torch.zeros(4, dtype=torch.int32)},
        {"a": torch.tensor([0.0, 0, 0, 1e-40])},
        {"a": torch.tensor([0.0, 0, 0, -0.0])},
    ],
    ids=["name", "shape", "type", "value", "sign"],
)
def test_any_difference_shows(other):
    assert digest_tensors(other) != digest_tensors({"a": torch.zeros(4)})


def test_an_empty_tensor_counts_by_its_shape():
    assert digest_tensors({"a": torch.zeros(0, 3)}) != digest_tensors({"a": torch.zeros(0, 2)})


def test_the_digest_of_an_item_is_how_that_of_its_bytes_begins():
    items = torch.arange(12).to(torch.uint8).reshape(2, 3, 2, 1)
    whole = hashlib.sha256(b"item uint8 [3, 2, 1]\n" + bytes(range(6, 12))).digest()
    assert digest_items(items)[1].item() == int.from_bytes(whole[:8], "little", signed=True)
    assert digest_items(items)[0] != digest_items(items)[1]
    assert digest_items(items.float())[1] != digest_items(items)[1]
    assert digest_items(items[:0]).tolist() == []


def test_a_long_file_is_read_to_its_end(tmp_path):
    content = bytes(range(256)) * 5000
    (tmp_path / "f").write_bytes(content)
    assert digest_file(tmp_path / "f") == hashlib.sha256(content).hexdigest()


@pytest.mark.compiled
def test_compiling_a_part_leaves_the_names():
    model = nn.Sequential(nn.Linear(2, 2))
    plain = list(plain_state(model))
    model[0] = torch.compile(model[0])
    assert list(plain_state(model)) == plain
