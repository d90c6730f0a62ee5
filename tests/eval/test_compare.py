import dataclasses
import json
import math
import re

import pytest
import torch
from PIL import Image

from eval import compare as compare_module
from eval.compare import ALL_METHODS, DEFAULT_METHODS, GROUPS, Comparison, choose_methods
from eval.pictures import ATLAS_PARTS, load_pictures
from eval.report import write_report
from eval.results import HARD_MEASURES, SOFT_MEASURES, load_results
from softvq.models import load_model
from train import loop
from train.loop import CHECKPOINT, Run
from train.methods import METHODS
from train.presets import PRESETS, smoke
from train.values import override, to_json

FEW = ("data.num_train=32", "data.num_test=20", "optim.steps=8", "log_every=4")
METHODS_HERE = ("softvq", "ema", "lucid-ema")


@pytest.fixture(scope="module")
def make_comparison():
    def make(folder, *changes, methods=METHODS_HERE, seeds=2, fresh=False):
        config = override(smoke(), [*FEW, *changes])
        command = "python -m eval compare smoke"
        return Comparison(
            config, list(methods), seeds=seeds, folder=folder, command=command, fresh=fresh
        )

    return make


@pytest.fixture(scope="module")
def compared(make_comparison, tmp_path_factory):
    """A finished comparison: the object, its results and its folder."""
    folder = tmp_path_factory.mktemp("compare") / "out"
    comparison = make_comparison(folder)
    results = comparison.run()
    return comparison, results, folder


def without_clock(results):
    """Results as JSON, less what differs between two runs of the same thing."""
    plain = json.loads(json.dumps({key: results[key] for key in ("methods", "config", "data")}))
    for method in plain["methods"].values():
        for run in method["seeds"]:
            for record in [*run["evals"], run["final"]]:
                record["seconds"] = None
    return plain


def test_the_file_has_the_promised_fields(compared):
    found = json.loads((compared[2] / "results.json").read_text())
    assert list(found["methods"]) == list(METHODS_HERE)
    assert found.keys() >= {"methods", "config", "versions", "device", "commit"}
    assert found["config"] == to_json(override(smoke(), list(FEW)))
    assert found["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert found["device"].startswith("CPU ")
    assert re.fullmatch(r"[0-9a-f]{12}(-dirty)?|unknown", found["commit"])
    assert found["command"] == "python -m eval compare smoke"
    assert found["data"].count("textures (drawn, not photographs)") == 2


@pytest.mark.parametrize("name", METHODS_HERE)
def test_each_run_has_the_promised_measures(compared, name):
    runs = json.loads((compared[2] / "results.json").read_text())["methods"][name]["seeds"]
    assert [run["seed"] for run in runs] == [0, 1]
    for_all = [record for run in runs for record in run["evals"]]
    promised = {"images", *HARD_MEASURES, *SOFT_MEASURES}
    assert [record.keys() >= promised for record in for_all] == 10 * [True]
    shares = [record[key] for record in for_all for key in ("use_hard",)]
    assert 0 < min(shares) <= max(shares) <= 1
    hard = [record[key] for record in for_all for key in HARD_MEASURES]
    assert all(map(math.isfinite, hard))
    soft = [record[key] for record in for_all for key in SOFT_MEASURES]
    assert {value is None for value in soft} == {name != "softvq"}
    assert [run["final"] for run in runs] == [run["evals"][-1] for run in runs]


@pytest.mark.parametrize("name", METHODS_HERE)
def test_measures_are_taken_at_the_promised_shares_of_the_run(compared, name):
    images = 8 * 16
    for_each = [run["evals"] for run in compared[1]["methods"][name]["seeds"]]
    expected = [0, images // 8, images // 4, images // 2, images]
    assert [[record["images"] for record in evals] for evals in for_each] == 2 * [expected]


def test_the_file_is_what_was_returned(compared):
    _, results, folder = compared
    assert load_results(folder) == {**json.loads(json.dumps(results)), "format": 1}


def test_pictures_are_of_the_first_seed(compared):
    comparison, _, folder = compared
    pictures = load_pictures(folder)
    names = {"inputs", "softvq/soft", *(f"{name}/hard" for name in METHODS_HERE)}
    parts = ("counts", *ATLAS_PARTS)
    names |= {f"{name}/{part}" for name in METHODS_HERE for part in parts}
    assert pictures.keys() == names
    assert torch.equal(pictures["inputs"], comparison.images.test.batch(torch.arange(16)))
    assert pictures["ema/counts"].sum() == 20 * 64
    run = Run(comparison._configure("ema", 0), images=comparison.images, quiet=True)
    result = run.train()
    assert torch.equal(pictures["ema/counts"], result.counts)
    # All codes are shown, with the patches of all test pictures.
    assert torch.equal(pictures["ema/codes"], torch.arange(32))
    assert torch.equal(pictures["ema/tokens"], result.counts)
    codebook = result.model.quantizer.codebook.detach()
    torch.testing.assert_close(pictures["ema/vectors"], codebook, rtol=0, atol=0)


@pytest.mark.parametrize("name", METHODS_HERE)
def test_a_run_is_the_one_that_training_alone_gives(compared, name):
    comparison, results, _ = compared
    config = dataclasses.replace(
        comparison.config, seed=1, method=dataclasses.replace(comparison.config.method, name=name)
    )
    evals = Run(config, quiet=True).train().evals
    found = results["methods"][name]["seeds"][1]["evals"]
    assert [{**each, "seconds": 0} for each in found] == [{**each, "seconds": 0} for each in evals]


def test_the_second_time_finished_runs_are_taken_as_they_are(
    make_comparison, monkeypatch, tmp_path
):
    monkeypatch.setattr(loop, "find_commit", lambda: "abc")
    first = make_comparison(tmp_path, seeds=1).run()
    monkeypatch.setattr(Run, "_step", lambda *arguments: pytest.fail("trained again"))
    second = make_comparison(tmp_path, seeds=1).run()
    assert second["methods"] == first["methods"]
    pictures = load_pictures(tmp_path)
    assert pictures["softvq/soft"].shape == pictures["inputs"].shape


def test_a_comparison_that_was_stopped_goes_on(make_comparison, compared, monkeypatch, tmp_path):
    monkeypatch.setattr(loop, "find_commit", lambda: "abc")
    step, trained = Run._step, []

    def stop(run, number, journal):
        step(run, number, journal)
        if run.config.method.name == "ema" and number == 5:
            raise KeyboardInterrupt

    def count(run, number, journal):
        trained.append((run.config.method.name, run.config.seed, number))
        step(run, number, journal)

    monkeypatch.setattr(Run, "_step", stop)
    with pytest.raises(KeyboardInterrupt):
        make_comparison(tmp_path, "checkpoint_every=4", seeds=1).run()
    assert list(load_results(tmp_path)["methods"]) == ["softvq"]
    monkeypatch.setattr(Run, "_step", count)
    results = make_comparison(tmp_path, "checkpoint_every=4", seeds=1).run()
    expected = [("ema", 0, number) for number in range(4, 8)]
    assert trained == expected + [("lucid-ema", 0, number) for number in range(8)]
    found, whole = without_clock(results)["methods"], without_clock(compared[1])["methods"]
    assert [found[name]["seeds"][0]["evals"] for name in METHODS_HERE] == [
        whole[name]["seeds"][0]["evals"] for name in METHODS_HERE
    ]


@pytest.mark.parametrize("reason", ["fresh", "changed code"])
def test_what_is_not_the_same_is_trained_again(make_comparison, monkeypatch, tmp_path, reason):
    monkeypatch.setattr(loop, "find_commit", lambda: "abc")
    make_comparison(tmp_path, methods=["ema"], seeds=1).run()
    step, trained = Run._step, []

    def count(run, number, journal):
        trained.append(number)
        step(run, number, journal)

    monkeypatch.setattr(Run, "_step", count)
    if reason == "changed code":
        monkeypatch.setattr(loop, "find_commit", lambda: "abc-dirty")
    make_comparison(tmp_path, methods=["ema"], seeds=1, fresh=reason == "fresh").run()
    assert trained == list(range(8))


def test_a_run_of_other_settings_is_not_lost(make_comparison, tmp_path):
    make_comparison(tmp_path, methods=["ema"], seeds=1).run()
    before = (tmp_path / "runs" / "ema-seed0" / "checkpoint.safetensors").read_bytes()
    with pytest.raises(ValueError, match=r"ema seed 0.*net\.num_codes was .* and is 16.*FRESH=1"):
        make_comparison(tmp_path, "net.num_codes=16", methods=["ema"], seeds=1)
    assert (tmp_path / "runs" / "ema-seed0" / "checkpoint.safetensors").read_bytes() == before
    make_comparison(tmp_path, "net.num_codes=16", methods=["ema"], seeds=1, fresh=True).run()


def test_our_models_are_left_beside_their_checkpoints(compared):
    path = compared[2] / "runs" / "softvq-seed0" / "model.safetensors"
    assert load_model(path).quantizer.is_started


@pytest.mark.filterwarnings("ignore:The codes are in their warm-up")
def test_a_method_that_diverges_stops_no_other(make_comparison, tmp_path):
    results = make_comparison(tmp_path, "method.lr=1e18", seeds=1).run()
    finals = [method["seeds"][0]["final"] for method in results["methods"].values()]
    assert [math.isnan(final["psnr_hard"]) for final in finals] == 3 * [True]
    load_results(tmp_path)
    load_pictures(tmp_path)


def test_grey_pictures_in_a_folder_of_any_size(make_comparison, tmp_path):
    for place in range(60):
        picture = Image.linear_gradient("L").rotate(6 * place).resize((40, 30 + place % 3))
        picture.save(tmp_path / f"{place:02d}.png")
    changes = ("data=folder", f"data.path={tmp_path}", "channels=1", "size=20")
    comparison = make_comparison(
        tmp_path / "out", *changes, "num_train=32", "downsampling=8", seeds=1,
        methods=["softvq", "ema"],
    )  # fmt: skip
    results = comparison.run()
    pictures = load_pictures(tmp_path / "out")
    assert pictures["inputs"].shape[1:] == (1, 20, 20)
    assert pictures["softvq/hard"].shape == pictures["inputs"].shape
    assert pictures["softvq/counts"].sum() == 3 * 3 * len(comparison.images.test)
    assert results["data"].startswith(f"folder {tmp_path.name} train")
    write_report(tmp_path / "out")


@pytest.mark.parametrize(
    ("names", "preset", "expected"),
    [
        ("", "quick", ["softvq", "ste", "ema", "lucid-ema"]),
        ("", "smoke", ["softvq", "ema", "lucid-ema"]),
        ("", "reference", list(ALL_METHODS)),
        ("", "full", list(ALL_METHODS)),
        ("ema, softvq", "quick", ["ema", "softvq"]),
        ("ema,ema,,softvq,", "quick", ["ema", "softvq"]),
        ("all", "quick", list(ALL_METHODS)),
        (
            "softvq,rivals",
            "quick",
            ["softvq", *(name for name in ALL_METHODS if not name.startswith("softvq"))],
        ),
        (
            "ablation,ema",
            "smoke",
            [
                *(f"ddcl-{step}" for step in ("literal", "entropy", "revival", "energy", "usage")),
                *(
                    "ddcl-two",
                    "ddcl-rate",
                    "ddcl-blurred",
                    "ddcl-one",
                    "ddcl-unit",
                    "softvq",
                    "ema",
                ),
            ],
        ),
    ],
)
def test_methods_are_those_asked_for(names, preset, expected):
    assert choose_methods(names, preset) == expected


def test_every_method_and_preset_named_here_exists():
    assert {*ALL_METHODS, *GROUPS["ablation"]} == set(METHODS)
    assert not set(GROUPS) & set(METHODS)
    assert set(DEFAULT_METHODS) <= set(PRESETS)


@pytest.mark.bad_input
def test_an_unknown_method_lists_the_valid_ones():
    with pytest.raises(
        ValueError, match=r"method is 'sofvq'; valid are: softvq, .*Did you mean 'so"
    ):
        choose_methods("ema,sofvq", "quick")


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ([], {"seeds": 0}, "seeds must be a whole number of at least 1; got 0."),
        ([], {"methods": ["softvq", "lucid-fsq"]}, "num_codes for FSQ is '32'; valid are: 512"),
        (["method.options.beta=0.1"], {}, "method.options {'beta': 0.1} do not fit method 'ema'"),
        (["optim.batch_size=33"], {}, "batch_size is 33, but there are only 32 training images."),
    ],
    ids=["seeds", "FSQ", "options", "batch"],
)
def test_what_cannot_be_is_told_before_anything_is_trained(
    make_comparison, tmp_path, monkeypatch, changes, options, message
):
    monkeypatch.setattr(Run, "train", lambda run: pytest.fail("trained"))
    with pytest.raises(ValueError, match=re.escape(message)):
        make_comparison(tmp_path / "out", *changes, **options).run()
    assert not (tmp_path / "out").exists()


@pytest.mark.bad_input
def test_a_checkpoint_cut_short_is_told(make_comparison, tmp_path):
    path = tmp_path / "runs" / "softvq-seed0" / CHECKPOINT
    path.parent.mkdir(parents=True)
    path.write_bytes(b"half")
    with pytest.raises(ValueError, match=re.escape(f"path {path} (4 bytes) is no whole")):
        make_comparison(tmp_path).run()


def test_results_are_written_after_each_run(make_comparison, tmp_path, monkeypatch):
    written = []
    save = compare_module.save_results

    def watch(folder, results):
        written.append([len(method["seeds"]) for method in results["methods"].values()])
        return save(folder, results)

    monkeypatch.setattr(compare_module, "save_results", watch)
    make_comparison(tmp_path, "optim.steps=1", methods=["softvq", "ema"]).run()
    assert written == [[1], [1, 1], [2, 1], [2, 2]]
