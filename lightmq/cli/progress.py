"""How far long work is: a bar on standard error while it runs, gone when it is done.

Invariant: without a terminal (or with TERM=dumb) nothing is written, so that logs and pipes stay clean; NO_COLOR and
FORCE_COLOR are respected as rich does. Loop rule: drawn on a thread of rich's own, reported from any.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def is_shown() -> bool:
    """Whether standard error is a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of a piece of work; the function takes how much is done, and of how much (0: nobody knows)."""
    if not is_shown():
        yield lambda _done, _total: None
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
            share = f"{100 * done / total:.0f} %" if total else f"{done:,}" if done else ""
            bar.update(task, completed=done, total=total or None, share=share)

        yield report
