import json
import math

import pytest

from eval.tune import Tuning
from train import loop
from train.build import build_model
from train.images import ImagePair
from train.loop import Run
from train.methods import METHODS
from train.presets import smoke
from train.values import override

FEW = ("data.num_train=40", "data.num_test=8", "optim.steps=2", "optim.batch_size=8")


def make_config(*changes):
    return override(smoke(), [*FEW, *changes])


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """The folder of a finished tuning, its best settings and what was printed."""
    folder = tmp_path_factory.mktemp("tune")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "find_commit", lambda: "abc")
        best = Tuning("ema", make_config(), seeds=1, folder=folder).run()
    return folder, best, json.loads((folder / "tuned.json").read_text())


def test_no_test_image_is_seen(tuned):
    _, _, written = tuned
    assert "last 8 of 40" in written["data"]


def test_each_factor_is_tried_at_three_values_around_the_best_so_far(tuned):
    _, best, written = tuned
    trials = written["trials"]
    assert [trial["factor"] for trial in trials] == 3 * ["lr"] + 3 * ["commitment"] + 3 * [
        "threshold"
    ]
    assert [trial["value"] for trial in trials[:3]] == [0.002, 0.004, 0.008]
    settings = {"lr": 0.004, "commitment": 0.25, "threshold": 0.2}
    for factor, tried in zip(settings, (trials[:3], trials[3:6], trials[6:]), strict=True):
        assert [t["settings"] for t in tried] == [{**settings, factor: t["value"]} for t in tried]
        settings[factor] = max(tried, key=lambda trial: trial["psnr_hard"])["value"]
    assert settings == best == written["best"]
    assert all(math.isfinite(trial["psnr_hard"]) for trial in trials)


def test_the_file_says_where_it_comes_from(tuned):
    written = tuned[2]
    assert written["method"] == "ema"
    assert "last 8 of 40" in written["data"]
    assert written.keys() >= {"command", "commit", "versions", "device", "seeds"}


def test_the_second_time_nothing_is_trained(tuned, monkeypatch, capsys):
    folder, best, written = tuned
    monkeypatch.setattr(loop, "find_commit", lambda: "abc")
    monkeypatch.setattr(Run, "_step", lambda *arguments: pytest.fail("trained again"))
    assert Tuning("ema", make_config(), seeds=1, folder=folder).run() == best
    assert json.loads((folder / "tuned.json").read_text())["trials"] == written["trials"]
    printed = capsys.readouterr().out
    assert f"Best: lr={best['lr']:g}, commitment={best['commitment']:g}" in printed


def test_a_run_that_diverges_is_not_the_best(tmp_path):
    """At a rate of 1e18 no number is left."""
    tuning = Tuning("ema", make_config("optim.warmup_steps=0"), seeds=1, folder=tmp_path)
    tuning.factors = {"lr": (1e18, 1e-3)}
    assert tuning.run() == {"lr": 1e-3}
    trials = json.loads((tmp_path / "tuned.json").read_text())["trials"]
    assert [trial["psnr_hard"] == "nan" for trial in trials] == [False, True]


def describe(quantizer):
    """What its options have set."""
    if hasattr(quantizer, "config"):
        return quantizer.config()
    inner = getattr(quantizer, "inner", quantizer)
    inner = inner.layers[0] if hasattr(inner, "layers") else inner  # stages are all alike
    kept = {key: each for key, each in vars(inner).items() if isinstance(each, float | int | tuple)}
    if hasattr(inner, "_codebook"):
        kept["dead"] = inner._codebook.threshold_ema_dead_code
    return kept


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.tuned])
def test_the_first_value_of_each_is_the_methods_own(name):
    config = make_config("net.num_codes=512", f"method.name={name}")
    images = ImagePair(config).train
    own = describe(build_model(config, images).quantizer)
    for option, values in METHODS[name].tuned.items():
        found = [
            describe(
                build_model(override(config, [f"method.options.{option}={v}"]), images).quantizer
            )
            for v in values
        ]
        assert found[0] == own
        assert found[1] != own
        assert found[2] != own
        assert len(values) == 3


@pytest.mark.bad_input
@pytest.mark.parametrize("change", ["method.options.beta=1", "method.name=ste"])
def test_what_tuning_sets_is_refused(tmp_path, change):
    with pytest.raises(ValueError, match="are what tuning sets"):
        Tuning("ema", make_config(change), seeds=1, folder=tmp_path)
