"""New examples for every contract of the cases, in rounds, until there are enough or time is up.

    python -m tests.cases.fuzz --examples 50000 --minutes 60

Each round has a seed of its own, which its report names: a failure is seen again with it.
"""

import argparse
import os
import subprocess
import sys
import time

ROUND = 1000
FILES = ("tests/cases/test_neighbours.py", "tests/cases/test_machine.py")


def run_round(seed: int, examples: int, seconds: float) -> int | None:
    """Pytest's exit code, or None where time was up."""
    environment = {"SOFTVQ_PROFILE": "fuzz", "SOFTVQ_EXAMPLES": str(examples)}
    options = ["-q", "--no-header", "--timeout=0", f"--hypothesis-seed={seed}"]
    try:
        return subprocess.run(
            [sys.executable, "-m", "pytest", *options, *FILES],
            env=os.environ | environment,
            timeout=seconds,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        return None


def main() -> int:
    """Run rounds; the first that fails ends it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=50_000, help="of each contract")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6, help="of the first")
    options = parser.parse_args()
    until, done, seed = time.monotonic() + 60 * options.minutes, 0, options.seed
    while done < options.examples and time.monotonic() < until:
        examples = min(ROUND, options.examples - done)
        print(f"seed {seed}, {examples} examples of each contract", flush=True)
        code = run_round(seed, examples, until - time.monotonic())
        if code is None:
            break
        if code:
            return code
        done, seed = done + examples, seed + 1
    print(f"{done} examples of each contract, and nothing broke")
    return 0


if __name__ == "__main__":
    sys.exit(main())
