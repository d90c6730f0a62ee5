"""Case 8: files that release 0.1 wrote are read by every later one, with the same answers.

The files in ``release_0_1`` stay as they are; a format that changes gets files of its own beside
them.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from softvq.models import load_model

FILES = Path(__file__).parent / "release_0_1"


@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_a_model_of_release_0_1_gives_its_answers(kind):
    expected = load_file(FILES / "expected.safetensors")
    model = load_model(FILES / f"{kind}.safetensors").eval()
    vq, grid = model.quantizer, torch.arange(8).reshape(1, 2, 4)
    assert vq.is_started
    assert torch.equal(vq.updates, expected[f"{kind}.updates"])
    assert torch.equal(vq.codes(grid), expected[f"{kind}.codes"])
    with torch.no_grad():
        torch.testing.assert_close(model.decode(grid), expected[f"{kind}.images"])
