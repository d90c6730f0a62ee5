import json

import pytest
import torch

from eval import bench_model
from eval.bench_model import Trainer


def test_it_times_each_method_and_writes_what_it_printed(tmp_path, capsys):
    found = bench_model.run(names=["softvq", "ema"], repeats=2, folder=tmp_path, batch=2)
    assert [each.name for each in found] == ["softvq", "ema"]
    assert found[1].ratio == 1.0
    assert found[0].ratio == pytest.approx(found[0].seconds / found[1].seconds)
    written = json.loads((tmp_path / "model.json").read_text())
    assert written["timings"][0]["seconds"] == found[0].seconds
    assert written["batch"] == 2
    assert "softvq" in capsys.readouterr().out


@pytest.mark.parametrize("name", bench_model.DEFAULT_NAMES)
def test_what_is_timed_trains_net_and_codes(name):
    trainer = Trainer(name)
    images = torch.rand(4, 3, 32, 32) * 2 - 1
    trainer.step(images)
    before = {key: value.clone() for key, value in trainer.model.state_dict().items()}
    trainer.step(images)
    moved = {
        key
        for key, value in trainer.model.state_dict().items()
        if not torch.equal(value, before[key])
    }
    assert any(key.startswith("encoder") for key in moved)
    assert any(key.startswith("decoder") for key in moved)
    assert any("codebook" in key or "embed" in key for key in moved)


@pytest.mark.bad_input
def test_an_unknown_method_is_refused(tmp_path):
    with pytest.raises(ValueError, match="method is 'softvp'; valid are: softvq"):
        bench_model.run(names=["softvp"], repeats=1, folder=tmp_path)
