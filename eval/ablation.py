"""From DDCL as written to SoftVQ, one addition a line: `python -m eval ablation`."""

from pathlib import Path

from eval.compare import GROUPS, run_comparison
from eval.results import Results
from eval.runs import Word, Words
from eval.seeds import collect_final, find_deviation, find_mean
from eval.table import CLAIM_RULE, Difference, compare_paired, format_value
from eval.terminal import print_rows
from train.methods import get_method

LAST = {"softvq": "+ warm-up on the rows themselves (SoftVQ)"}
"""Label of the step that is a method of its own."""
HEADER = ("Step", "Hard PSNR dB", "Use %", "Perplexity", "Against the line above, dB")


def ablation(
    preset: Word = "quick",
    overrides: Words = (),
    /,
    *,
    out: Path | None = None,
    seeds: int = 3,
    fresh: bool = False,
) -> None:
    """Take the literal method to SoftVQ's forms, one addition a line, with paired differences.

    Args:
        preset: quick, reference, public, full or smoke.
        overrides: Changes such as optim.steps=1000; method.lr= is the rate of all steps, SoftVQ's
            own by default.
        out: Folder, laid out as a comparison's; runs/ablation-PRESET by default.
        seeds: Runs of each step, paired.
        fresh: Train again what the folder holds already.
    """
    folder = out or Path("runs") / f"ablation-{preset}"
    if not any(word.partition("=")[0] in ("method.lr", "lr") for word in overrides):
        overrides = (*overrides, f"method.lr={get_method('softvq').lr}")
    results = run_comparison(
        preset, overrides, methods="ablation", seeds=seeds, folder=folder, fresh=fresh
    )
    title = f"{results['data']}. Test set, hard codes at the end; each line adds to the one above."
    print_rows(title, HEADER, list_steps(results))
    print(f"95 % interval of the difference, paired by seed. {CLAIM_RULE}")


def list_steps(results: Results) -> list[list[str]]:
    """The table's cells: one step a row, in the ablation's order.

    Args:
        results: Of a comparison that holds the ablation's methods.

    Returns:
        Rows as wide as `HEADER`.
    """
    rows, before = [], ""
    for name in GROUPS["ablation"]:
        method = results["methods"][name]
        cells = [LAST.get(name, method["label"])]
        for measure, scale, decimals in (
            ("psnr_hard", 1, 2),
            ("use_hard", 100, 1),
            ("perplexity_hard", 1, 1),
        ):
            values = [scale * value for value in collect_final(method, measure) or []]
            cells.append(format_value(find_mean(values), find_deviation(values), decimals=decimals))
        pair = {each: results["methods"][each] for each in (before, name) if each}
        difference = compare_paired({**results, "methods": pair}, base=name)
        rows.append([*cells, describe_gain(difference[0]) if difference else ""])
        before = name
    return rows


def describe_gain(difference: Difference) -> str:
    """A paired difference as these tables show it; a star where the interval excludes zero.

    Example:
        >>> describe_gain(Difference("a", "A", 2, 0.3, 0.1, 0.5))
        '+0.30 [+0.10, +0.50] *'
    """
    if difference.seeds < 2:
        return f"{difference.mean:+.2f}"
    mark = " *" if difference.claimed else ""
    return f"{difference.mean:+.2f} [{difference.low:+.2f}, {difference.high:+.2f}]{mark}"
