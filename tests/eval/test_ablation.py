from eval.ablation import HEADER, ablation, list_steps
from eval.compare import GROUPS
from eval.results import load_results


def test_each_line_is_held_against_the_one_above():
    values = {
        name: (20.0 + place**2, 21.0 + place**2) for place, name in enumerate(GROUPS["ablation"])
    }
    methods = {
        name: {
            "label": name,
            "how": "",
            "seeds": [
                {
                    "seed": seed,
                    "final": {"psnr_hard": v, "use_hard": 0.5, "perplexity_hard": 7.0},
                }
                for seed, v in enumerate(pair)
            ],
        }
        for name, pair in values.items()
    }
    rows = list_steps({"methods": methods})
    assert [row[0] for row in rows[:-1]] == list(GROUPS["ablation"])[:-1]
    assert rows[-1][0] == "+ warm-up on the rows themselves (SoftVQ)"
    assert {len(row) for row in rows} == {len(HEADER)}
    assert rows[0][1:] == ["20.50 ± 0.71", "50.0 ± 0.0", "7.0 ± 0.0", ""]
    # The squares of 0, 1, 2, ... differ by 1, 3, 5, ..., the same for both seeds.
    expected = [
        f"+{2 * n + 1}.00 [+{2 * n + 1}.00, +{2 * n + 1}.00] *" for n in range(len(rows) - 1)
    ]
    assert [row[-1] for row in rows[1:]] == expected


def test_the_command_runs_all_steps(tmp_path, capsys):
    few = ("data.num_train=32", "data.num_test=8", "optim.steps=1", "eval_at=[1.0]")
    ablation("smoke", few, out=tmp_path, seeds=1)
    results = load_results(tmp_path)
    assert tuple(results["methods"]) == GROUPS["ablation"]
    assert results["config"]["method"]["lr"] == 4e-3  # one for all steps
    printed = capsys.readouterr().out
    assert "+ two temperatures, hard code forward" in printed
    assert "Against the line above" in printed
