"""Break the core on purpose, one fault at a time, and see whether the tests notice.

    python -m tests.mutation.run

works on a copy of the files that git knows. It says which faults were caught, and fails where more
than one was not.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutation.faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]
MOST_SURVIVORS = 1
SECONDS = 600


def copy_tree(to: Path) -> None:
    """Copy what git tracks or would track; ignored files stay behind."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        source = ROOT / name
        if source.is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, to / name)


def run_tests(tree: Path, arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in the copy until the first failure; compiled kernels are kept inside it."""
    options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-m", "not compiled", *shlex.split(arguments)],
        cwd=tree,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "SOFTVQ_CACHE": str(tree / ".kernels")},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def apply(fault: Fault, text: str) -> str:
    """The file's text with the fault in it."""
    if text.count(fault.old) != 1:
        raise ValueError(f"{fault.name}: its line stands {text.count(fault.old)} times in the file")
    return text.replace(fault.old, fault.new)


def try_fault(fault: Fault, tree: Path) -> str:
    """ "caught", "survived", or what else became of the run."""
    path = tree / fault.file
    whole = path.read_text()
    path.write_text(apply(fault, whole))
    try:
        done = run_tests(tree, fault.tests)
    except subprocess.TimeoutExpired:
        return "caught: it never ended"
    finally:
        path.write_text(whole)
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    if done.returncode == 1 and failed:
        return f"caught by {failed[0].split('::', 1)[1].split(' - ')[0]}"
    return (
        "survived" if done.returncode == 0 else f"no run ({done.returncode}): {done.stdout[-300:]}"
    )


def main() -> int:
    """Try the faults whose names hold a word that was given, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="parts of names of faults")
    words = parser.parse_args().words
    chosen = [fault for fault in FAULTS if not words or any(word in fault.name for word in words)]
    missed = []
    with tempfile.TemporaryDirectory(prefix="softvq-mutation-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        for fault in chosen:
            begun = time.perf_counter()
            outcome = try_fault(fault, tree)
            print(f"{fault.name}\n    {outcome} ({time.perf_counter() - begun:.0f} s)", flush=True)
            if not outcome.startswith("caught"):
                missed.append(fault.name)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} faults were caught")
    return int(len(missed) > MOST_SURVIVORS)


if __name__ == "__main__":
    sys.exit(main())
