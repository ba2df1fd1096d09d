"""The live view: a panel in a terminal, one line every two seconds elsewhere, and sentences that stay.

Invariant: drawing reads a `Shown` and changes nothing. Thread rule: the main thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lightmq.demo.driver import QueryProgress

PLAIN_INTERVAL_S = 2.0
REFRESHES_PER_S = 4
BARS = " ▁▂▃▄▅▆▇█"
RATES_KEPT = 48


@dataclass(slots=True)
class Shown:
    """Everything that one drawing needs."""

    name: str
    phase: str = "starting"
    elapsed_s: float = 0.0
    share: float | None = None
    """How much of the story is told; None while nothing is."""
    sent: int = 0
    acknowledged: int = 0
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=RATES_KEPT))
    """Acknowledged messages per second, the newest last."""
    figures: Mapping[str, str] = field(default_factory=dict)
    queries: Mapping[str, QueryProgress] = field(default_factory=dict)
    spark: str = ""


def sparkline(values: deque[float]) -> str:
    """Draw a row of small bars, the highest for the greatest value."""
    top = max(values, default=0.0) or 1.0
    return "".join(BARS[min(8, max(0, round(value / top * 8)))] for value in values)


def draw(shown: Shown) -> Panel:
    """Return the whole panel."""
    flow = Table.grid(padding=(0, 3))
    rate = shown.rates[-1] if shown.rates else 0.0
    flow.add_row(
        Text("devices → MQTT", style="bold"), f"{shown.acknowledged:,} acknowledged", f"{rate:,.0f}/s",
        Text(sparkline(shown.rates), style="cyan"),
    )  # fmt: skip
    for title, text in shown.figures.items():
        flow.add_row(Text(title, style="bold"), text)
    queries = Table(box=None, padding=(0, 2), header_style="dim")
    for title in ("Spark query", "batch", "rows", "rows so far", "took"):
        queries.add_column(title, justify="left" if title == "Spark query" else "right")
    for name, progress in shown.queries.items():
        took = f"{progress.duration_ms:,.0f} ms"
        queries.add_row(name, str(progress.batch), f"{progress.rows:,}", f"{progress.total:,}", took)
    spark = queries if shown.queries else Text(f"Spark: {shown.spark}", style="yellow")
    parts: list[RenderableType] = [flow, Text(""), spark]
    if shown.share is not None:
        parts += [Text(""), ProgressBar(total=1.0, completed=min(shown.share, 1.0), width=60)]
    title = f"{shown.name} · {shown.phase} · {shown.elapsed_s:,.0f} s"
    return Panel(Group(*parts), title=title, border_style="cyan", padding=(1, 2))


class View:
    """Shows what it is given until it is closed."""

    def __init__(self, console: Console, *, headless: bool) -> None:
        self._console = console
        is_live = console.is_terminal and not headless
        self._live = Live(console=console, refresh_per_second=REFRESHES_PER_S) if is_live else None
        self._last_s = -PLAIN_INTERVAL_S
        self._last_phase = ""

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def note(self, text: str) -> None:
        """Print one sentence that stays."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, shown: Shown) -> None:
        """Draw, or print a line when it is time for one."""
        if self._live is not None:
            self._live.update(draw(shown))
            return
        if shown.phase == self._last_phase and shown.elapsed_s - self._last_s < PLAIN_INTERVAL_S:
            return
        self._last_s, self._last_phase = shown.elapsed_s, shown.phase
        queries = "  ".join(f"{name} {progress.total:,}" for name, progress in shown.queries.items())
        spark = f"Spark rows: {queries}" if queries else f"Spark: {shown.spark}"
        figures = "".join(f"  {title}: {text}" for title, text in shown.figures.items())
        self.note(f"{shown.elapsed_s:5.0f} s  {shown.phase:<9} {shown.acknowledged:>7,} published  {spark}{figures}")
