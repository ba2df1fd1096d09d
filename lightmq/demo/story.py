"""The picture at the end of the demo: what this machine's sensors said, what Spark found, and whether all adds up.

One page: the accounting in figures, then panels of sensors that belong together with their units, one clock for all,
the moments of the run, and a dot where Spark found an anomaly and sent a command. `write_page` has the same readings to
zoom into. Invariant: drawn from the rows that Spark wrote and the commands that the device received, nothing else.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean, median
from typing import Any

from lightmq.demo.accounting import Accounting, LedgerRow
from lightmq.demo.feed import ACKNOWLEDGEMENT_SENSOR, LATENESS_SENSOR
from lightmq.demo.moments import Moments
from lightmq.demo.picture import (
    AMBER,
    BLUE,
    FAINT,
    GREEN,
    INK,
    MUTED,
    PAPER,
    RED,
    SERIES,
    TEAL,
    VIOLET,
    Picture,
    beside,
    callout,
    log_scale,
)

LONE_PANELS_MAX = 4
"""Sensors that belong to no known panel, as those of a recorded series, each get one of their own."""
HEIGHT_MIN = 6.2
"""Inches; a picture of one panel shows it large."""
SMOOTHED = 7
"""Readings in the running mean that is drawn over them."""
SPREADS_SHOWN_MAX = 100
"""An anomaly farther off is "more than"; the number says nothing more."""
STEPS = {
    "Spark starts": "Spark starts",
    "Spark's first rows": "its first rows",
    "first command back": "first command back",
    "Spark started again": "Spark started again",
    "query restarted": "a query started again",
    "Spark gave up": "Spark gave up",
}
"""Moments worth a line across the picture, and their names there."""


@dataclass(frozen=True)
class Story:
    """Everything the picture is drawn from; `commands` as the device received them."""

    rows: Sequence[LedgerRow]
    commands: Sequence[Mapping[str, Any]]
    accounting: Accounting
    moments: Moments
    host: str

    @cached_property
    def is_live(self) -> bool:
        """Whether the readings were made during this run; those of a recorded series have times of their own."""
        return all(row.time_ms >= self.moments.begun_ms - 60_000 for row in self.rows)

    @cached_property
    def begun_ms(self) -> int:
        """Where the picture's clock begins."""
        return self.moments.begun_ms if self.is_live else min(row.time_ms for row in self.rows)

    def place(self, time_ms: float) -> float:
        """Place on the picture's clock: seconds since the demo began, or days since the first recorded reading."""
        return (time_ms - self.begun_ms) / (1000 if self.is_live else 86_400_000)


@dataclass(frozen=True, slots=True)
class Panel:
    """Sensors of one unit with their labels; values are divided by `divisor`."""

    title: str
    unit: str
    sensors: Mapping[str, str]
    colour: str
    divisor: float = 1.0


Points = list[tuple[float, float]]


def series(story: Story) -> dict[str, Points]:
    """Readings by sensor: (place on the clock, value), in the order of time."""
    found: dict[str, Points] = defaultdict(list)
    for row in sorted(story.rows, key=lambda one: one.time_ms):
        found[row.sensor].append((story.place(row.time_ms), row.value))
    return dict(found)


def panels(sensors: Sequence[str]) -> list[Panel]:
    """Panels for the sensors that there are, the most telling first."""
    cores = [name for name in sensors if name.startswith("cpu")]
    heats = [name for name in sensors if name.startswith("temperature_")][:4]
    wanted = [
        Panel("CPU", "% of a core", {name: f"core {name[3:].split('_')[0]}" for name in cores[:6]}, BLUE),
        Panel("Temperature", "°C", {name: name.removeprefix("temperature_") for name in heats}, RED),
        Panel("Memory in use", "%", {"memory_percent": ""}, VIOLET),
        Panel("Disk", "MB/s", {"disk_write_bytes_per_s": "written", "disk_read_bytes_per_s": "read"}, TEAL, 1e6),
        Panel("Network", "MB/s", {"network_received_bytes_per_s": ""}, AMBER, 1e6),
        Panel("How late a thread wakes up", "ms", {LATENESS_SENSOR: ""}, RED),
    ]
    shown = [panel for panel in wanted if any(name in sensors for name in panel.sensors)]
    lone = [name for name in sensors if name != ACKNOWLEDGEMENT_SENSOR] if not shown else []
    return shown + [Panel(name, "value", {name: ""}, BLUE) for name in lone[:LONE_PANELS_MAX]]


def headline(story: Story, readings: Mapping[str, Points]) -> tuple[str, str]:
    """Title and subtitle: what happened, in figures."""
    trips = [one["arrived_ms"] - one["sent_ms"] for one in story.commands if "arrived_ms" in one]
    sensors = len([name for name in readings if name != ACKNOWLEDGEMENT_SENSOR])
    found = f"{len(story.commands):,} anomal{'y' if len(story.commands) == 1 else 'ies'}"
    count = sum(row.sensor != ACKNOWLEDGEMENT_SENSOR for row in story.rows)
    about = f"{count:,} readings of {sensors} sensor{'s' if sensors != 1 else ''}"
    rest = f"{about} over MQTT into one log and Spark"
    rest += ", which sent a command back for each anomaly" if story.commands else "; no command came back"
    if live := live_trips_s(story):
        rest += f", half within {median(live):.2g} s of its reading once it was up"
    elif trips and story.is_live:
        rest += "; all of them are answers to readings from before Spark was up"
    start = story.moments.seconds()
    if not story.is_live or "Spark's first rows" not in start:
        return f"{found} found in {about}", rest
    begin, ready = start["Spark starts"], start["Spark's first rows"]
    during = cpu_between(readings, begin, ready)
    title = f"Starting Spark took {ready - begin:.0f} s"
    if during is not None:
        title += f" and {during:.0f} % of this machine's CPU"
    return f"{title}; {found} on the way", rest


def live_trips_s(story: Story) -> list[float]:
    """Seconds from reading to command, of those readings that were sent once all queries were up."""
    up_s = story.moments.seconds().get("all queries up")
    if up_s is None or not story.is_live:
        return []
    return [
        max(one["arrived_ms"] - one["sent_ms"], 1) / 1000
        for one in story.commands
        if "arrived_ms" in one and story.place(one["sent_ms"]) > up_s
    ]


def cpu_between(readings: Mapping[str, Points], begin_s: float, end_s: float) -> float | None:
    """Mean over all cores and a stretch of time, in percent; None where nothing was measured."""
    values = [
        value
        for name, points in readings.items()
        if name.startswith("cpu")
        for at, value in points
        if begin_s <= at <= end_s
    ]
    return mean(values) if values else None


def draw_story(path: Path, story: Story) -> None:
    """Draw the page and save it as PNG."""
    readings = series(story)
    shown = panels(sorted(readings))
    has_trips = story.is_live and bool(story.commands)
    rows = len(shown) + has_trips
    title, subtitle = headline(story, readings)
    page = Picture(title, subtitle, height=max(3.1 + 1.35 * rows, HEIGHT_MIN))
    heights = [1.0 if place else 1.35 for place in range(rows)] if rows > 1 else [3.0] * rows
    grid = page.grid(rows + 1, 1, height_ratios=[0.62, *heights], hspace=0.52)
    draw_accounting(page.axes(grid[0, 0]), story.accounting)
    # The device's answers have today's time, also where the readings are recorded ones.
    measured = [points for name, points in readings.items() if name != ACKNOWLEDGEMENT_SENSOR]
    ends = [at for points in measured for at, _ in (points[0], points[-1])]
    first = None
    for number, panel in enumerate(shown):
        axes = page.axes(grid[number + 1, 0], panel.title, y=panel.unit)
        draw_panel(axes, panel, readings, story)
        first = first or axes
        finish(axes, ends, story, named=axes is first)
        note(axes, panel, readings, story)
        axes.tick_params(labelbottom=number + 1 == rows)
    if has_trips:
        axes = page.axes(grid[rows, 0], "From a reading to the command that it caused", y="seconds")
        draw_trips(axes, story)
        finish(axes, ends, story, named=first is None)
        note_median(axes, story)
    if first is not None:
        page.figure.axes[-1].set_xlabel(
            "seconds since the demo began" if story.is_live else "days since the first reading"
        )
    holds = "everything adds up" if story.accounting.holds else "IT DOES NOT ADD UP"
    page.save(path, f"LightMQ · devices → MQTT → one log → Spark → commands back · {holds} · {story.host} · make demo")


def finish(axes: Any, ends: Sequence[float], story: Story, *, named: bool) -> None:
    """Give an axes the clock of all, and the moments of the run; `named` writes their names above it."""
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    axes.set_xlim(low, high if high > low else low + 1)
    if not story.is_live:
        return
    moments = [moment for moment in story.moments.all if moment.name in STEPS and low <= moment.at_s <= high]
    times = Counter(moment.name for moment in moments)
    for moment in moments:
        axes.axvline(moment.at_s, color=INK, linewidth=0.9, linestyle=(0, (3, 3)), zorder=1)
        if named and times[moment.name]:
            often = f", {times[moment.name]} times, first" if times[moment.name] > 1 else ","
            beside(axes, (moment.at_s, 0.93), f"{STEPS[moment.name]}{often} {moment.at_s:.0f} s", step=0.13)
            times[moment.name] = 0  # named once, however often it happened


def draw_panel(axes: Any, panel: Panel, readings: Mapping[str, Points], story: Story) -> None:
    """Readings faint, their running mean strong, and a dot for each command, the most striking one with a note."""
    there = {name: label for name, label in panel.sensors.items() if name in readings}
    colours = (
        (panel.colour, *(one for one in SERIES if one != panel.colour)) if len(there) > 2 else (panel.colour, FAINT)
    )
    for (name, label), colour in zip(there.items(), colours, strict=False):
        times = [at for at, _ in readings[name]]
        values = [value / panel.divisor for _, value in readings[name]]
        axes.plot(times, values, color=colour, alpha=0.3, linewidth=0.8)
        axes.plot(times, running_mean(values), color=colour, label=label or None)
    mine = [one for one in story.commands if one["sensor"] in there]
    axes.scatter(
        [story.place(one["time_ms"]) for one in mine], [one["value"] / panel.divisor for one in mine],
        color=RED, s=34, zorder=8, edgecolor=PAPER, linewidth=1.1,
    )  # fmt: skip
    if any(there.values()) and len(there) > 1:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1.0), ncols=6, borderaxespad=0.1)
    if panel.unit not in {"value", "°C"} and "memory_percent" not in there:
        axes.set_ylim(0)
    if panel.unit.startswith("% of"):
        axes.set_ylim(0, 155)  # above full load is room for the names of the moments
        axes.set_yticks([0, 50, 100])


def note(axes: Any, panel: Panel, readings: Mapping[str, Points], story: Story) -> None:
    """Say what the strongest anomaly of a panel was."""
    mine = [one for one in story.commands if one["sensor"] in panel.sensors and one["sensor"] in readings]
    if not mine:
        return
    command = max(mine, key=lambda one: float(one["deviation"]))
    at, value = story.place(command["time_ms"]), command["value"] / panel.divisor
    low, high = axes.get_ylim()
    is_high = value > (low + high) / 2
    text = f"{value:,.3g} {panel.unit}".replace(" value", "").replace("% of a core", "%")
    spreads = float(command["deviation"])
    how_far = f"more than {SPREADS_SHOWN_MAX}" if spreads > SPREADS_SHOWN_MAX else f"{spreads:.1f}"
    callout(axes, f"{text}: {how_far} times its usual spread off, command sent", (at, value),
            (16, -14 if is_high else 14), RED)  # fmt: skip


def running_mean(values: Sequence[float]) -> list[float]:
    """Mean of each value and those just before it."""
    return [mean(values[max(0, place - SMOOTHED + 1) : place + 1]) for place in range(len(values))]


def draw_trips(axes: Any, story: Story) -> None:
    """How long each command took; those of the backlog from before Spark was up took longest."""
    placed = [
        (story.place(one["arrived_ms"]), max(one["arrived_ms"] - one["sent_ms"], 1) / 1000)
        for one in story.commands
        if "arrived_ms" in one
    ]
    for at, took in placed:
        axes.plot([at - took, at], [took, took], color=GREEN, alpha=0.25, linewidth=1.2)
    axes.scatter([at for at, _ in placed], [took for _, took in placed], color=GREEN, s=26, zorder=8, edgecolor=PAPER)
    log_scale(axes)


def note_median(axes: Any, story: Story) -> None:
    """Half of the commands that are no backlog came quicker than this."""
    if live := live_trips_s(story):
        axes.axhline(median(live), color=MUTED, linewidth=0.8, linestyle=(0, (1, 2)))
        text = f"median {median(live):.2g} s of the {len(live)} caused once all queries were up"
        beside(axes, (axes.get_xlim()[0], 0.12), text, MUTED)


def draw_accounting(axes: Any, accounting: Accounting) -> None:
    """Each equation as a row of figures, with the word for whether it holds."""
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    for place, line in enumerate(accounting.lines):
        left = place * 0.52
        colour = GREEN if line.holds else RED
        word = "holds" if line.holds else "DOES NOT HOLD"
        axes.text(left, 1.12, line.title, fontsize=9.5, fontweight="bold", color=INK, va="center")
        axes.text(left + 0.09, 1.12, word, fontsize=9, color=colour, fontweight="bold", va="center")
        step = 0.48 / max(len(line.figures), 1)
        for number, (name, value) in enumerate(line.figures.items()):
            x = left + number * step
            axes.text(x, 0.58, f"{value:,}", fontsize=17, fontweight="bold", color=INK, va="center")
            axes.text(x, 0.1, name, fontsize=8.5, color=MUTED, va="center")
            if number:
                sign = "=" if line.holds else "≠"
                axes.text(x - 0.022, 0.58, sign, fontsize=13, color=colour, va="center", ha="center")


def write_page(path: Path, story: Story) -> None:
    """Write the readings and the commands they caused as a page to zoom into, a panel for each sensor."""
    from plotly.graph_objects import Figure, Scattergl
    from plotly.subplots import make_subplots

    readings = series(story)
    counts: dict[str, int] = defaultdict(int)
    for command in story.commands:
        counts[command["sensor"]] += 1
    sensors = sorted(readings, key=lambda name: (-counts[name], name))
    figure: Figure = make_subplots(
        rows=max(len(sensors), 1), cols=1, shared_xaxes=True, subplot_titles=sensors or ["no readings"],
        vertical_spacing=0.3 / max(len(sensors), 1),
    )  # fmt: skip
    for number, sensor in enumerate(sensors, start=1):
        times, values = zip(*readings[sensor], strict=True)
        figure.add_trace(Scattergl(x=times, y=values, name=sensor, mode="lines"), row=number, col=1)
        mine = [one for one in story.commands if one["sensor"] == sensor]
        at, heights = [story.place(one["time_ms"]) for one in mine], [one["value"] for one in mine]
        marker = {"color": RED, "size": 8}
        figure.add_trace(
            Scattergl(x=at, y=heights, name=f"{sensor}: command", mode="markers", marker=marker), row=number, col=1
        )
    height, title = 220 * max(len(sensors), 1) + 80, headline(story, readings)[0]
    figure.update_layout(height=height, title=title, showlegend=False, template="plotly_white")
    figure.write_html(path, include_plotlyjs=True)
