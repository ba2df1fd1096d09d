"""Building: sixty meters report their power, Spark makes energy by room and floor of it, late readings included.

    site/hq/floor/<floor>/room/<room>/power   {"meter", "time_ms", "watts"}   every two minutes of the story

A room is a thermal RC model with a thermostat, people by the use of the room, and one window that someone left open.
Readings come late, twice and out of order, and meters go offline; the windows are exact all the same, because each
reading has its own time and the watermark waits longer than the worst delay. What the stream wrote is compared with a
batch over the same log, window by window.

    python examples/building.py [--seconds 60] [--seed 1] [--late 0.03] [--check]
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from kit import Claim, Disturbances, Example, Picture, Queries, Replay, Run, Stage, equal, holds, read_rows, run
from kit.later import pd

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows

from lightmq.demo.picture import AMBER, BLUE, FAINT, MUTED, PAPER, RED, beside, callout, heat

FILTER = "site/+/floor/+/room/+/power"
READING = "meter string, time_ms long, watts long"
MIDNIGHT_MS = 1_768_435_200_000
"""Thursday, 15 January 2026, 00:00 UTC: the day of the story."""
FLOORS, ROOMS_PER_FLOOR = 5, 12
EVERY_S = 120
WINDOW_S, HOP_S, HOPPING_S = 900, 1800, 3600
LATE_BY_S, OFFLINE_FOR_S = 1500, 2400
WATERMARK_S = 5400
"""Longer than any delay, so that no reading is left out; a window is written when this much time has passed it."""
USES = {"office": (12, 14.0), "meeting": (18, 9.0), "kitchen": (15, 26.0), "lab": (10, 42.0)}
"""By use: comfortable degrees above 8 (at night the heating aims at 14), and watts of equipment per square metre."""


# --- The building ------------------------------------------------------------------------------------------------


def rooms_of(seed: int) -> pd.DataFrame:
    """The static table: floor, room, use, area (m²), and which window is open."""
    rng = np.random.default_rng(seed)
    floor, room = np.divmod(np.arange(FLOORS * ROOMS_PER_FLOOR), ROOMS_PER_FLOOR)
    use = np.where(room == 5, "kitchen", np.where(room % 4 == 2, "meeting", np.where(floor == 1, "lab", "office")))
    area = np.where(use == "kitchen", 22, rng.integers(18, 46, len(room)))
    open_window = np.zeros(len(room), bool)
    open_window[rng.choice(np.flatnonzero(use == "office"))] = True
    return pd.DataFrame({"floor": floor + 1, "room": room + 1, "use": use, "area_m2": area, "open_window": open_window})


def occupancy(use: pd.Series, hour: float) -> np.ndarray:
    """Share of the people of a room who are there at an hour of the day."""
    workday = np.clip(1.3 * np.exp(-(((hour - 13.0) / 4.2) ** 4)) - 0.05, 0, 1)
    lunch = np.exp(-(((hour - 12.4) / 0.8) ** 2)) + 0.35 * np.exp(-(((hour - 9.0) / 0.7) ** 2))
    meetings = workday * (0.35 + 0.65 * (np.sin(hour * 2.1) > 0.1))
    return np.select([use == "kitchen", use == "meeting"], [lunch, meetings], workday * (1 - 0.45 * lunch))


def simulate(rooms: pd.DataFrame, story_s: float, rng: np.random.Generator) -> pd.DataFrame:
    """Solve the rooms' heat balance step by step, all rooms at once: a reading per meter and step.

    C dT/dt = (T_out - T) / R + heat of people and equipment + heating. A heat pump takes a third of its heat.
    """
    area = rooms["area_m2"].to_numpy(float)
    comfort = rooms["use"].map({use: 8.0 + above for use, (above, _) in USES.items()}).to_numpy()
    equipment = rooms["use"].map({use: watts for use, (_, watts) in USES.items()}).to_numpy()
    capacity = 1.6e5 * area  # J/K: air, furniture and the surface of the walls
    loss = np.where(rooms["open_window"], 7.5, 1.25) * area  # W/K
    temperature = np.full(len(rooms), 15.0) + rng.normal(0, 0.6, len(rooms))
    heating = np.zeros(len(rooms), bool)
    readings = []
    for step in range(int(story_s // EVERY_S)):
        hour = (step * EVERY_S / 3600) % 24
        outside = -1.5 + 4.5 * np.sin((hour - 9.5) / 24 * 2 * np.pi)
        people = occupancy(rooms["use"], hour) * np.clip(rng.normal(1, 0.12, len(rooms)), 0, None)
        wanted = np.where((hour > 5.5) & (hour < 19), comfort, 14.0)
        heating = np.where(temperature < wanted - 0.4, True, np.where(temperature > wanted + 0.4, False, heating))
        heat = np.where(heating, 140.0 * area, 0.0)
        used = area * (2.2 + equipment * people) + 9.0 * area * (people > 0.12)
        gain = 0.8 * used + heat
        temperature = temperature + EVERY_S / capacity * (loss * (outside - temperature) + gain)
        readings.append(np.round(used + heat / 3 + rng.normal(0, 6, len(rooms))).clip(0))
    watts = np.array(readings, dtype=np.int64)
    steps, count = watts.shape
    at_s = np.repeat(np.arange(steps) * EVERY_S, count) + np.tile(np.round(rng.uniform(0, EVERY_S, count), 3), steps)
    frame = rooms[["floor", "room"]].iloc[np.tile(np.arange(count), steps)].reset_index(drop=True)
    frame["meter"] = frame["floor"].astype(str) + "-" + frame["room"].astype(str).str.zfill(2)
    frame["due_s"] = at_s
    frame["time_ms"] = MIDNIGHT_MS + (at_s * 1000).astype(np.int64)
    frame["watts"] = watts.reshape(-1)
    return frame


def devices(stage: Stage) -> Replay:
    """The meters, with readings that are late, doubled, out of order, or kept while a meter was offline."""
    rng = np.random.default_rng(stage.seed)
    rooms = rooms_of(stage.seed)
    rooms.to_parquet(stage.folder("rooms.parquet"))
    readings = simulate(rooms, stage.story_s, rng)
    readings["device"] = readings["meter"]
    floor, room = readings["floor"].astype(str), readings["room"].astype(str)
    readings["topic"] = "site/hq/floor/" + floor + "/room/" + room + "/power"
    disturbed = Disturbances.chosen(stage, late_by_s=LATE_BY_S, offline_for_s=OFFLINE_FOR_S).apply(readings, rng)

    def figures(story_s: float) -> Mapping[str, str]:
        moment = datetime.fromtimestamp(MIDNIGHT_MS / 1000 + story_s, UTC)
        return {"in the building": f"{moment:%H:%M}, {len(rooms)} meters"}

    return Replay(stage, "building", disturbed, ["meter", "time_ms", "watts"], figures=figures)


# --- The pipeline ------------------------------------------------------------------------------------------------


def readings(source: DataFrame) -> DataFrame:
    """Levels of the MQTT topic as columns, the body's fields, and the time of the reading."""
    level = F.split("mqttTopic", "/")
    body = F.from_json(F.col("body").cast("string"), READING)
    return source.select(
        level[3].cast("int").alias("floor"), level[5].cast("int").alias("room"), body.alias("reading")
    ).select("floor", "room", "reading.*", F.timestamp_millis("reading.time_ms").alias("time"))


def by_room(rows: DataFrame, rooms: DataFrame) -> DataFrame:
    """Tumbling windows by room, joined with the static table."""
    grouped = rows.groupBy(F.window("time", f"{WINDOW_S} seconds"), "floor", "room")
    sums = grouped.agg(F.count("*").alias("readings"), F.sum("watts").alias("watt_sum"))
    sums = sums.select(F.col("window.start").alias("start"), "floor", "room", "readings", "watt_sum")
    watt_hours = F.col("watt_sum") / F.col("readings") * (WINDOW_S / 3600)
    joined = sums.join(F.broadcast(rooms), ["floor", "room"])
    return joined.withColumn("wh", watt_hours).withColumn("w_per_m2", watt_hours / (WINDOW_S / 3600) / F.col("area_m2"))


def by_floor(rows: DataFrame) -> DataFrame:
    """Hopping windows by floor: the last hour, every half hour."""
    window = F.window("time", f"{HOPPING_S} seconds", f"{HOP_S} seconds")
    sums = rows.groupBy(window, "floor").agg(F.count("*").alias("readings"), F.sum("watts").alias("watt_sum"))
    return sums.select(F.col("window.start").alias("start"), "floor", "readings", "watt_sum")


def queries(spark: SparkSession, stage: Stage) -> Queries:
    """Two queries over one MQTT filter; a reading that was sent twice counts once."""
    rooms = spark.read.parquet(str(stage.folder("rooms.parquet")))

    def stream() -> DataFrame:
        reader = spark.readStream.format("rocketmq").options(**stage.source)
        source = reader.option("mqttFilter", FILTER).option("columns", "mqttTopic,body").load()
        timed = readings(source).withWatermark("time", f"{WATERMARK_S} seconds")
        return timed.dropDuplicatesWithinWatermark(["meter", "time_ms"])

    return {
        "rooms": lambda: stage.to_parquet(by_room(stream(), rooms), "rooms"),
        "floors": lambda: stage.to_parquet(by_floor(stream()), "floors"),
    }


def batch(spark: SparkSession, stage: Stage) -> None:
    """The same windows once more, as a batch over the same log."""
    rooms = spark.read.parquet(str(stage.folder("rooms.parquet")))
    reader = spark.read.format("rocketmq").options(**stage.source)
    source = reader.option("mqttFilter", FILTER).option("columns", "mqttTopic,body").load()
    rows = readings(source).dropDuplicates(["meter", "time_ms"]).cache()
    by_room(rows, rooms).write.parquet(str(stage.folder("rooms_batch")))
    by_floor(rows).write.parquet(str(stage.folder("floors_batch")))


# --- What must be true -------------------------------------------------------------------------------------------


def difference(stage: Stage, name: str, keys: list[str], until: pd.Timestamp) -> tuple[int, int, int]:
    """Windows of the stream, those of the batch that had ended by then, and how many differ in any figure."""
    streamed, recomputed = read_rows(stage, name), read_rows(stage, f"{name}_batch")
    recomputed = recomputed[recomputed["start"] < until]
    streamed = streamed[streamed["start"] < until]
    figures = [*keys, "start", "readings", "watt_sum"]
    both = streamed[figures].merge(recomputed[figures], on=figures, how="outer", indicator=True)
    return len(streamed), len(recomputed), int((both["_merge"] != "both").sum())


def check(play: Run) -> list[Claim]:
    """Nothing lost, each reading once, and the stream's windows equal to the batch's."""
    stage, sent = play.stage, play.devices.published
    distinct = sent[~sent["is_duplicate"]]
    midnight = pd.Timestamp(MIDNIGHT_MS, unit="ms", tz="UTC")
    # What the last readings have pushed the watermark past; the stream writes nothing younger.
    told_s = float(distinct["time_ms"].max() - MIDNIGHT_MS) / 1000 - WATERMARK_S - HOPPING_S
    until = midnight + pd.Timedelta(seconds=told_s // HOP_S * HOP_S)
    rooms = read_rows(stage, "rooms_batch")
    late = int((sent["is_late"] | sent["is_offline"] | sent["is_out_of_order"]).sum())
    claims = [
        equal("messages", sent=len(sent), acknowledged=play.devices.acknowledged),
        equal("readings", measured=len(distinct), counted_by_Spark=int(rooms["readings"].sum())),
    ]
    for name, keys in (("rooms", ["floor", "room"]), ("floors", ["floor"])):
        streamed, recomputed, different = difference(stage, name, keys, until)
        figures = f"streamed {streamed:,}, batch {recomputed:,}, different {different}"
        is_true = streamed == recomputed > 0 and different == 0
        claims.append(holds(f"windows by {name[:-1]} equal a batch recompute", is_true, figures))
    doubled = int(sent["is_duplicate"].sum())
    shown = f"{late:,} late or out of order, {doubled:,} sent twice"
    claims.append(holds("the field was rough", late > 0 or not any(stage.options.values()), shown))
    return claims


# --- The picture -------------------------------------------------------------------------------------------------


def picture(play: Run, claims: list[Claim]) -> Picture:
    """Heat map of power density by room over the day, the floors' load, and the rooms that cost most at night."""
    windows = read_rows(play.stage, "rooms")
    windows["hour"] = (windows["start"] - pd.Timestamp(MIDNIGHT_MS, unit="ms", tz="UTC")).dt.total_seconds() / 3600
    windows["label"] = windows["floor"].astype(str) + "." + windows["room"].astype(str).str.zfill(2)
    windows = windows[windows["hour"] < 24]
    night = windows[(windows["hour"] < 5) | (windows["hour"] >= 20)]
    by_night = night.groupby("label").agg(kwh=("wh", lambda wh: wh.sum() / 1000), dense=("w_per_m2", "mean"))
    worst = by_night["dense"].idxmax()
    usual = by_night["dense"].drop(worst).median()
    total = windows["wh"].sum() / 1000
    last = float(windows["hour"].max()) + WINDOW_S / 3600
    when = "on a January day" if last > 23 else f"in the first {last:.2g} hours of a January day"
    page = Picture(
        f"Room {worst} heats the street: {by_night.loc[worst, 'kwh']:.0f} kWh in the night",
        f"{total:,.0f} kWh in {len(by_night)} rooms {when}; that room draws "
        f"{by_night.loc[worst, 'dense'] / usual:.1f} times the power per m² of the others while everyone sleeps",
        height=8.6,
    )
    grid = page.grid(2, 3, height_ratios=[2.5, 1], width_ratios=[1.5, 1, 1], hspace=0.36, wspace=0.2)
    draw_heat_map(page, grid[0, :], windows, worst)
    draw_floors(page, grid[1, 0], windows)
    draw_night(
        page, grid[1, 1], by_night, worst, "20:00 to 05:00" if last > 20 else f"00:00 to {clock(min(last, 5.0))}"
    )
    draw_delays(page, grid[1, 2], play.devices.published)
    return page


def clock(hour: float) -> str:
    """An hour of the day as a clock shows it."""
    return f"{int(hour):02d}:{round(hour % 1 * 60):02d}"


def mark_hours(axes: Any, last: float, ticks_max: int) -> None:
    """Hours at the x axis, at most so many, and quarters of one where the story is short."""
    step = next((one for one in (0.25, 0.5, 1, 2, 3, 4, 6) if last / one < ticks_max), 12)
    at = np.arange(0, last + 1e-9, step)
    axes.set_xticks(at, [f"{one:g}" for one in at])


def draw_heat_map(page: Picture, place: object, windows: pd.DataFrame, worst: str) -> None:
    """Rooms from top to bottom by floor, the day from left to right."""
    table = windows.pivot_table(index=["floor", "room"], columns="hour", values="w_per_m2").sort_index(
        ascending=[False, True]
    )
    axes = page.axes(place, "Power by room, 15-minute windows", x="hour of the day (UTC)", y="floor")
    last = float(table.columns.max()) + WINDOW_S / 3600
    image = axes.imshow(
        table, aspect="auto", cmap=heat(), extent=(0, last, len(table), 0), vmin=0,
        vmax=float(np.nanpercentile(table, 99.5)), interpolation="nearest",
    )  # fmt: skip
    axes.grid(visible=False)
    for edge in range(ROOMS_PER_FLOOR, len(table), ROOMS_PER_FLOOR):
        axes.axhline(edge, color=PAPER, linewidth=2.5)
    floors = table.index.get_level_values("floor").unique()
    axes.set_yticks([ROOMS_PER_FLOOR * (number + 0.5) for number in range(len(floors))], [str(one) for one in floors])
    mark_hours(axes, last, 14)
    axes.tick_params(axis="y", labelsize=11)
    bar = page.figure.colorbar(image, ax=axes, pad=0.012, fraction=0.022)
    bar.ax.set_title("W/m²", fontsize=8.5, color=MUTED, loc="left")
    bar.ax.tick_params(labelsize=8.5, labelcolor=MUTED, length=0)
    bar.outline.set_visible(False)
    floor, room = (int(part) for part in worst.split("."))
    row = list(table.index).index((floor, room)) + 0.5
    callout(axes, f"room {worst}: someone left the window open", (0.04 * last, row), (26, -34), RED)


def draw_floors(page: Picture, place: object, windows: pd.DataFrame) -> None:
    """Load of each floor over the day."""
    axes = page.axes(place, "Load by floor", x="hour of the day (UTC)", y="kW")
    loads = windows.groupby(["floor", "hour"])["wh"].sum().unstack("floor") / (WINDOW_S / 3600) / 1000
    shades = [BLUE, "#5e92ec", "#92b6f1", "#c3d6f7", AMBER]
    order = loads.sum().sort_values().index
    axes.stackplot(
        loads.index, [loads[floor] for floor in order], colors=shades[: len(order)], linewidth=0,
        labels=[str(floor) for floor in order],
    )  # fmt: skip
    axes.legend(
        loc="lower right", bbox_to_anchor=(1, 1), ncols=len(order), borderaxespad=0.2, handlelength=0.9,
        handletextpad=0.4, columnspacing=0.9,
    )  # fmt: skip
    axes.set_xlim(0, float(loads.index.max()) or 1.0)
    mark_hours(axes, float(loads.index.max()), 8)
    axes.set_ylim(0)


def draw_night(page: Picture, place: object, by_night: pd.DataFrame, worst: str, when: str) -> None:
    """Every room's draw at night, as far as there is data of it, the worst one named."""
    axes = page.axes(place, f"Draw at night, {when}", x="rooms, by draw", y="W per m²")
    ordered = by_night["dense"].sort_values(ascending=False)
    axes.bar(range(len(ordered)), ordered, color=[RED if one == worst else FAINT for one in ordered.index], width=0.8)
    axes.set_xticks([])
    axes.grid(visible=False, axis="x")
    callout(axes, f"room {worst}\n{ordered.iloc[0]:.0f} W/m²", (0.4, ordered.iloc[0] * 0.9), (30, -6), RED)
    callout(axes, f"the others: {ordered.iloc[1:].median():.0f} W/m²", (28, ordered.iloc[28]), (6, 34), MUTED)


def draw_delays(page: Picture, place: object, sent: pd.DataFrame) -> None:
    """How long readings took to the log, in minutes of the story, beside the watermark."""
    axes = page.axes(place, "Delay of the late readings", x="minutes after it was measured", y="readings")
    delay = sent["due_s"] - (sent["time_ms"] - MIDNIGHT_MS) / 1000
    late = delay[(delay > 60) & ~sent["is_duplicate"]] / 60
    axes.hist(late, bins=np.arange(0, WATERMARK_S / 60 + 10, 2.5), color=BLUE)
    axes.axvline(WATERMARK_S / 60, color=RED, linewidth=1.4)
    axes.grid(visible=False, axis="x")
    top = axes.get_ylim()[1]
    beside(axes, (WATERMARK_S / 60 - 2, top * 0.93), "watermark", RED, data=True)
    beside(axes, (WATERMARK_S / 60 - 2, top * 0.82), f"{len(late):,} late, none left out", MUTED, data=True)


EXAMPLE = Example(
    name="building",
    headline="Sixty meters, one filter: energy by room and floor in exact windows, whatever comes late or twice.",
    filters=[FILTER],
    devices=devices,
    queries=queries,
    batch=batch,
    check=check,
    picture=picture,
    seconds=60.0,
    speed=1620.0,
    disturbances={"late": 0.03, "duplicates": 0.02, "out_of_order": 0.02, "offline": 0.15},
    settings={"spark.sql.shuffle.partitions": "2"},
)

if __name__ == "__main__":
    raise SystemExit(run(EXAMPLE))
