"""Break the core on purpose, one fault at a time, and see whether the tests notice.

    python -m tests.mutation.run

works on a copy of the files that git knows. It says which faults were caught, and fails where more
than one was not.
"""

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

# For the forks, which then need not import it again.
import pytest
import torch  # noqa: F401

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


def run_tests(tree: Path, arguments: str) -> tuple[int, str]:
    """Run pytest in the copy until the first failure, in a fork that has its imports behind it.

    Args:
        tree: The copy; compiled kernels are kept inside it.
        arguments: Files and options.

    Returns:
        Pytest's exit code, minus the signal if one ended it, and what it wrote.
    """
    written = tree / ".written"
    child = os.fork()
    if child == 0:
        code = 3
        try:
            code = _run_in_child(tree, arguments, written)
        except Exception:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # past everything that the parent wants to do at its own end
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), written.read_text(errors="replace")


def _run_in_child(tree: Path, arguments: str, written: Path) -> int:
    signal.alarm(SECONDS)
    with written.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(tree)
    os.environ["SOFTVQ_CACHE"] = str(tree / ".kernels")
    sys.path[0] = str(tree)
    for name in [each for each in sys.modules if each.split(".")[0] in ("softvq", "tests")]:
        del sys.modules[name]
    options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-m", "not compiled"]
    return int(pytest.main([*options, *shlex.split(arguments)]))


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
    sys.dont_write_bytecode = True  # a file may change twice within a second
    try:
        code, written = run_tests(tree, fault.tests)
    finally:
        path.write_text(whole)
    failed = [line for line in written.splitlines() if line.startswith("FAILED")]
    if code == 1 and failed:
        return f"caught by {failed[0].split('::', 1)[1].split(' - ')[0]}"
    if code == -signal.SIGALRM:
        return "caught: it never ended"
    return "survived" if code == 0 else f"no run ({code}): {written[-300:]}"


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
