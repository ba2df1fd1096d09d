"""What the demo shows in a terminal: a live table, or a line every two seconds; at the end the accounting.

Invariant: drawing reads a `Figures` and changes nothing; a wait is never silent for longer than PROGRESS_INTERVAL_S.
Thread rule: the main thread; what is waited for is said by a thread of its own meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lightmq.demo.accounting import Accounting
from lightmq.demo.driver import QueryProgress
from remoting import clock

PLAIN_INTERVAL_S = 2.0
PROGRESS_INTERVAL_S = 8.0
"""A line that says nothing new, or what is waited for, comes this often."""
REFRESHES_PER_S = 4


@dataclass(slots=True)
class Figures:
    """Everything that one drawing needs."""

    phase: str = ""
    elapsed_s: float = 0.0
    sent: int = 0
    acknowledged: int = 0
    readings_per_s: float = 0.0
    messages_in: int = 0
    messages_out: int = 0
    confirm_lag_bytes: int = 0
    commands: int = 0
    round_trip_p50_ms: float | None = None
    round_trip_p95_ms: float | None = None
    queries: dict[str, QueryProgress] = field(default_factory=dict)
    spark_note: str = ""


def percentile(values: list[float], fraction: float) -> float | None:
    """Value below which the given fraction of the values lies; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def milliseconds(value: float | None) -> str:
    """Milliseconds for people."""
    return "-" if value is None else f"{value:,.0f} ms"


def latency(p50_ms: float | None, p95_ms: float | None) -> str:
    """Two percentiles for people."""
    return f"p50 {milliseconds(p50_ms)}, p95 {milliseconds(p95_ms)}"


def flow_table(snapshot: Figures) -> Table:
    """Devices and broker."""
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_row(
        "readings published",
        f"{snapshot.acknowledged:,} acknowledged of {snapshot.sent:,}",
        f"{snapshot.readings_per_s:,.0f}/s",
    )
    table.add_row("broker", f"{snapshot.messages_in:,} messages in", f"{snapshot.messages_out:,} out")
    table.add_row("confirm lag", f"{snapshot.confirm_lag_bytes:,} bytes not yet durable", "")
    table.add_row(
        "commands delivered",
        f"{snapshot.commands:,}",
        f"reading to command {latency(snapshot.round_trip_p50_ms, snapshot.round_trip_p95_ms)}",
    )
    return table


def query_table(snapshot: Figures) -> Table:
    """A row for each Spark query: batch, rows and duration."""
    table = Table(box=None, padding=(0, 2))
    for title in ("query", "batch", "its rows", "rows so far", "took"):
        table.add_column(title, justify="left" if title == "query" else "right")
    for name, progress in sorted(snapshot.queries.items()):
        table.add_row(
            name, str(progress.batch), f"{progress.rows:,}", f"{progress.total:,}", milliseconds(progress.duration_ms)
        )
    return table


def draw(snapshot: Figures) -> Panel:
    """The whole picture."""
    spark = query_table(snapshot) if snapshot.queries else Text(snapshot.spark_note or "Spark: waiting", style="yellow")
    title = f"LightMQ demo · {snapshot.phase} · {snapshot.elapsed_s:,.0f} s"
    return Panel(Group(flow_table(snapshot), Text(""), spark), title=title, border_style="cyan")


class LiveView:
    """Shows snapshots until it is closed."""

    def __init__(self, console: Console, *, plain: bool) -> None:
        self._console = console
        self._live = (
            None if plain or not console.is_terminal else Live(console=console, refresh_per_second=REFRESHES_PER_S)
        )
        self._last_plain_s = -PLAIN_INTERVAL_S
        self._last_line = ""

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def note(self, text: str) -> None:
        """Print one line that stays."""
        self._console.print(text, highlight=False, soft_wrap=True)

    @contextmanager
    def waiting(self, what: str, interval_s: float = PROGRESS_INTERVAL_S) -> Iterator[None]:
        """Say every few seconds what takes so long, until the block ends."""
        begun_s, ended = clock.monotonic_s(), threading.Event()

        def tell() -> None:
            while not ended.wait(interval_s):
                self.note(f"{what}, for {clock.monotonic_s() - begun_s:.0f} s")

        teller = threading.Thread(target=tell, name="demo-waiting", daemon=True)
        teller.start()
        try:
            yield
        finally:
            ended.set()
            teller.join()

    def show(self, snapshot: Figures) -> None:
        """Draw, or print a line when it is time for one."""
        if self._live is not None:
            self._live.update(draw(snapshot))
            return
        rows = snapshot.queries.get("ledger", QueryProgress())
        spark = f"Spark batch {rows.batch} rows {rows.total:,}" if "ledger" in snapshot.queries else snapshot.spark_note
        trips = f" (p50 {milliseconds(snapshot.round_trip_p50_ms)})" if snapshot.round_trip_p50_ms is not None else ""
        news = f"{snapshot.phase:<12} {spark}  commands {snapshot.commands}{trips}"
        interval_s = PROGRESS_INTERVAL_S if news == self._last_line else PLAIN_INTERVAL_S
        is_other_phase = self._last_line[:12] != news[:12]
        if snapshot.elapsed_s - self._last_plain_s < interval_s and not is_other_phase:
            return
        self._last_plain_s, self._last_line = snapshot.elapsed_s, news
        self._console.print(
            f"{snapshot.elapsed_s:5.0f} s  {snapshot.phase:<12} published {snapshot.acknowledged:,}  {spark}  "
            f"commands {snapshot.commands}{trips}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def print_summary(console: Console, accounting: Accounting, round_trips_ms: list[float], notes: list[str]) -> None:
    """The end: the accounting, the latency, the files."""
    console.rule("accounting")
    for line in accounting.lines:
        equation, _, mark = line.text.partition("  ")
        console.print(f"{equation}  ", end="", markup=False, highlight=False, soft_wrap=True)
        console.print(mark, style="green" if line.holds else "bold red", highlight=False)
    trip = latency(percentile(round_trips_ms, 0.5), percentile(round_trips_ms, 0.95))
    if round_trips_ms:
        of = f"{len(round_trips_ms)} of the commands, whose readings came once Spark was up"
        console.print(f"reading to command: {trip}; {of}", highlight=False, soft_wrap=True)
    else:
        console.print(
            "reading to command: not measured. The readings behind the commands came before every query was up, so "
            "their times are those of Spark's start; a longer run (--seconds) has others",
            highlight=False,
            soft_wrap=True,
        )
    for note in notes:
        console.print(note, highlight=False, soft_wrap=True)
