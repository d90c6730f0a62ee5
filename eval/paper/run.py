"""`python -m eval paper`: every experiment, or some of them, into one folder."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from eval.paper import codebook, debris, finetune, lengths, pictures, rates, readout, stack
from eval.paper.page import fill_page
from eval.paper.sizes import Sizes, choose_sizes
from softvq.checks import choose

EXPERIMENTS: dict[str, Callable[[Sizes, Path], None]] = {
    "readout": readout.run,
    "clusters": debris.run,
    "stack": stack.run,
    "pictures": pictures.run,
    "rates": rates.run,
    "codebook": codebook.run,
    "finetune": finetune.run,
    "lengths": lengths.run,
}


def run_experiments(
    names: Sequence[str], *, sizes: str, folder: Path, page: Path | None = None
) -> None:
    """Run experiments; rows that the folder holds already are taken as they are.

    Args:
        names: Keys of `EXPERIMENTS`; none for all.
        sizes: "full" or "smoke".
        folder: For JSON, tables, figures and pages.
        page: A page such as ``docs/paper.md``, whose tables and figures are put in anew.

    Raises:
        ValueError: For an unknown name, or a page without marks.

    Example:
        >>> run_experiments(["debri"], sizes="smoke", folder=Path("nowhere"))
        Traceback (most recent call last):
        ValueError: experiment is 'debri'; valid are: readout, clusters, stack, pictures, rates, \
codebook, finetune, lengths.
    """
    chosen = [choose("experiment", name, EXPERIMENTS) for name in names] or list(EXPERIMENTS)
    held = choose_sizes(sizes)
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    for name in chosen:
        began, used = time.perf_counter(), time.process_time()
        print(f"{name}:", flush=True)
        EXPERIMENTS[name](held, folder)
        wall, spent = time.perf_counter() - began, time.process_time() - used
        print(f"{name}: {wall:.0f} s, of which the processor {spent:.0f} s", flush=True)
    print(f"Written: tables (.md), rows (.json), figures (.png) and pages in {folder}")
    if page is not None:
        missing = fill_page(page, folder)
        left = f"; not there yet: {', '.join(missing)}" if missing else ""
        print(f"Tables and figures of {page} are put in anew{left}")
