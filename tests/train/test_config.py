import dataclasses
import json
import re

import pytest

from train import values as config_module
from train.config import DataConfig, MethodConfig, NetConfig, OptimConfig, RunConfig, from_json
from train.presets import PRESETS, make_preset
from train.values import override, to_json

BASE = RunConfig(preset="quick")


def make_unusual(tmp_path):
    """Every field away from its default."""
    return RunConfig(
        preset="mine",
        data=DataConfig(
            source="folder",
            path=tmp_path,
            size=48,
            channels=1,
            num_train=9,
            num_test=8,
            held_out=4,
            num_lpips=7,
            num_frechet=6,
            num_fid=5,
        ),
        net=NetConfig(hidden=32, residual_hidden=16, blocks=1, dim=8, downsampling=8, num_codes=99),
        method=MethodConfig(
            name="ema",
            lr=0.5,
            codebook_lr="5x",
            options={"decay": 0.5, "start": "uniform", "n": 3, "flag": True},
        ),
        optim=OptimConfig(
            steps=7,
            batch_size=3,
            warmup_steps=2,
            decay_from=0.5,
            beta1=0.8,
            beta2=0.9,
            loss="mse+lpips",
            lpips_weight=0.5,
            lpips_net="alex",
        ),
        seed=5,
        eval_at=(0.5, 1.0),
        log_every=3,
        checkpoint_every=4,
        precision="bf16",
    )


def test_a_config_goes_through_json_and_back(tmp_path):
    config = make_unusual(tmp_path)
    text = json.dumps(to_json(config), allow_nan=False)
    back = from_json(json.loads(text))
    assert back == config
    assert {k: type(v) for k, v in back.method.options.items()} == {
        "decay": float,
        "start": str,
        "n": int,
        "flag": bool,
    }


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_goes_through_json_and_back(name):
    config = make_preset(name)
    assert from_json(json.loads(json.dumps(to_json(config)))) == config


def test_no_field_of_the_unusual_config_is_a_default(tmp_path):
    """Otherwise the round trip above would not see a field that is dropped."""

    def equal(one, two):
        pairs = [(getattr(one, f.name), getattr(two, f.name)) for f in dataclasses.fields(one)]
        nested = [equal(a, b) for a, b in pairs if dataclasses.is_dataclass(a)]
        plain = [a == b for a, b in pairs if not dataclasses.is_dataclass(a)]
        return any(nested) or any(plain)

    assert not equal(make_unusual(tmp_path), BASE)


@pytest.mark.parametrize(
    ("assignment", "path", "value"),
    [
        ("optim.steps=10", "optim.steps", 10),
        ("steps=10", "optim.steps", 10),
        ("seed=3", "seed", 3),
        ("data=textures", "data.source", "textures"),
        ("data.num_train=none", "data.num_train", None),
        ("num_test=7", "data.num_test", 7),
        ("hidden=64", "net.hidden", 64),
        ("method.lr=1e-3", "method.lr", 0.001),
        ("method.lr=None", "method.lr", None),
        ("method.name=ema", "method.name", "ema"),
        ("eval_at=[0.5,1.0]", "eval_at", (0.5, 1.0)),
        ("eval_at=[0, 1]", "eval_at", (0.0, 1.0)),
        ("optim.decay_from=1", "optim.decay_from", 1.0),
        ("precision=bf16", "precision", "bf16"),
        ("preset=[x", "preset", "[x"),
        ('method.options={"beta": 1.5}', "method.options", {"beta": 1.5}),
    ],
    ids=str,
)
def test_an_override_reaches_its_field_in_its_type(assignment, path, value):
    before, after = to_json(BASE), override(BASE, [assignment])
    found = after
    for part in path.split("."):
        found = getattr(found, part)
    assert found == value
    assert type(found) is type(value)
    *parts, last = path.split(".")
    target = before
    for part in parts:
        target = target[part]
    target[last] = list(value) if isinstance(value, tuple) else value
    assert to_json(after) == before


@pytest.mark.parametrize(
    ("text", "value"),
    [("0.1", 0.1), ("3", 3), ("true", True), ("soft", "soft"), ("1e-3", 0.001), ("a=b", "a=b")],
    ids=str,
)
def test_an_option_of_a_method_is_read_as_what_it_looks_like(text, value):
    options = override(BASE, [f"method.options.beta={text}"]).method.options
    assert options == {"beta": value}
    assert type(options["beta"]) is type(value)


def test_overrides_add_up_and_the_last_wins():
    config = override(
        BASE,
        ["method.options.beta=0.1", "method.options.weight=1.0", "steps=10", "optim.steps=20"],
    )
    assert config.method.options == {"beta": 0.1, "weight": 1.0}
    assert config.optim.steps == 20


def test_overrides_are_checked_together():
    config = override(BASE, ["data=folder", "data.path=pictures"])
    assert str(config.data.path) == "pictures"


def test_no_override_changes_nothing_and_none_changes_the_base():
    before = to_json(BASE)
    override(BASE, ["method.options.beta=0.1", "steps=3"])
    assert to_json(BASE) == before
    assert override(BASE, []) == BASE


def test_evaluations_are_at_whole_steps_each_once():
    optim = OptimConfig(steps=16)
    assert RunConfig(preset="p", optim=optim).eval_steps() == [0, 2, 4, 8, 16]
    assert RunConfig(preset="p", optim=OptimConfig(steps=3)).eval_steps() == [0, 1, 2, 3]
    assert RunConfig(preset="p", optim=optim, eval_at=(1.0,)).eval_steps() == [16]


def test_configs_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        BASE.seed = 1  # type: ignore[misc]


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("optim.stps", "optim.steps"),
        ("net.num_code", "net.num_codes"),
        ("sed", "seed"),
        ("methods.name", "method.name"),
        ("method.options.a.b", "method.options"),
        ("method.options.", "method.options"),
    ],
)
def test_an_unknown_key_lists_the_valid_ones_and_names_the_nearest(key, near):
    with pytest.raises(ValueError, match=r"^key is") as caught:
        override(BASE, [f"{key}=1"])
    message = str(caught.value)
    assert message.startswith(f"key is {key!r}; valid are: preset, data.source, data.path, ")
    assert message.endswith(f", precision. Did you mean {near!r}?")


@pytest.mark.bad_input
def test_an_ambiguous_key_lists_the_ones_it_may_mean(monkeypatch):
    paths = ["preset", "data.size", "net.size", "seed"]
    monkeypatch.setattr(config_module, "_paths", lambda kind: paths)
    with pytest.raises(ValueError, match=r"key is 'size'; valid are: data.size, net.size."):
        override(BASE, ["size=3"])


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("steps", "override 'steps' must have the form key=value."),
        ("optim.steps=abc", "optim.steps: Input should be a valid integer, unable to parse"),
        ("optim.steps=0", "optim.steps must be a whole number of at least 1; got 0."),
        ("optim.steps=1.5", "optim.steps: Input should be a valid integer"),
        ("net.num_codes=0", "net.num_codes must be a whole number of at least 1; got 0."),
        ("net.dim=-1", "dim must be a whole number of at least 1; got -1."),
        ("net.downsampling=5", "downsampling must be 4, 8 or 16; got 5."),
        ("data=imagenet", "data.source: Input should be 'cifar10', 'folder' or 'textures'"),
        ("data.size=2", "data.size must be a whole number of at least 4; got 2."),
        ("data.num_train=0", "data.num_train must be a whole number of at least 1; got 0."),
        ("data=folder", "data.source is 'folder' and data.path is None: give a path"),
        ("data.path=x", "data.source is 'cifar10' and data.path is x: give a path"),
        ("method.lr=0", "method.lr must be a finite number > 0; got 0.0."),
        ("method.lr=-0.1", "method.lr must be a finite number > 0; got -0.1."),
        ("method.lr=nan", "method.lr must be a finite number > 0; got nan."),
        ("method.lr=fast", "method.lr: Input should be a valid number"),
        ("method.options.beta=[1]", "method.options.beta"),
        ("optim.decay_from=1.5", "optim.decay_from must be a finite number >= 0 and <= 1; got 1.5"),
        ("optim.beta1=1", "optim.beta1 must be a finite number >= 0 and <= 0.9999; got 1.0."),
        ("eval_at=[0.5]", "eval_at must end at 1.0, the whole run; got (0.5,)."),
        ("eval_at=[]", "eval_at must end at 1.0, the whole run; got ()."),
        ("eval_at=[-1,1.0]", "eval_at must be a finite number >= 0 and <= 1; got -1.0."),
        ("eval_at=1", "eval_at: Input should be a valid tuple (got '1')"),
        ("eval_at=[0.5", "eval_at: Input should be a valid tuple (got '[0.5')"),
        ("seed=-1", "seed must be a whole number of at least 0; got -1."),
        ("precision=fp8", "precision: Input should be 'auto', 'no' or 'bf16' (got 'fp8')"),
        ("log_every=0", "log_every must be a whole number of at least 1; got 0."),
        ("checkpoint_every=0", "checkpoint_every must be a whole number of at least 1; got 0."),
    ],
)
def test_a_bad_value_names_its_field(assignment, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        override(BASE, [assignment])


@pytest.mark.bad_input
def test_all_bad_values_are_told_at_once():
    with pytest.raises(ValueError, match=r"The config does not fit:\n  .*\n  ") as caught:
        override(BASE, ["optim.steps=a", "net.dim=b"])
    assert "optim.steps: " in str(caught.value)
    assert "net.dim: " in str(caught.value)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"preset": "p", "sede": 1}, "sede: Unexpected keyword argument (got 1)"),
        ({"preset": "p", "net": {"hiden": 1}}, "net.hiden: Unexpected keyword argument (got 1)"),
        ({}, "preset: "),
    ],
    ids=["top", "part", "missing"],
)
def test_a_stored_config_that_does_not_fit_names_the_key(values, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        from_json(values)
