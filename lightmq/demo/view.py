"""What the demo shows: a live table in a terminal or plain lines, the progress of its Spark driver, charts at the end.

Without a terminal the same figures are printed as one line every two seconds. `SparkDriver` starts the driver process
and keeps what it reports: ready, batches, failures. The charts, a PNG by matplotlib and a self-contained HTML page by
plotly, are drawn from the rows that Spark read and the commands that the device received.
Invariant: drawing reads a `Figures` and changes nothing. Thread rule: one reader thread writes the driver's fields;
`drain` and `stop` wait for the driver's answer.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lightmq.demo.accounting import Accounting, LedgerRow
from lightmq.demo.feed import ACKNOWLEDGEMENT_SENSOR

SENSORS_SHOWN_MAX = 6


def series(rows: Sequence[LedgerRow]) -> dict[str, list[tuple[datetime, float]]]:
    """Readings by sensor in event time."""
    gathered: dict[str, list[tuple[datetime, float]]] = defaultdict(list)
    for row in sorted(rows, key=lambda reading: reading.time_ms):
        gathered[row.sensor].append((datetime.fromtimestamp(row.time_ms / 1000, UTC), row.value))
    return dict(gathered)


def chosen_sensors(names: Sequence[str], commands: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sensors worth a picture: those with the most commands first, then the others by name."""
    counts: dict[str, int] = defaultdict(int)
    for command in commands:
        counts[command["sensor"]] += 1
    names = [name for name in names if name != ACKNOWLEDGEMENT_SENSOR]
    return sorted(names, key=lambda name: (-counts[name], name))[:SENSORS_SHOWN_MAX]


def marks(commands: Sequence[Mapping[str, Any]], sensor: str) -> tuple[list[datetime], list[float]]:
    """Where the commands of one sensor lie."""
    mine = [command for command in commands if command["sensor"] == sensor]
    return [datetime.fromtimestamp(command["time_ms"] / 1000, UTC) for command in mine], [
        command["value"] for command in mine
    ]


def write_png(path: Path, rows: Sequence[LedgerRow], commands: Sequence[Mapping[str, Any]]) -> None:
    """Draw the sensors with their anomalies, one panel each."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    readings = series(rows)
    sensors = chosen_sensors(list(readings), commands)
    figure, axes = plt.subplots(max(len(sensors), 1), 1, figsize=(11, 1 + 1.9 * max(len(sensors), 1)), squeeze=False)
    for axis, sensor in zip(axes[:, 0], sensors, strict=False):
        times, values = zip(*readings[sensor], strict=True)
        axis.plot(times, values, linewidth=0.8, color="#2463a8")
        axis.scatter(*marks(commands, sensor), color="#d62728", s=22, zorder=3, label="command sent back")
        axis.set_ylabel(sensor, rotation=0, ha="right", va="center", fontsize=8)
        axis.tick_params(labelsize=7)
    if sensors:
        axes[0, 0].legend(loc="upper right", fontsize=7)
    figure.suptitle(
        f"{len(rows):,} readings through MQTT, the log and Spark; {len(commands):,} commands back", fontsize=11
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def write_html(path: Path, rows: Sequence[LedgerRow], commands: Sequence[Mapping[str, Any]]) -> None:
    """Draw the same as a page to zoom into."""
    from plotly.graph_objects import Figure, Scattergl
    from plotly.subplots import make_subplots

    readings = series(rows)
    sensors = chosen_sensors(list(readings), commands)
    figure: Figure = make_subplots(
        rows=max(len(sensors), 1), cols=1, shared_xaxes=True, subplot_titles=sensors or ["no readings"]
    )
    for number, sensor in enumerate(sensors, start=1):
        times, values = zip(*readings[sensor], strict=True)
        figure.add_trace(Scattergl(x=times, y=values, name=sensor, mode="lines"), row=number, col=1)
        at, heights = marks(commands, sensor)
        commanded = Scattergl(
            x=at, y=heights, name=f"{sensor}: command", mode="markers", marker={"color": "#d62728", "size": 8}
        )
        figure.add_trace(commanded, row=number, col=1)
    figure.update_layout(
        height=260 * max(len(sensors), 1), title="Readings and the commands they caused", showlegend=False
    )
    figure.write_html(path, include_plotlyjs=True)


STOP_TIMEOUT_S = 30.0


class SparkFailed(RuntimeError):
    """The driver ended or a query failed; the text is Spark's message."""


@dataclass(slots=True)
class QueryProgress:
    """What one query did so far."""

    batch: int = -1
    rows: int = 0
    total: int = 0
    duration_ms: float = 0.0


class SparkDriver:
    """One run of `lightmq.demo.query`, or of another program that serves as it does, as a child process."""

    def __init__(self, log_path: Path, program: Sequence[str] = ("-m", "lightmq.demo.query")) -> None:
        self._log_path = log_path
        self._program = tuple(program)
        self._child: subprocess.Popen[str] | None = None
        self.progress: dict[str, QueryProgress] = {}
        self.version = ""
        self.step = "starting its driver process"
        self.restarts: list[str] = []
        self.failure: str | None = None
        self._said = threading.Condition()
        self._heard: dict[str, int] = {}

    def start(self, arguments: Sequence[str]) -> None:
        """Start the driver; returns at once."""
        with self._log_path.open("w") as log:
            self._child = subprocess.Popen(
                [sys.executable, *self._program, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._read, args=(self._child,), daemon=True).start()

    def _read(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("{"):
                self._hear(json.loads(line))
        self._hear({"event": "ended"})

    def _hear(self, event: dict[str, object]) -> None:
        kind = str(event["event"])
        with self._said:
            if kind == "batch":
                self.progress[str(event["query"])] = QueryProgress(
                    batch=int(str(event["batch"])),
                    rows=int(str(event["rows"])),
                    total=int(str(event["total"])),
                    duration_ms=float(str(event["duration_ms"])),
                )
            elif kind == "ready":
                self.version = str(event["version"])
            elif kind == "step":
                self.step = str(event["text"])
            elif kind == "restarted":
                self.restarts.append(f"query {event['query']}: {event['text']}")
            elif kind == "failed" and self.failure is None:
                self.failure = f"query {event['query']}: {event['error']}"
            self._heard[kind] = self._heard.get(kind, 0) + 1
            self._said.notify_all()

    @property
    def status(self) -> int | None:
        """Exit status of the driver that has ended."""
        assert self._child is not None
        return self._child.wait()

    def count_of(self, kind: str) -> int:
        """How often the driver reported an event of this kind."""
        with self._said:
            return self._heard.get(kind, 0)

    def check(self) -> None:
        """Raise if the driver is in trouble."""
        if self.failure is None and self.count_of("ended") and not self.count_of("stopped"):
            self.failure = f"its driver process ended with status {self.status}; what it wrote is in {self._log_path}"
        if self.failure is not None:
            raise SparkFailed(self.failure)

    def order(self, word: str, answer: str, timeout_s: float) -> None:
        """Send `drain` or `stop` and wait for the answer."""
        assert self._child is not None
        assert self._child.stdin is not None
        before = self.count_of(answer)
        try:
            self._child.stdin.write(word + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            self.check()
        with self._said:
            self._said.wait_for(
                lambda: (
                    self._heard.get(answer, 0) > before or bool(self._heard.get("ended")) or self.failure is not None
                ),
                timeout_s,
            )
        self.check()
        if self.count_of(answer) == before:
            raise SparkFailed(f"no '{answer}' from Spark in {timeout_s:.0f} s")

    def kill(self) -> None:
        """End the driver, its Java and its workers by kill -9, as a failing machine would."""
        assert self._child is not None
        os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def stop(self) -> None:
        """End the driver, by word if it listens, by signal if not."""
        if self._child is None:
            return
        if self._child.poll() is None:
            try:
                self.order("stop", "stopped", STOP_TIMEOUT_S)
                self._child.wait(STOP_TIMEOUT_S)
            except (SparkFailed, subprocess.TimeoutExpired):
                self._child.kill()
        self._child.wait()


PLAIN_INTERVAL_S = 2.0
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
        self._last_phase = ""

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

    def show(self, snapshot: Figures) -> None:
        """Draw, or print a line when it is time for one."""
        if self._live is not None:
            self._live.update(draw(snapshot))
            return
        due = snapshot.elapsed_s - self._last_plain_s >= PLAIN_INTERVAL_S
        if not due and snapshot.phase == self._last_phase:
            return
        self._last_plain_s, self._last_phase = snapshot.elapsed_s, snapshot.phase
        rows = snapshot.queries.get("ledger", QueryProgress())
        spark = f"Spark batch {rows.batch} rows {rows.total:,}" if "ledger" in snapshot.queries else snapshot.spark_note
        self._console.print(
            f"{snapshot.elapsed_s:5.0f} s  {snapshot.phase:<12} published {snapshot.acknowledged:,}  {spark}  "
            f"commands {snapshot.commands} (p50 {milliseconds(snapshot.round_trip_p50_ms)})",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def print_summary(console: Console, accounting: Accounting, round_trips_ms: list[float], notes: list[str]) -> None:
    """The end: the accounting, the latency, the files."""
    console.rule("accounting")
    for line in accounting.lines:
        mark = "[green]holds[/green]" if line.holds else "[red]DOES NOT HOLD[/red]"
        figures = " = ".join(f"{name} {value:,}" for name, value in line.figures.items())
        console.print(f"{line.title}: {figures}  {mark}", highlight=False, soft_wrap=True)
    trip = latency(percentile(round_trips_ms, 0.5), percentile(round_trips_ms, 0.95))
    if round_trips_ms:
        console.print(f"reading to command, once Spark was up: {trip}", highlight=False)
    else:
        console.print("reading to command: every command answered a reading from before Spark was up", soft_wrap=True)
    for note in notes:
        console.print(note, highlight=False, soft_wrap=True)
