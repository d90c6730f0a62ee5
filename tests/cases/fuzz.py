"""New examples for every contract of the cases, in rounds, until there are enough or time is up.

    python -m tests.cases.fuzz --examples 50000 --minutes 60

As many rounds at a time as there are cores. The turn goes to the contract that has had the least
time so far, so that quick ones reach their number and slow ones share what is left. Each round has
a seed of its own, which its report names: a failure is seen again with it. At the end it says how
many examples each contract had.
"""

import argparse
import itertools
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

FILES = ("tests/cases/test_neighbours.py", "tests/cases/test_machine.py")
FIRST = 200
LARGEST = 10_000
ROUND_SECONDS = 240.0


@dataclass
class Contract:
    """A test that draws examples: its id, and what it had so far."""

    name: str
    examples: int = 0
    seconds: float = 0.0
    broken: int | None = None  # the seed of the round in which it failed
    busy: bool = False

    def next_round(self, wanted: int) -> int:
        """Examples of a round of `ROUND_SECONDS` at the speed so far, no more than are wanted."""
        size = FIRST if not self.examples else int(self.examples / self.seconds * ROUND_SECONDS)
        return max(1, min(max(size, FIRST), LARGEST, wanted - self.examples))


def find_contracts(words: list[str]) -> list[Contract]:
    """The contracts that draw examples, or those whose ids hold a word that was given."""
    options = ["-q", "--no-header", "--collect-only", "-m", "hypothesis"]
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *FILES],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    names = [line for line in listed if "::" in line]
    return [Contract(each) for each in names if not words or any(w in each for w in words)]


def run_round(contract: Contract, *, seed: int, examples: int, seconds: float) -> None:
    """Run pytest; a round that time cuts short counts for nothing."""
    environment = {
        "SOFTVQ_PROFILE": "fuzz",
        "SOFTVQ_EXAMPLES": str(examples),
        "OMP_NUM_THREADS": "1",  # the other cores have rounds of their own
    }
    options = ["-q", "--no-header", "--timeout=0", f"--hypothesis-seed={seed}"]
    begun = time.monotonic()
    try:
        code = subprocess.run(
            [sys.executable, "-m", "pytest", *options, contract.name],
            env=os.environ | environment,
            timeout=seconds,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        return
    finally:
        contract.seconds += time.monotonic() - begun
    if code:
        contract.broken = seed
    else:
        contract.examples += examples


def report(contracts: list[Contract], wanted: int) -> None:
    """Say how many examples each contract had."""
    for each in contracts:
        broken = "" if each.broken is None else f"  BROKEN with seed {each.broken}"
        print(f"{each.examples:>8} examples in {each.seconds:>6.0f} s  {each.name}{broken}")
    enough = sum(each.examples >= wanted for each in contracts)
    print(f"{enough} of {len(contracts)} contracts had {wanted}", flush=True)


def main() -> int:
    """Run rounds; a contract that breaks has no more of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="parts of ids of contracts")
    parser.add_argument("--examples", type=int, default=50_000, help="of each contract")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6, help="of the first")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="rounds at a time")
    options = parser.parse_args()
    contracts, seeds = find_contracts(options.words), itertools.count(options.seed)
    until = time.monotonic() + 60 * options.minutes
    turn = threading.Lock()

    def work() -> None:
        while (left := until - time.monotonic()) > 0:
            with turn:
                waiting = [
                    each
                    for each in contracts
                    if each.broken is None and each.examples < options.examples and not each.busy
                ]
                if not waiting:
                    return
                contract = min(waiting, key=lambda each: each.seconds)
                contract.busy = True
                examples, seed = contract.next_round(options.examples), next(seeds)
                print(f"seed {seed}, {examples} examples: {contract.name}", flush=True)
            run_round(contract, seed=seed, examples=examples, seconds=left)
            contract.busy = False

    with ThreadPoolExecutor(options.jobs) as pool:
        for each in [pool.submit(work) for _ in range(options.jobs)]:
            each.result()
    report(contracts, options.examples)
    return int(any(each.broken is not None for each in contracts))


if __name__ == "__main__":
    sys.exit(main())
