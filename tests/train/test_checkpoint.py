import json
import re

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from torch import nn

from softvq.models import io
from train.checkpoint import load_checkpoint, load_weights, read_state, save_checkpoint


def make_parts(*, seed=0, width=3, steps=2):
    """A small net and an Adam of two groups, some steps old."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(width, 4), nn.Linear(4, 2))
    rates = zip(model, (0.1, 0.2), strict=True)
    groups = [{"params": part.parameters(), "lr": rate} for part, rate in rates]
    optimizer = torch.optim.Adam(groups, betas=(0.8, 0.9))
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, width)).sum().backward()
        optimizer.step()
    return model, optimizer


STATE = {"config": {"seed": 0}, "step": 7, "losses": [{"loss": 0.1}], "evals": []}


@pytest.fixture
def saved(tmp_path):
    model, optimizer = make_parts()
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, model, optimizer, state=STATE)
    return path


def test_weights_moments_and_groups_come_back(saved):
    expected, held = make_parts()
    model, optimizer = make_parts(seed=1, steps=0)
    load_checkpoint(saved, model, optimizer)
    before, after = expected.state_dict(), model.state_dict()
    assert [name for name in before if not torch.equal(before[name], after[name])] == []
    torch.testing.assert_close(
        optimizer.state_dict()["state"], held.state_dict()["state"], rtol=0, atol=0
    )
    rates = [(group["lr"], tuple(group["betas"])) for group in optimizer.param_groups]
    assert rates == [(0.1, (0.8, 0.9)), (0.2, (0.8, 0.9))]


def test_the_next_step_is_the_same(saved):
    def step(model, optimizer):
        optimizer.zero_grad()
        model(torch.full((1, 3), 0.5)).square().sum().backward()
        optimizer.step()
        return torch.cat([each.flatten() for each in model.parameters()])

    model, optimizer = make_parts(seed=1, steps=0)
    load_checkpoint(saved, model, optimizer)
    assert torch.equal(step(model, optimizer), step(*make_parts()))


def test_the_random_state_comes_back(tmp_path):
    model, optimizer = make_parts()
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, model, optimizer, state={})
    expected = torch.rand(5)
    torch.manual_seed(99)
    load_checkpoint(path, model, optimizer)
    assert torch.equal(torch.rand(5), expected)


def test_the_state_comes_back(saved):
    loaded = load_checkpoint(saved, *make_parts())
    assert {key: loaded[key] for key in STATE} == STATE
    assert {key: read_state(saved)[key] for key in STATE} == STATE


def test_a_measure_that_is_not_finite_comes_back(tmp_path):
    model, optimizer = make_parts()
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, model, optimizer, state={"losses": [float("nan"), float("inf")]})
    assert str(read_state(path)["losses"]) == "[nan, inf]"


def test_the_file_is_plain_safetensors(saved):
    tensors = safetensors.torch.load_file(saved)
    names = {name.split(".")[0] for name in tensors}
    assert names == {"model", "optimizer", "random"}
    with safe_open(saved, framework="pt") as file:
        config = json.loads(file.metadata()["softvq"])
    assert (config["format"], config["version"]) == ("softvq-checkpoint", 1)


def test_a_failed_write_leaves_the_old_one_whole(saved, monkeypatch):
    before = saved.read_bytes()

    def fail(tensors, path, metadata):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(io, "save_file", fail)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(saved, *make_parts(seed=1), state={})
    assert saved.read_bytes() == before
    assert [entry.name for entry in saved.parent.iterdir()] == [saved.name]


def test_weights_come_back_alone(saved):
    expected, _ = make_parts()
    model, _ = make_parts(seed=1, steps=0)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    state = load_weights(saved, model)
    assert state["step"] == 7
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.bad_input
@pytest.mark.parametrize("call", ["read", "weights", "checkpoint"])
def test_a_checkpoint_of_another_kind_is_refused(tmp_path, call):
    model, optimizer = make_parts()
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, model, optimizer, state=STATE, kind="other")
    assert read_state(path, kind="other")["step"] == 7
    calls = {
        "read": lambda: read_state(path),
        "weights": lambda: load_weights(path, model),
        "checkpoint": lambda: load_checkpoint(path, model, optimizer),
    }
    with pytest.raises(ValueError, match="is a 'other' file; 'softvq-checkpoint' was expected"):
        calls[call]()


@pytest.mark.bad_input
def test_a_checkpoint_of_another_net_is_refused(saved):
    with pytest.raises(ValueError, match=r"does not fit the model(.|\n)*0.weight"):
        load_checkpoint(saved, *make_parts(width=5))


@pytest.mark.bad_input
@pytest.mark.parametrize("call", ["load", "read"])
def test_a_file_cut_short_is_refused(saved, call):
    saved.write_bytes(saved.read_bytes()[:-10])
    message = re.escape(f"path {saved} (") + r"\d+ bytes\) is no whole safetensors file"
    with pytest.raises(ValueError, match=message):
        read_state(saved) if call == "read" else load_checkpoint(saved, *make_parts())
