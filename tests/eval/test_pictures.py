import re

import pytest
import torch

from eval.pictures import load_pictures, save_pictures


def make_pictures(**changes):
    pictures = torch.arange(2 * 3 * 4 * 4, dtype=torch.uint8).reshape(2, 3, 4, 4)
    counts = torch.tensor([3, 0, 5])
    atlas = {
        "ste/codes": torch.tensor([2, 0]),
        "ste/tokens": torch.tensor([5, 3]),
        "ste/patches": torch.zeros(2, 3, 4, 4, dtype=torch.uint8),
        "ste/vectors": torch.zeros(2, 7),
    }
    named = {"inputs": pictures, "ste/hard": pictures[:2], "ste/counts": counts, **atlas}
    return {name: each for name, each in {**named, **changes}.items() if each is not None}


def test_pictures_come_back_as_they_went(tmp_path):
    pictures = make_pictures()
    save_pictures(tmp_path, pictures)
    back = load_pictures(tmp_path)
    assert sorted(back) == sorted(pictures)
    for name in pictures:
        torch.testing.assert_close(back[name], pictures[name], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": torch.zeros(2, 3, 4, 4)}, "inputs must be uint8 of shape"),
        ({"inputs": torch.zeros(2, 2, 4, 4).byte()}, "inputs must be uint8 of shape"),
        ({"ste/soft": torch.zeros(1, 3, 4, 4).byte()}, "ste/soft must be shaped as inputs"),
        ({"ste/counts": torch.zeros(3)}, "ste/counts must be int64"),
        ({"ste/counts": torch.zeros(3).long()}, "none negative, not all 0"),
        ({"ste/counts": torch.tensor([5, -1])}, "none negative, not all 0"),
        ({"ste/medium": torch.zeros(3)}, "pictures hold 'ste/medium'; valid are"),
        ({"ste/tokens": torch.tensor([5.0, 3.0])}, "ste/tokens must be int64"),
        ({"ste/vectors": torch.zeros(2, 7).double()}, "ste/vectors must be float32"),
        ({"ste/patches": torch.zeros(2, 4, 4).byte()}, "ste/patches must be uint8"),
        ({"ste/vectors": torch.zeros(3, 7)}, r"ste must have each of codes, .*'vectors': 3"),
        ({"ste/vectors": None}, "ste must have each of codes, tokens, patches, vectors"),
        ({"ste/codes": torch.tensor([2, 3])}, "ste/codes must be different codes of those"),
        ({"ste/codes": torch.tensor([2, 2])}, "ste/codes must be different codes of those"),
        ({"ste/codes": torch.tensor([2, -1])}, "ste/codes must be int64 of shape .* negative"),
        ({"ste/counts": None}, r"got \[2, 0\] and 0 counts"),
        ({"hard": torch.zeros(2, 3, 4, 4).byte()}, "pictures hold 'hard'; valid are"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_pictures_are_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        save_pictures(tmp_path, make_pictures(**changes))
    assert not list(tmp_path.iterdir())


def test_pictures_without_inputs_are_refused(tmp_path):
    with pytest.raises(ValueError, match="pictures lack 'inputs'"):
        save_pictures(tmp_path, {"ste/counts": torch.tensor([1])})


def test_missing_and_truncated_pictures_say_what_to_do(tmp_path):
    with pytest.raises(ValueError, match=r"holds no pictures\.safetensors\. Make it with"):
        load_pictures(tmp_path)
    path = save_pictures(tmp_path, make_pictures())
    path.write_bytes(path.read_bytes()[:-1])
    message = re.escape(str(path)) + r" is cut short or damaged .*make compare"
    with pytest.raises(ValueError, match=message):
        load_pictures(tmp_path)
