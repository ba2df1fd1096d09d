"""How far long work is: a bar on standard error while it runs, gone when it is done.

Invariant: without a terminal (or with TERM=dumb) nothing is written, so that logs and pipes stay clean, unless
`--progress` asks for lines there: one for each percent, at most one a second. NO_COLOR and FORCE_COLOR are respected as
rich does. Loop rule: drawn on a thread of rich's own, reported from any.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

from cyclopts import Parameter

from runtime.clock import Clock, SystemClock

ShowProgress = Annotated[
    bool,
    Parameter(name=["--progress"], negative=(), help="Show progress on standard error even without a terminal."),
]
LINE_INTERVAL_NS_MIN = 1_000_000_000
"""Between two lines where there is no terminal."""


def is_shown() -> bool:
    """Whether standard error is a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


@contextmanager
def progress(what: str, *, as_lines: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of a piece of work; the function takes how much is done, and of how much (0: nobody knows).

    `as_lines`: where no bar can be drawn, write lines.
    """
    if not is_shown():
        yield Lines(what, SystemClock()).report if as_lines else lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[share]}"), TimeElapsedColumn(),
        TimeRemainingColumn(), console=Console(stderr=True), transient=True,
    )  # fmt: skip
    with bar:
        task = bar.add_task(what, total=None, share="")

        def report(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total or None, share=_share(done, total))

        yield report


class Lines:
    """Progress as lines of a log: only when the share has changed, and not more often than `LINE_INTERVAL_NS_MIN`."""

    def __init__(self, what: str, clock: Clock) -> None:
        self._what = what
        self._clock = clock
        self._written = ""
        self._due_ns = 0

    def report(self, done: int, total: int) -> None:
        """Write a line if there is something new to say; the last one always."""
        now_ns, share = self._clock.monotonic_ns(), _share(done, total)
        if share and share != self._written and (now_ns >= self._due_ns or done == total):
            self._written, self._due_ns = share, now_ns + LINE_INTERVAL_NS_MIN
            sys.stderr.write(f"{self._what}: {share}\n")


def _share(done: int, total: int) -> str:
    return f"{100 * done / total:.0f} %" if total else f"{done:,}" if done else ""
