"""`python -m eval paper`: every experiment, or some of them, into one folder."""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import torch

from eval.paper import codebook, debris, finetune, lengths, pictures, rates, readout, stack
from eval.paper.page import fill_page
from eval.paper.sizes import Sizes, choose_sizes
from softvq.checks import check_count, choose

EXPERIMENTS: dict[str, Callable[[Sizes, Path], None]] = {
    "readout": readout.run,
    "codebook": codebook.run,
    "finetune": finetune.run,
    "rates": rates.run,
    "pictures": pictures.run,
    "clusters": debris.run,
    "stack": stack.run,
    "lengths": lengths.run,
}
TIMED = ("lengths",)
"""What others must not run beside, since times are what it measures."""


def run_experiments(
    names: Sequence[str], *, sizes: str, folder: Path, page: Path | None = None, jobs: int = 1
) -> None:
    """Run experiments; rows that the folder holds already are taken as they are.

    Args:
        names: Keys of `EXPERIMENTS`; none for all.
        sizes: "full" or "smoke".
        folder: For JSON, tables, figures and pages.
        page: A page such as ``docs/paper.md``, whose tables and figures are put in anew.
        jobs: Experiments at a time, each in a process of its own with one thread; with 1 they run
            here, one after the other.

    Raises:
        ValueError: For an unknown name, or a page without marks.

    Example:
        >>> run_experiments(["debri"], sizes="smoke", folder=Path("nowhere"))
        Traceback (most recent call last):
        ValueError: experiment is 'debri'; valid are: readout, codebook, finetune, rates, \
pictures, clusters, stack, lengths.
    """
    chosen = [choose("experiment", name, EXPERIMENTS) for name in names] or list(EXPERIMENTS)
    choose_sizes(sizes)
    beside = [name for name in chosen if name not in TIMED]
    if check_count("jobs", jobs) > 1 and len(beside) > 1:
        run_beside(partial(run_one, sizes=sizes, folder=folder), beside, jobs=jobs)
        chosen = [name for name in chosen if name in TIMED]
    for name in chosen:
        run_one(name, sizes=sizes, folder=folder)
    print(f"Written: tables (.md), rows (.json), figures (.png) and pages in {folder}")
    if page is not None:
        missing = fill_page(page, folder)
        left = f"; not there yet: {', '.join(missing)}" if missing else ""
        print(f"Tables and figures of {page} are put in anew{left}")


def run_one(name: str, *, sizes: str, folder: Path) -> None:
    """Run one experiment here, and say how long it took."""
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    began, used = time.perf_counter(), time.process_time()
    print(f"{name}:", flush=True)
    EXPERIMENTS[name](choose_sizes(sizes), folder)
    wall, spent = time.perf_counter() - began, time.process_time() - used
    print(f"{name}: {wall:.0f} s, of which the processor {spent:.0f} s", flush=True)


def run_beside(work: Callable[[str], None], names: Sequence[str], *, jobs: int) -> None:
    """Do the work of several names at a time, each in a new process of one thread.

    Args:
        work: What to do with a name; something that can be sent to a process.
        names: In the order in which they begin.
        jobs: How many at a time.

    Raises:
        Exception: The first error of any; what has not begun by then is left out.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin) as pool:
        running = [pool.submit(work, name) for name in names]
        try:
            for done in as_completed(running):
                done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin() -> None:
    """In a new process: one thread, and no work for a command that was killed."""
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "only processes that the command has started run this"
    parent.join()
    os._exit(1)
