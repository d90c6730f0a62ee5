"""Read what `make compare` leaves: a table in the terminal, and hard quality over the run.

    python samples/read_report.py FOLDER [--out .]

Wants matplotlib (extra `eval`). FOLDER is what a comparison wrote, such as `runs/compare-quick`:
`results.json` in it holds every measure of every evaluation. Writes `read_report.png`.
"""

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt

parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
parser.add_argument("folder", type=Path)
parser.add_argument("--out", type=Path, default=Path())
args = parser.parse_args()

results = json.loads((args.folder / "results.json").read_text(encoding="utf-8"))
print(f"{results['data']}, commit {results['commit']}: {results['command']}")


def mean(method, measure):
    """Mean of a measure over the seeds at the end; None where the method has no such measure."""
    values = [run["final"][measure] for run in method["seeds"]]
    return None if None in values else sum(values) / len(values)


figure, (quality, use) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
for method in results["methods"].values():
    hard, soft = mean(method, "psnr_hard"), mean(method, "psnr_soft")
    line = f"{method['label']}: hard PSNR {hard:.2f} dB"
    if soft is not None:  # beside the hard one, never in its place
        line += f" (soft {soft:.2f})"
    print(f"{line}, codes used {mean(method, 'use_hard'):.0%}, {len(method['seeds'])} seeds")
    for run in method["seeds"]:
        if run["warnings"]:
            print(f"    seed {run['seed']} warned: {run['warnings'][0]}")
    evals = method["seeds"][0]["evals"]
    steps = [each["step"] for each in evals]
    quality.plot(steps, [each["psnr_hard"] for each in evals], "o-", label=method["label"])
    use.plot(steps, [100 * each["use_hard"] for each in evals], "o-")
quality.set(xlabel="step", ylabel="hard PSNR, dB", title="quality on test images, first seed")
quality.legend()
use.set(xlabel="step", ylabel="%", title="codes in use, hard", ylim=(0, 102))
args.out.mkdir(parents=True, exist_ok=True)
figure.savefig(args.out / "read_report.png", dpi=80)
