"""Time and memory over the length of a sequence, as `python -m eval bench readout` takes them."""

from pathlib import Path

from eval.bench_readout import LENGTHS, Timing, draw, find_exponent
from eval.bench_readout import run as run_bench
from eval.paper.sizes import Sizes
from eval.paper.store import Store

DDCL, OTHER = "ddcl", "self-attention"


def run(sizes: Sizes, folder: Path) -> None:
    """Take the times once; write ``lengths.json``, ``.md`` and ``.png``."""
    store = Store(folder, "lengths", sizes=sizes.take("longest"))
    lengths = tuple(length for length in LENGTHS if length <= sizes.longest)

    def make() -> dict:
        found = run_bench(repeats=3, folder=folder / "bench", lengths=lengths)
        return {"timings": [each.__dict__ for each in found]}

    row = store.row({"experiment": "lengths"}, make)
    timings = [Timing(**each) for each in row["timings"]]
    store.write_table([make_lengths_table(timings)])
    store.write_figure(draw(timings))


def make_lengths_table(timings: list[Timing]) -> str:
    """Both contenders side by side, and the power of N with which each grows.

    Example:
        >>> made = [Timing(name="ddcl", length=512, seconds=0.02, growth_mib=3.0)]
        >>> print(make_lengths_table(made).splitlines()[-1])
        | 512 | 20.0 |  |  | 3 |  |
    """
    powers = [
        f"{name} N^{find_exponent(timings, name):.2f}"
        for name in (DDCL, OTHER)
        if sum(each.name == name for each in timings) > 2
    ]
    lines = [
        "**One sequence of N tokens, forward and backward, processor time of a step"
        + (f"; time grows as {', '.join(powers)}**" if powers else "**"),
        "",
        "| N | DDCL ms | self-attention ms | ratio | DDCL MiB | self-attention MiB |",
        "|---|---|---|---|---|---|",
    ]
    by = {(each.name, each.length): each for each in timings}
    for length in sorted({each.length for each in timings}):
        ours, theirs = by[DDCL, length], by.get((OTHER, length))
        cells = [f"{length:,}", f"{1e3 * ours.seconds:,.1f}"]
        cells += (
            [f"{1e3 * theirs.seconds:,.1f}", f"{ours.seconds / theirs.seconds:.2f}"]
            if (theirs)
            else ["", ""]
        )
        cells += [f"{ours.growth_mib:,.0f}", f"{theirs.growth_mib:,.0f}" if theirs else ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
