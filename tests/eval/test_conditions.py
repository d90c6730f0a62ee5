import pytest

from eval.conditions import HEADINGS, describe_conditions, list_conditions

PIXELS = {
    "low": -1.0,
    "high": 1.0,
    "dtype": "float32",
    "size": "32 x 32",
    "crop": "none",
    "resize": "none",
    "images": 10000,
    "net": "none",
}
TOKENS = {"images": 10000, "tokens": 640000}


def make_results(*methods):
    """Each method as (label, conditions, missing), one run."""
    found = {}
    for label, conditions, missing in methods:
        run = {"seed": 0, "conditions": conditions, "missing": missing}
        found[label] = {"seeds": [run, run], "label": label, "how": ""}
    return {"methods": found}


def test_every_field_has_a_heading_and_is_shown():
    cells = describe_conditions({**PIXELS, "net": "alex", "against": "their inputs"})
    assert len(cells) == len(HEADINGS) - 1
    assert dict(zip(HEADINGS[1:], cells, strict=True)) == {
        "Compared by": "alex, against their inputs",
        "Range": "-1 to 1",
        "Type": "float32",
        "Size": "32 x 32",
        "Crop": "none",
        "Resized to": "none",
        "Pictures": "10,000",
        "Tokens": "\N{EN DASH}",
    }
    assert describe_conditions(TOKENS)[-2:] == ("10,000", "640,000")


def test_measures_of_the_same_conditions_share_a_line_in_the_order_of_the_columns():
    taken = {
        "use_soft": TOKENS,
        "use_hard": TOKENS,
        "lpips_alex_hard": {**PIXELS, "net": "alex"},
        "psnr_soft": PIXELS,
        "psnr_hard": PIXELS,
        "temperature": TOKENS,
    }
    rows = list_conditions(make_results(("A", taken, {}), ("B", {"psnr_hard": PIXELS}, {})))
    assert [row.measures for row in rows] == [
        "PSNR dB (hard, soft)",
        "Use % (hard, soft)",
        "LPIPS alex (hard)",
    ]
    assert [row.missing for row in rows] == 3 * [None]


def test_methods_are_named_where_a_measure_was_not_taken_alike():
    half = {**PIXELS, "dtype": "bfloat16"}
    results = make_results(
        ("A", {"psnr_hard": PIXELS}, {}),
        ("B", {"psnr_hard": half}, {}),
        ("C", {"psnr_hard": PIXELS}, {}),
    )
    rows = {row.measures: row.cells[2] for row in list_conditions(results)}
    assert rows == {
        "PSNR dB (hard of A and C)": "float32",
        "PSNR dB (hard of B)": "bfloat16",
    }


def test_what_is_not_available_comes_last_with_its_reason():
    missing = {"fid_hard": "no network", "rfid_hard": "no network", "ms_ssim_hard": "too small"}
    rows = list_conditions(make_results(("A", {"psnr_hard": PIXELS}, missing)))
    assert [(row.measures, row.missing) for row in rows] == [
        ("PSNR dB (hard)", None),
        ("MS-SSIM (hard)", "too small"),
        ("rFID (hard); FID (hard)", "no network"),
    ]
    assert rows[-1].cells == ()
    assert rows[-1].describe() == "rFID (hard); FID (hard): not available: no network"


@pytest.mark.parametrize("run", [{}, {"conditions": {}, "missing": {}}], ids=["old", "none"])
def test_runs_that_say_nothing_have_no_lines(run):
    results = {"methods": {"a": {"seeds": [{"seed": 0, **run}], "label": "A"}}}
    assert list_conditions(results) == []
