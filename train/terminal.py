"""What a run shows while it goes: a live table on a terminal, plain lines elsewhere."""

import math
import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from softvq.checks import choose

COLUMNS = (
    "loss",
    "PSNR hard",
    "PSNR soft",
    "use",
    "dead codes",
    "T / T_c",
    "rate",
    "left",
)
REFRESH = 4
SILENCE = 30.0  # seconds, after which a run without a live table says where it is


class Terminal:
    """A bar and a table of the newest values; a context manager.

    Args:
        title: Before the bar and every line.
        total: Steps of the run.
        quiet: Say nothing.
        console: To write on; standard output by default.
        columns: Of the table, ``rate`` and ``left`` among them.
    """

    def __init__(
        self,
        title: str,
        *,
        total: int,
        quiet: bool = False,
        console: Console | None = None,
        columns: tuple[str, ...] = COLUMNS,
    ) -> None:
        self.console = console or Console(quiet=quiet)
        self.title = title
        self.total = total
        self._values: dict[str, str] = dict.fromkeys(columns, "")
        self._live: Live | None = None
        self._said = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
        )
        self._task = self._bar.add_task(title, total=total)

    def __enter__(self) -> "Terminal":
        """Show the table, where there is a terminal."""
        if self.console.is_terminal and not self.console.quiet:
            self._live = Live(
                get_renderable=self.draw,
                console=self.console,
                refresh_per_second=REFRESH,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the table away; the lines stay."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def draw(self) -> Group:
        """The bar and the table as they are now."""
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for name in self._values:
            table.add_column(name, justify="right", min_width=len(name))
        table.add_row(*(Text(value) for value in self._values.values()))
        return Group(self._bar.get_renderable(), table)

    def step(self, step: int, *, rate: float) -> None:
        """Move the bar; ``rate`` in steps a second. Without a table, a line now and then."""
        self._bar.update(self._task, completed=step)
        left = show_clock((self.total - step) / rate if rate else math.inf)
        self.show({"rate": f"{rate:.1f} steps/s", "left": left})
        if self._live is None and time.monotonic() - self._said > SILENCE:
            self.say(f"step {step:>6}  of {self.total}, {rate:.1f} steps/s, {left} left")

    def show(self, values: Mapping[str, str]) -> None:
        """Show values in the columns of these names.

        Raises:
            ValueError: For a name that is no column.
        """
        for name, value in values.items():
            self._values[choose("column", name, self._values)] = value

    def say(self, text: str) -> None:
        """Print a line, above the table where there is one."""
        self._said = time.monotonic()
        self.console.print(
            f"{self.title:<24} {text}", highlight=False, markup=False, soft_wrap=True
        )


def show_clock(seconds: float) -> str:
    """Minutes and seconds, or a question mark where nobody knows.

    Example:
        >>> show_clock(75.2), show_clock(3725), show_clock(math.inf)
        ('1:15', '1:02:05', '?')
    """
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d}"
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
