"""Laptop: this very machine is the device; its sensors go over MQTT into Spark's sliding windows, and into a picture.

    machines/<host>/<sensor>   {"id", "sensor", "value", "time_ms"}   some sixty readings a second

Nothing is simulated: CPU by core, memory, disk, network, load, temperatures where there are any, and how late a thread
wakes up. The first thing they show is what starting Spark does to the machine.

    python examples/laptop.py [--seconds 30] [--check]
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kit import Claim, Example, Gateways, Picture, Queries, Reporting, Run, Stage, equal, holds, read_rows, run
from kit.later import pd

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows

from lightmq.demo.feed import LATENESS_SENSOR, SensorFeed
from lightmq.demo.picture import AMBER, BLUE, FAINT, INK, MUTED, RED, SERIES, TEAL, VIOLET, beside
from lightmq.demo.run import host_label
from runtime.clock import SystemClock

FILTER = "machines/+/+"
READING = "id long, sensor string, value double, time_ms long"
WINDOW_S, SLIDE_S = 6, 1
ROWS_PER_BATCH_MAX = 2000
"""The rate limit: what gathered while Spark was starting is read in batches of this size, not in one."""


class Laptop(Reporting):
    """The sensors of this machine over one MQTT connection; the demo's feed samples them."""

    def __init__(self, stage: Stage) -> None:
        self._host = host_label()
        super().__init__(Gateways(stage, "laptop", connections=1))
        self._feed = SensorFeed(self, SystemClock())  # type: ignore[arg-type]
        self.last: dict[str, float] = {}
        self.begun_ms = 0
        self.ready_ms = 0
        """When Spark had made its first batch."""

    def publish(self, sensor: str, value: float, time_ms: int) -> None:
        """Send one reading; called by the feed."""
        self.last[sensor] = value
        reading = {"id": self._gateways.sent, "sensor": sensor, "value": round(value, 4), "time_ms": time_ms}
        self._gateways.publish(0, f"machines/{self._host}/{sensor}", json.dumps(reading).encode())

    def start(self) -> None:
        """Connect and begin to sample."""
        self._gateways.connect()
        self.begun_ms = SystemClock().now_ms()
        self._feed.start()

    def stop(self) -> None:
        """Sample nothing more."""
        self._feed.stop()

    def finished(self) -> bool:
        """Sensors never run dry."""
        return False

    def figures(self) -> Mapping[str, str]:
        """CPU and memory as just sampled."""
        cores = [value for sensor, value in sorted(self.last.items()) if sensor.startswith("cpu")]
        if not cores:
            return {}
        shown = " ".join(f"{value:.0f}" for value in cores)
        return {"CPU, % by core": shown, "memory": f"{self.last['memory_percent']:.0f} %"}


# --- The pipeline ------------------------------------------------------------------------------------------------


def readings(spark: SparkSession, stage: Stage) -> DataFrame:
    """Every reading, its JSON as columns; at most so many a batch."""
    reader = spark.readStream.format("rocketmq").options(**stage.source).option("mqttFilter", FILTER)
    source = reader.option("maxOffsetsPerTrigger", ROWS_PER_BATCH_MAX).option("columns", "body").load()
    body = F.from_json(F.col("body").cast("string"), READING).alias("reading")
    return source.select(body).select("reading.*", F.timestamp_millis("reading.time_ms").alias("time"))


def windows(rows: DataFrame) -> DataFrame:
    """The last six seconds of each sensor, every second."""
    window = F.window("time", f"{WINDOW_S} seconds", f"{SLIDE_S} second")
    grouped = rows.withWatermark("time", "2 seconds").groupBy(window, "sensor")
    figures = grouped.agg(F.avg("value").alias("mean"), F.min("value").alias("low"), F.max("value").alias("high"))
    return figures.select(F.col("window.end").alias("at"), "sensor", "mean", "low", "high")


def queries(spark: SparkSession, stage: Stage) -> Queries:
    """The readings as a table, and their sliding windows."""
    return {
        "readings": lambda: stage.to_parquet(readings(spark, stage), "readings"),
        "windows": lambda: stage.to_parquet(windows(readings(spark, stage)), "windows"),
    }


def during(play: Run) -> None:
    """Remember when Spark had come up."""
    play.devices.ready_ms = play.devices.ready_ms or SystemClock().now_ms()


# --- What must be true -------------------------------------------------------------------------------------------


def check(play: Run) -> list[Claim]:
    """Nothing is lost, nothing is twice, and the chart is not flat."""
    rows, found = read_rows(play.stage, "readings"), read_rows(play.stage, "windows")
    spread = found.groupby("sensor")["mean"].agg(lambda mean: mean.max() - mean.min())
    moving = spread[spread > 0]
    return [
        equal(
            "readings", sent=play.devices.sent, acknowledged=play.devices.acknowledged, rows_in_Spark=len(rows),
            distinct=rows["id"].nunique(),
        ),
        holds("the chart is not flat", len(moving) >= 5, f"{len(moving)} of {len(spread)} sensors moved"),
    ]  # fmt: skip


# --- The picture -------------------------------------------------------------------------------------------------


def panels(found: pd.DataFrame) -> list[tuple[str, str, dict[str, str], float, str]]:
    """Title, unit, sensors with their labels, divisor and colour of each panel."""
    cores = sorted(sensor for sensor in found["sensor"].unique() if sensor.startswith("cpu"))
    disk = {"disk_write_bytes_per_s": "written", "disk_read_bytes_per_s": "read"}
    return [
        ("CPU", "% of a core", {core: f"core {core[3:].split('_')[0]}" for core in cores[:6]}, 1, BLUE),
        ("Memory in use", "%", {"memory_percent": ""}, 1, VIOLET),
        ("Disk", "MB/s", disk, 1e6, TEAL),
        ("Network, with the messages of this run", "MB/s", {"network_received_bytes_per_s": ""}, 1e6, AMBER),
        ("How late a thread wakes up", "ms", {LATENESS_SENSOR: ""}, 1, RED),
    ]


def picture(play: Run, claims: list[Claim]) -> Picture:
    """Sliding means with their range, and the moment Spark had come up."""
    devices: Laptop = play.devices
    found = read_rows(play.stage, "windows")
    begin = pd.Timestamp(devices.begun_ms, unit="ms", tz="UTC")
    found["s"] = (found["at"] - begin).dt.total_seconds()
    found = found[found["s"] >= WINDOW_S].sort_values("s")
    ready_s = (devices.ready_ms - devices.begun_ms) / 1000 if devices.ready_ms else float(found["s"].max())
    cpu = found[found["sensor"].str.startswith("cpu")]
    starting, after = cpu[cpu["s"] <= ready_s]["mean"], cpu[cpu["s"] > ready_s + WINDOW_S]["mean"]
    since = f", {after.mean():.0f} % since then" if len(after) else ""
    busy = f", with this machine's CPU at {starting.mean():.0f} %" if len(starting) else ""
    page = Picture(
        f"Spark started in {ready_s:.0f} s{busy}{since}",
        f"{devices.acknowledged:,} readings of {found['sensor'].nunique()} sensors of this machine, by MQTT to Spark; "
        f"lines are its means of {WINDOW_S} s, bands reach from the lowest to the highest reading",
        height=9.2,
    )
    shown = panels(found)
    grid = page.grid(len(shown), 1, height_ratios=[1.7, *[1] * (len(shown) - 1)], hspace=0.45)
    for number, panel in enumerate(shown):
        axes = page.axes(grid[number, 0], panel[0], y=panel[1], x="seconds since the device was switched on"
                         if number == len(shown) - 1 else "")  # fmt: skip
        draw_panel(axes, found, *panel[2:])
        axes.axvspan(0, ready_s, color=FAINT, alpha=0.13, linewidth=0)
        axes.axvline(ready_s, color=INK, linewidth=1, linestyle=(0, (3, 3)))
        axes.set_xlim(float(found["s"].min()), float(found["s"].max()))
        if number == 0:
            beside(axes, (ready_s, 0.09), "Spark's first batch is done", step=-0.2)
        axes.tick_params(labelbottom=number == len(shown) - 1)
    return page


def draw_panel(axes: Any, found: pd.DataFrame, sensors: Mapping[str, str], divisor: float, colour: str) -> None:
    """A line of means per sensor; behind it, for CPU and memory, from the lowest to the highest reading."""
    colours = (colour, *(one for one in SERIES if one != colour)) if len(sensors) > 2 else (colour, MUTED)
    has_band = all(sensor.startswith(("cpu", "memory")) for sensor in sensors)
    for (sensor, label), own in zip(sensors.items(), colours, strict=False):
        mine = found[found["sensor"] == sensor]
        if mine.empty:
            continue
        # Rates of single readings jump too far for a band: theirs is filled from nothing to the mean.
        low, high = (mine["low"], mine["high"]) if has_band else (0 * mine["mean"], mine["mean"])
        axes.fill_between(mine["s"], low / divisor, high / divisor, color=own, alpha=0.15, linewidth=0)
        axes.plot(mine["s"], mine["mean"] / divisor, color=own, label=label or None)
    if any(sensors.values()):
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1.0), ncols=6, borderaxespad=0.1)
    if not has_band:
        axes.set_ylim(0)
    elif "memory_percent" not in sensors:
        axes.set_ylim(0, 105)


EXAMPLE = Example(
    name="laptop",
    headline="This machine is the device: its sensors over MQTT, into Spark's sliding windows, while Spark starts.",
    filters=[FILTER],
    devices=Laptop,
    queries=queries,
    during=during,
    check=check,
    picture=picture,
    seconds=30.0,
    live=True,
)

if __name__ == "__main__":
    raise SystemExit(run(EXAMPLE))
