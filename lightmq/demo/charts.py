"""The run as pictures: a PNG by matplotlib and a self-contained HTML page by plotly.

Invariant: both are drawn from the rows that Spark read and the commands that the device received; nothing is sampled
again. The HTML page embeds its script, so it opens without a network.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lightmq.demo.accounting import LedgerRow
from lightmq.demo.device import ACKNOWLEDGEMENT_SENSOR

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
