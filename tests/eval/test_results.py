import json
import math

import pytest
import torch

from eval.results import (
    HARD_MEASURES,
    SOFT_MEASURES,
    load_results,
    save_results,
)


def make_record(**changes):
    measures = dict.fromkeys(HARD_MEASURES, 1.0) | dict.fromkeys(SOFT_MEASURES)
    return {"images": 0, "step": 0, **measures, **changes}


def make_results(**changes):
    record = make_record()
    run = {"seed": 0, "evals": [record], "final": record, "warnings": []}
    return {
        "methods": {"ste": {"seeds": [run], "label": "STE", "how": "plain"}},
        "config": {"dim": 64},
        "versions": {"torch": "2.5"},
        "device": "cpu",
        "commit": "abc",
        "command": "make compare",
        "data": "textures",
        **changes,
    }


def test_results_come_back_as_they_went(tmp_path):
    results = make_results()
    path = save_results(tmp_path / "new", results)
    assert path == tmp_path / "new" / "results.json"
    assert load_results(tmp_path / "new") == {**results, "format": 1}
    assert [entry.name for entry in path.parent.iterdir()] == ["results.json"]


def test_a_diverged_run_keeps_its_nan_and_the_file_stays_json(tmp_path):
    results = make_results()
    run = results["methods"]["ste"]["seeds"][0]
    run["final"] = make_record(psnr_hard=math.nan, perplexity_hard=math.inf)
    run["train"] = {"loss": [1.0, math.nan], "step": [0, 1]}

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    json.loads(save_results(tmp_path, results).read_text(), parse_constant=refuse)
    back = load_results(tmp_path)["methods"]["ste"]["seeds"][0]
    assert math.isnan(back["final"]["psnr_hard"])
    assert back["final"]["perplexity_hard"] == math.inf
    assert math.isnan(back["train"]["loss"][1])


def test_text_that_reads_nan_stays_text(tmp_path):
    save_results(tmp_path, make_results(device="nan"))
    assert load_results(tmp_path)["device"] == "nan"


def test_missing_results_say_how_to_make_them(tmp_path):
    with pytest.raises(ValueError, match=r"holds no results\.json\. Make it with: make compare"):
        load_results(tmp_path)


@pytest.mark.parametrize("kept", [0, 1, 200])
def test_truncated_results_are_refused(tmp_path, kept):
    path = save_results(tmp_path, make_results())
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"results\.json is cut short or damaged .*make compare"):
        load_results(tmp_path)


@pytest.mark.parametrize("text", ['{"format": 2}', "{}", "[]"])
def test_another_format_is_refused(tmp_path, text):
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(ValueError, match=r"has format (2|None); this version reads format 1"):
        load_results(tmp_path)


def drop(*path):
    def change(results):
        *above, last = path
        for key in above:
            results = results[key]
        del results[last]

    return change


def put(value, *path):
    def change(results):
        *above, last = path
        for key in above:
            results = results[key]
        results[last] = value

    return change


RUN = ("methods", "ste", "seeds", 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put({}, "methods"), "results.methods must be a dict that is not empty"),
        (drop("device"), "results lacks 'device'"),
        (put(3, "config"), "results.config must be of type dict; got 3"),
        (drop("methods", "ste", "how"), "methods.ste lacks 'how'"),
        (put([], "methods", "ste", "seeds"), "methods.ste.seeds is empty"),
        (put("run", *RUN), r"methods.ste.seeds\[0\] must be a dict; got str"),
        (put(True, *RUN, "seed"), r"seeds\[0\].seed must be of type int; got True"),
        (put([], *RUN, "evals"), r"seeds\[0\].evals is empty"),
        (drop(*RUN, "final", "use_soft"), r"seeds\[0\].final lacks 'use_soft'"),
        (drop(*RUN, "evals", 0, "images"), r"evals\[0\] lacks 'images'"),
        (put({"loss": [1.0], "step": []}, *RUN, "train"), "as many numbers in loss as in step"),
        (put({"loss": [1.0]}, *RUN, "train"), r"seeds\[0\].train lacks 'step'"),
        (put([], *RUN, "conditions"), r"seeds\[0\].conditions must be of type dict; got \[\]"),
        (put({"lpips": 1}, *RUN, "conditions"), r"conditions.lpips must be of type dict; got 1"),
        (put({"fid_hard": 1}, *RUN, "missing"), r"missing.fid_hard must be of type str; got 1"),
        (put("x", *RUN, "evals", 0, "seconds"), r"evals\[0\].seconds must be a number or None"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_lacks_an_entry_is_neither_written_nor_read(tmp_path, change, message):
    results = json.loads(json.dumps(make_results()))
    change(results)
    with pytest.raises(ValueError, match=message):
        save_results(tmp_path, results)
    assert not list(tmp_path.iterdir())
    (tmp_path / "results.json").write_text(json.dumps({**results, "format": 1}))
    with pytest.raises(ValueError, match=message + r".*make compare"):
        load_results(tmp_path)


def test_a_seed_twice_is_refused(tmp_path):
    results = make_results()
    results["methods"]["ste"]["seeds"] *= 2
    with pytest.raises(ValueError, match=r"holds a seed twice: \[0, 0\]"):
        save_results(tmp_path, results)


def test_what_json_cannot_hold_is_refused(tmp_path):
    with pytest.raises(ValueError, match="plain JSON values only"):
        save_results(tmp_path, make_results(config={"dim": torch.zeros(1)}))
    assert not list(tmp_path.iterdir())
