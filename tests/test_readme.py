"""The README's Python blocks run as they stand."""

import re
from pathlib import Path

import pytest
import torch

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("block", range(len(BLOCKS)))
def test_block_runs(block):
    torch.manual_seed(0)
    names = {}
    exec(compile(BLOCKS[block], f"README block {block}", "exec"), names)
    if block == 0:
        assert names["tokens"].shape == (8, 8, 8)
        assert names["vq"].updates == 20


def test_has_blocks():
    assert BLOCKS
