import math
import statistics

import pytest

from eval.results import HARD_MEASURES, SOFT_MEASURES
from eval.table import (
    NO_VALUE,
    compare_paired,
    describe_difference,
    find_t_quantile,
    has_measure,
    summarise,
    trace_curve,
)


def make_run(seed, **measures):
    blank = dict.fromkeys(HARD_MEASURES, 1.0) | dict.fromkeys(SOFT_MEASURES)
    record = {"images": 8, "step": 1, **blank, **measures}
    return {"seed": seed, "evals": [record], "final": record, "warnings": []}


def make_method(label, measure, *values, **same):
    runs = [make_run(seed, **same, **{measure: value}) for seed, value in enumerate(values)]
    return {"seeds": runs, "label": label, "how": f"how {label} was set"}


def make_results(**methods):
    return {"methods": methods, "data": "textures"}


def find_cell(results, name, measure):
    summary = summarise(results)
    place = [(column.measure) for column in summary.columns].index(measure)
    return next(row for row in summary.rows if row.name == name).cells[place]


def test_mean_and_deviation_are_the_statistics_of_the_seeds():
    values = (20.1, 20.4, 21.3)
    cell = find_cell(make_results(a=make_method("A", "psnr_hard", *values)), "a", "psnr_hard")
    assert cell.mean == pytest.approx(statistics.mean(values))
    assert cell.text == f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"
    assert cell.text == "20.60 ± 0.62"


def test_one_seed_has_no_deviation():
    assert find_cell(make_results(a=make_method("A", "use_hard", 0.987)), "a", "use_hard") == (
        98.7,
        "98.7",
        False,
    )


@pytest.mark.parametrize(
    ("measure", "values", "best"),
    [
        ("psnr_hard", (20.0, 21.0, 19.0), "b"),
        ("seconds", (20.0, 21.0, 19.0), ""),
        ("lpips_alex_hard", (20.0, 21.0, 19.0), "c"),
        ("perplexity_hard", (20.0, 21.0, math.nan), "b"),
        ("psnr_hard", (21.001, 21.004, 19.0), "ab"),
        ("use_hard", (1.0, 1.0, 1.0), ""),
        ("distinct_codes", (20.0, 21.0, 19.0), ""),
        ("use_soft", (0.9, 1.0, None), ""),
        ("psnr_soft", (20.0, 21.0, None), ""),
    ],
)
def test_the_best_as_printed_is_marked_where_there_is_a_better(measure, values, best):
    methods = {
        name: make_method(name, measure, value) for name, value in zip("abc", values, strict=True)
    }
    results = make_results(**methods)
    assert "".join(name for name in methods if find_cell(results, name, measure).best) == best


def test_a_diverged_seed_is_shown_and_not_averaged_away():
    results = make_results(a=make_method("A", "psnr_hard", 20.0, math.nan))
    assert find_cell(results, "a", "psnr_hard").text == "nan"


def test_hard_columns_come_first_and_soft_ones_only_where_there_are_any():
    soft = dict.fromkeys(SOFT_MEASURES, 0.5)
    hard_only = make_results(a=make_method("A", "psnr_hard", 1.0))
    both = make_results(
        a=make_method("A", "psnr_hard", 1.0), s=make_method("S", "psnr_hard", 1.0, **soft)
    )
    assert [column.soft for column in summarise(hard_only).columns] == [False] * 6
    assert [column.soft for column in summarise(both).columns] == [False] * 6 + [True] * 6
    assert find_cell(both, "a", "entropy") == (None, NO_VALUE, False)


def test_measures_that_not_every_run_has_are_columns_only_where_one_has_them():
    plain = make_method("A", "psnr_hard", 1.0)
    seen = make_method("B", "lpips_alex_hard", 0.25, 0.35, bits_per_token=9.0, ssim_hard=0.5)
    blank = make_method("C", "lpips_alex_hard", None, bits_per_token=9.0, ssim_hard=0.75)
    results = make_results(a=plain, b=seen, c=blank)
    titles = [column.title for column in summarise(results).columns]
    assert titles[4:7] == ["SSIM", "LPIPS alex", "Bits a token"]
    assert find_cell(results, "b", "lpips_alex_hard").text == "0.3000 ± 0.0707"
    assert find_cell(results, "a", "lpips_alex_hard") == (None, NO_VALUE, False)
    assert find_cell(results, "c", "lpips_alex_hard") == (None, NO_VALUE, False)
    assert find_cell(results, "c", "ssim_hard").best
    assert not find_cell(results, "b", "bits_per_token").best
    assert "LPIPS alex" not in [c.title for c in summarise(make_results(a=plain)).columns]


def test_less_is_better_where_a_distance_is_measured():
    near, far = (make_method(name, "fd_vgg16_hard", value) for name, value in (("A", 2), ("B", 3)))
    results = make_results(a=near, b=far)
    assert find_cell(results, "a", "fd_vgg16_hard").best
    assert not find_cell(results, "b", "fd_vgg16_hard").best


# From the tables of Student's t, two-sided 95 %.
@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.706), (2, 4.303), (4, 2.776), (10, 2.228), (30, 2.042), (40, 2.021), (120, 1.980)],
)
def test_t_quantile(freedom, quantile):
    assert find_t_quantile(freedom) == pytest.approx(quantile, abs=6e-4)


def test_the_difference_is_paired_by_seed():
    ours = make_method("S", "psnr_hard", 20.0, 22.0, 24.0)
    theirs = make_method("R", "psnr_hard", 19.9, 21.8, 23.7)
    theirs["seeds"].reverse()
    theirs["seeds"].append(make_run(9, psnr_hard=99.0))
    [difference] = compare_paired(make_results(rival=theirs, softvq=ours))
    half = 4.3027 * 0.1 / math.sqrt(3)
    assert difference.seeds == 3
    assert difference.mean == pytest.approx(0.2)
    assert difference.low == pytest.approx(0.2 - half, abs=1e-6)
    assert difference.high == pytest.approx(0.2 + half, abs=1e-6)
    assert not difference.claimed
    assert describe_difference(difference) == (
        "softvq minus R: +0.200 dB, 95 % interval [-0.048, +0.448], 3 seeds: no difference claimed"
    )


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [((2.0, 2.001), "softvq is better"), ((0.0, 0.001), "R is better"), ((1.0, 3.0), "no diff")],
)
def test_a_difference_is_claimed_only_where_the_interval_excludes_zero(ours, verdict):
    results = make_results(
        softvq=make_method("S", "psnr_hard", *ours), r=make_method("R", "psnr_hard", 1.0, 1.0)
    )
    [difference] = compare_paired(results)
    assert f": {verdict}" in describe_difference(difference)


def test_one_seed_claims_nothing():
    results = make_results(
        softvq=make_method("S", "psnr_hard", 9.0), r=make_method("R", "psnr_hard", 1.0)
    )
    [difference] = compare_paired(results)
    assert not difference.claimed
    assert "+8.000 dB, 1 seed, no interval: no difference claimed" in describe_difference(
        difference
    )


def test_the_strongest_rival_comes_first_and_a_diverged_one_last():
    rivals = {"weak": 1.0, "broken": math.nan, "strong": 3.0}
    methods = {name: make_method(name, "psnr_hard", value) for name, value in rivals.items()}
    results = make_results(softvq=make_method("S", "psnr_hard", 2.0), **methods)
    assert [d.rival for d in compare_paired(results)] == ["strong", "weak", "broken"]


def test_without_the_base_or_a_shared_seed_nothing_is_compared():
    rival = make_method("R", "psnr_hard", 1.0)
    assert compare_paired(make_results(r=rival)) == []
    base = {"seeds": [make_run(5)], "label": "S", "how": ""}
    assert compare_paired(make_results(softvq=base, r=rival)) == []


def test_a_curve_keeps_to_what_every_seed_has():
    runs = [
        {"evals": [{"images": 0, "use_hard": 0.2}, {"images": 8, "use_hard": 0.4}]},
        {"evals": [{"images": 8, "use_hard": 0.6}, {"images": 9, "use_hard": None}]},
    ]
    curve = trace_curve({"seeds": runs}, "use_hard")
    assert curve.images == [8]
    assert curve.mean == pytest.approx([0.5])
    assert curve.deviation == pytest.approx([statistics.stdev([0.4, 0.6])])
    assert not has_measure({"methods": {"a": {"seeds": runs}}}, "entropy")
