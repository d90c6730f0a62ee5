import json

import pytest
import torch

from eval.factors import DEFAULT, FACTORS, HEADER, choose_factors, factors, list_rows
from softvq import attach
from softvq.data import load_images
from train import loop
from train.build import build_model, make_setting
from train.config import MethodConfig
from train.presets import smoke
from train.values import override

FEW = ("data.num_train=24", "data.num_test=8", "optim.steps=1", "optim.batch_size=8")


def make_entry(part, *values):
    final = {"use_hard": 0.5, "perplexity_hard": 7.0}
    seeds = [{"seed": s, "final": {**final, "psnr_hard": v}} for s, v in enumerate(values)]
    return {"label": part or DEFAULT, "how": part, "seeds": seeds}


def test_each_change_is_held_against_the_default():
    rows = list_rows({DEFAULT: make_entry("", 20.0, 21.0), "a": make_entry("loss", 19.5, 20.5)})
    assert {len(row) for row in rows} == {len(HEADER)}
    assert rows[0][-1] == ""
    assert rows[1] == ["loss", "loss", "20.00 ± 0.71", "50.0 ± 0.0", "7.0 ± 0.0", rows[1][-1]]
    assert rows[1][-1] == "-0.50 [-0.50, -0.50] *"


def test_a_change_that_ran_less_often_is_paired_by_seed():
    rows = list_rows({DEFAULT: make_entry("", 20.0, 30.0), "a": make_entry("loss", 20.25)})
    assert rows[1][-1] == "+0.25"


def test_parts_are_chosen_by_name():
    names = list(choose_factors("warm-up, loss"))
    assert names[0] == DEFAULT
    assert {FACTORS[name].part for name in names[1:]} == {"warm-up", "loss"}
    assert list(choose_factors("")) == list(FACTORS)
    with pytest.raises(ValueError, match=r"parts is 'los'; valid are: .* Did you mean 'loss'"):
        choose_factors("los")


@pytest.mark.parametrize("name", FACTORS)
def test_every_change_trains(name):
    factor = FACTORS[name]
    method = MethodConfig(options=dict(factor.options), codebook_lr=factor.codebook_lr)
    config = override(smoke(), ["optim.steps=4"])
    config = type(config)(**{**vars(config), "method": method})
    images = load_images("textures", "train", num_images=16)
    model = build_model(config, images)
    if factor.make is not None:
        model.quantizer = factor.make(make_setting(config, size=images.size))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    attach(model, optimizer, codebook_lr=factor.codebook_lr or "10x")
    batch = images.batch(torch.arange(16)).float() / 127.5 - 1
    for _ in range(4):
        out = model(batch)
        loss = (out.reconstruction - batch).square().mean() + out.quantizer.loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert torch.isfinite(loss)
    assert out.quantizer.indices.shape == (16, 8, 8)


def test_the_command_trains_pairs_and_writes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(loop, "find_commit", lambda: "abc")
    factors("smoke", FEW, parts="warm-up", out=tmp_path, seeds=2)
    written = json.loads((tmp_path / "factors.json").read_text())
    assert list(written["factors"]) == list(choose_factors("warm-up"))
    assert [run["seed"] for run in written["factors"]["no warm-up"]["seeds"]] == [0, 1]
    assert "last 4 of 24" in written["data"]
    assert "no warm-up" in capsys.readouterr().out
    factors("smoke", FEW, parts="warm-up", out=tmp_path, seeds=2)
    assert capsys.readouterr().out.count("finished before") == 8


def test_what_is_changed_here_is_not_taken_from_the_command_line(tmp_path):
    with pytest.raises(ValueError, match=r"method\.\* is what this experiment changes"):
        factors("smoke", ("method.lr=1e-3",), out=tmp_path)
