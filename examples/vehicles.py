"""Vehicles: which one enters and leaves which zone, while the zones themselves change, exact to the second.

    city/vehicles/<vehicle>/position   {"vehicle", "sent", "time_ms", "x", "y"}              1,200 a second
    city/zones/<zone>                  {"zone", "version", "from_ms", "x", "y", "radius"}    retained; valid one minute

Both are streams of the same log. Spark joins them: a position with the zone versions that are valid at its time and
touch its square of the map. What is left lies inside a zone; positions of a vehicle without a gap make one visit, from
enter to leave (a session window), wherever late and repeated positions fall. A second query keeps state per vehicle and
finds its positions in the order in which it sent them.

    python examples/vehicles.py [--seconds 80] [--seed 1] [--check]

The picture is a map; `vehicles.html` beside it plays the whole of it, offline.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kit import Claim, Disturbances, Example, Inbox, Picture, Replay, Run, Stage, bodies, equal, holds, read_rows, run
from kit.later import pd
from kit.stage import Queries

import numpy as np
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from lightmq.demo.picture import AMBER, BLUE, FAINT, GREEN, GRID, INK, MUTED, RED, TEAL, VIOLET

POSITIONS, ZONES = "city/vehicles/+/position", "city/zones/+"
POSITION = "vehicle string, sent long, time_ms long, x double, y double"
ZONE = "zone string, version long, from_ms long, x double, y double, radius double"
MORNING_MS = 1_768_550_400_000
"""Friday, 16 January 2026, 08:00 UTC."""
VEHICLES = 120
WIDTH_M, HEIGHT_M, STREET_M, CELL_M = 6000, 4000, 250, 500
PERIOD_S, ANNOUNCED_S = 60, 25
"""A zone version is valid for a period, and is published so long before it."""
LATE_BY_S, TUNNEL_S = 18, 20
WATERMARK_S = 45
TAIL_S = 240
"""Driven on after the part of the story that is judged, so that its last visits end and the watermark passes them."""
COLOURS = {
    "stadium": RED, "school": AMBER, "market": TEAL, "old town": BLUE, "hospital": VIOLET, "harbour": GREEN,
    "roadworks": "#b3541e",
}  # fmt: skip


# --- The city ----------------------------------------------------------------------------------------------------


def drive(story_s: int, rng: np.random.Generator) -> pd.DataFrame:
    """Drive all vehicles along the streets, a second at a time: straight on or turning at each crossing."""
    columns, rows = WIDTH_M // STREET_M, HEIGHT_M // STREET_M
    at = np.stack([rng.integers(0, columns + 1, VEHICLES), rng.integers(0, rows + 1, VEHICLES)], axis=1)
    heading = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])[rng.integers(0, 4, VEHICLES)]
    gone_m = rng.uniform(0, STREET_M, VEHICLES)
    cruise = rng.uniform(8, 15, VEHICLES)
    places = np.empty((story_s, VEHICLES, 2))
    limits = np.array([columns, rows])
    for second in range(story_s):
        gone_m += np.clip(cruise + rng.normal(0, 1.5, VEHICLES), 2, 18)
        crossed = gone_m >= STREET_M
        at = np.where(crossed[:, None], at + heading, at)
        gone_m = np.where(crossed, gone_m - STREET_M, gone_m)
        turned = np.stack([-heading[:, 1], heading[:, 0]], axis=1) * rng.choice([-1, 1], VEHICLES)[:, None]
        heading = np.where((crossed & (rng.random(VEHICLES) < 0.35))[:, None], turned, heading)
        for _ in range(4):  # never off the map: turn until the next crossing exists
            ahead = at + heading
            off = ((ahead < 0) | (ahead > limits)).any(axis=1)
            heading = np.where(off[:, None], np.stack([-heading[:, 1], heading[:, 0]], axis=1), heading)
        places[second] = at * STREET_M + heading * gone_m[:, None]
    seconds = np.repeat(np.arange(story_s), VEHICLES)
    return pd.DataFrame(
        {
            "vehicle": np.tile([f"van-{number:03d}" for number in range(1, VEHICLES + 1)], story_s),
            "due_s": seconds + np.tile(rng.uniform(0, 1, VEHICLES), story_s),
            "time_ms": MORNING_MS + seconds.astype(np.int64) * 1000,
            "x": places[..., 0].reshape(-1).round(1),
            "y": places[..., 1].reshape(-1).round(1),
        }
    )


def zones_of(story_s: int) -> pd.DataFrame:
    """Every version of every zone: some stay, the stadium empties, the school opens, the roadworks move on."""
    periods = np.arange(-(-story_s // PERIOD_S))
    share = periods / max(1, len(periods) - 1)
    still = np.ones(len(periods))
    shapes = {
        "stadium": (1500 * still, 2900 * still, 320 + 420 * np.clip((share - 0.25) * 3, 0, 1)),
        "school": (4400 * still, 3150 * still, np.where((share > 0.15) & (share < 0.7), 420.0, 0.0)),
        "market": (3000 * still, 1950 * still, 380 * still),
        "old town": (3450 * still, 950 * still, 560 * still),
        "hospital": (5250 * still, 1750 * still, 300 * still),
        "harbour": (900 * still, 700 * still, 520 - 200 * share),
        "roadworks": (1900 + 2400 * share, 2400 - 250 * share, 210 * still),
    }
    frames = [
        pd.DataFrame(
            {
                "zone": zone, "version": periods, "from_ms": MORNING_MS + periods.astype(np.int64) * PERIOD_S * 1000,
                "x": np.round(x, 1), "y": np.round(y, 1), "radius": np.round(radius, 1),
            }
        )
        for zone, (x, y, radius) in shapes.items()
    ]  # fmt: skip
    return pd.concat(frames, ignore_index=True)


def devices(stage: Stage) -> Replay:
    """Vehicles that send late, twice and from tunnels, and the authority that publishes the zones, retained."""
    rng = np.random.default_rng(stage.seed)
    story_s = int(stage.story_s)
    positions = drive(story_s, rng)
    positions["device"] = positions["vehicle"]
    positions["topic"] = "city/vehicles/" + positions["vehicle"] + "/position"
    sent = Disturbances.chosen(stage, late_by_s=LATE_BY_S, offline_for_s=TUNNEL_S).apply(positions, rng)
    sent["sent"] = sent.groupby("vehicle").cumcount()
    sent["body"] = bodies(sent, ["vehicle", "sent", "time_ms", "x", "y"])
    zones = zones_of(story_s)
    zones["device"] = "authority"
    zones["topic"] = "city/zones/" + zones["zone"].str.replace(" ", "-")
    zones["due_s"] = np.maximum(zones["version"] * PERIOD_S - ANNOUNCED_S, 0.0)
    zones["retain"] = True
    zones["body"] = bodies(zones, ["zone", "version", "from_ms", "x", "y", "radius"])
    messages = pd.concat([zones, sent], ignore_index=True).sort_values("due_s", kind="stable", ignore_index=True)
    messages["retain"] = messages["retain"].eq(True)

    def figures(now_s: float) -> Mapping[str, str]:
        return {"in the city": f"08:{int(now_s) // 60:02d}:{int(now_s) % 60:02d}, {VEHICLES} vehicles"}

    return Replay(stage, "vehicles", messages, figures=figures)


# --- The pipeline ------------------------------------------------------------------------------------------------


def load(spark: SparkSession, stage: Stage, topic_filter: str, schema: str) -> DataFrame:
    """A stream of one MQTT filter, its JSON as columns, in the order of the log per device."""
    source = spark.readStream.format("rocketmq").options(**stage.source).option("mqttFilter", topic_filter)
    body = F.from_json(F.col("body").cast("string"), schema).alias("message")
    return (
        source.option("columns", "queueOffset,body")
        .load()
        .select("queueOffset", body)
        .select("queueOffset", "message.*")
    )


def visits(positions: DataFrame, zones: DataFrame) -> DataFrame:
    """Stream-stream join by square of the map and time, then a session window per vehicle and zone."""
    located = positions.select(
        "vehicle", F.col("x").alias("px"), F.col("y").alias("py"), F.timestamp_millis("time_ms").alias("time"),
        F.floor(F.col("x") / CELL_M).alias("cell_x"), F.floor(F.col("y") / CELL_M).alias("cell_y"),
    ).withWatermark("time", f"{WATERMARK_S} seconds")  # fmt: skip

    def cells(centre: str) -> Any:
        low, high = F.col(centre) - F.col("radius"), F.col(centre) + F.col("radius")
        return F.explode(F.sequence(F.floor(low / CELL_M), F.floor(high / CELL_M)))

    valid = (
        zones.where("radius > 0")
        .select("zone", "x", "y", "radius", F.timestamp_millis("from_ms").alias("valid_from"))
        .withWatermark("valid_from", f"{PERIOD_S} seconds")
        .withColumn("zone_cell_x", cells("x"))
        .withColumn("zone_cell_y", cells("y"))
    )
    is_valid = (
        (F.col("cell_x") == F.col("zone_cell_x"))
        & (F.col("cell_y") == F.col("zone_cell_y"))
        & (F.col("time") >= F.col("valid_from"))
        & (F.col("time") < F.col("valid_from") + F.expr(f"INTERVAL {PERIOD_S} SECONDS"))
    )
    east, north = F.col("px") - F.col("x"), F.col("py") - F.col("y")
    inside = located.join(valid, is_valid).where(east * east + north * north <= F.col("radius") * F.col("radius"))
    visit = F.session_window("time", "1500 milliseconds")
    grouped = inside.select("vehicle", "zone", "time").groupBy(visit, "vehicle", "zone")
    return grouped.agg(F.min("time").alias("entered"), F.max("time").alias("left")).drop("session_window")


class Trip(StatefulProcessor):
    """What a vehicle has sent so far, and how often that was not the next one."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state of the vehicle."""
        self._state = handle.getValueState("trip", "positions long, breaks long, last long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Follow the positions of one vehicle in the order of its queue."""
        positions, breaks, last = self._state.get() or (0, 0, -1)
        for row in sorted(rows, key=lambda position: position.queueOffset):
            positions, breaks, last = positions + 1, breaks + (row.sent != last + 1), row.sent
        self._state.update((positions, breaks, last))
        yield Row(vehicle=key[0], positions=positions, breaks=breaks)

    def close(self) -> None:
        """Nothing is held outside Spark's state."""


def queries(spark: SparkSession, stage: Stage) -> Queries:
    """Visits, and the order of each vehicle's positions."""

    def positions() -> DataFrame:
        return load(spark, stage, POSITIONS, POSITION)

    def trips() -> Any:
        counted = positions().groupBy("vehicle").transformWithState(
            statefulProcessor=Trip(), outputStructType="vehicle string, positions long, breaks long",
            outputMode="Append", timeMode="None",
        )  # fmt: skip
        return stage.to_parquet(counted, "trips", trigger="2 seconds")

    return {
        "visits": lambda: stage.to_parquet(visits(positions(), load(spark, stage, ZONES, ZONE)), "visits"),
        "trips": trips,
    }


# --- What must be true -------------------------------------------------------------------------------------------


def truth(positions: pd.DataFrame, zones: pd.DataFrame) -> pd.DataFrame:
    """Visits by the simulator's own knowledge: runs of seconds in which a vehicle is inside."""
    seconds = ((positions["time_ms"] - MORNING_MS) // 1000).to_numpy()
    found = []
    for zone, versions in zones.groupby("zone"):
        versions = versions.sort_values("version")
        valid = seconds // PERIOD_S
        east = positions["x"].to_numpy() - versions["x"].to_numpy()[valid]
        north = positions["y"].to_numpy() - versions["y"].to_numpy()[valid]
        radius = versions["radius"].to_numpy()[valid]
        is_inside = (radius > 0) & (east * east + north * north <= radius * radius)
        inside = positions[is_inside].sort_values(["vehicle", "time_ms"])
        begins = (inside.groupby("vehicle")["time_ms"].diff() != 1000).cumsum()
        runs = inside.groupby(["vehicle", begins])["time_ms"].agg(["min", "max"]).reset_index(level=0)
        found.append(runs.assign(zone=zone))
    visits = pd.concat(found, ignore_index=True)
    for column, name in (("min", "entered"), ("max", "left")):
        visits[name] = pd.to_datetime(visits.pop(column), unit="ms", utc=True)
    return visits


def apart(sent: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Positions and zone versions, which were sent as one stream of messages."""
    is_position = sent["vehicle"].notna()
    positions = sent[is_position].astype({"time_ms": "int64", "sent": "int64"})
    return positions, sent[~is_position].astype({"version": "int64", "from_ms": "int64"})


def retained_versions(stage: Stage, count: int) -> dict[str, int]:
    """What a subscriber that comes now is told of the zones: the newest version of each."""
    versions: dict[str, int] = {}
    complete = threading.Event()

    def receive(_topic: str, body: bytes) -> None:
        zone = json.loads(body)
        versions[zone["zone"]] = zone["version"]
        if len(versions) == count:
            complete.set()

    inbox = Inbox(stage, "newcomer", ZONES, receive, qos=1)
    inbox.connect()
    complete.wait(10)
    inbox.close()
    return versions


def check(play: Run) -> list[Claim]:
    """Every position once and in order, every enter and leave as it happened, zones retained."""
    stage, sent = play.stage, play.devices.published
    positions, zones = apart(sent)
    distinct = positions[~positions["is_duplicate"].eq(True)]
    until = pd.Timestamp(distinct["time_ms"].max(), unit="ms", tz="UTC") - pd.Timedelta(seconds=TAIL_S)
    wanted = truth(distinct, zones)
    found = read_rows(stage, "visits")
    keys = ["vehicle", "zone", "entered", "left"]
    wanted, found = wanted[wanted["left"] < until][keys], found[found["left"] < until][keys]
    both = wanted.merge(found.astype(wanted.dtypes.to_dict()), on=keys, how="outer", indicator=True)
    trips = read_rows(stage, "trips").groupby("vehicle")[["positions", "breaks"]].max()
    newest = retained_versions(stage, zones["zone"].nunique())
    rough = int((positions["is_late"].eq(True) | positions["is_offline"].eq(True)).sum())
    return [
        equal("messages", sent=len(sent), acknowledged=play.devices.acknowledged),
        equal("positions", sent=len(positions), counted_by_Spark=int(trips["positions"].sum())),
        holds("order per vehicle", not trips["breaks"].any(), f"{int(trips['breaks'].sum())} breaks in {len(trips)}"),
        holds(
            "enter and leave as they happened", len(wanted) > 0 and (both["_merge"] == "both").all(),
            f"{2 * len(wanted):,} events, found {2 * len(found):,}, different {int((both['_merge'] != 'both').sum())}",
        ),
        holds(
            "zones are retained", newest == zones.groupby("zone")["version"].max().astype(int).to_dict(),
            f"a newcomer is told the newest version of {len(newest)}",
        ),
        holds(
            "the field was rough", rough > 0 or not any(stage.options.values()),
            f"{rough:,} positions late or from a tunnel, {int(positions['is_duplicate'].eq(True).sum()):,} sent twice",
        ),
    ]  # fmt: skip


# --- The picture -------------------------------------------------------------------------------------------------


def picture(play: Run, claims: list[Claim]) -> Picture:
    """The map with what Spark found, and the traffic of each zone over time."""
    found = read_rows(play.stage, "visits")
    positions, zones = apart(play.devices.published)
    positions = positions[~positions["is_duplicate"].eq(True)].sort_values(["vehicle", "time_ms"])
    busiest = found["zone"].value_counts()
    page = Picture(
        f"{2 * len(found):,} times a van entered or left a zone, each to the second",
        f"{len(positions):,} positions of {VEHICLES} vans joined with zones that change every minute; most traffic: "
        f"{busiest.index[0]} with {busiest.iloc[0]} visits",
        width=13, height=7.8,
    )  # fmt: skip
    grid = page.grid(len(COLOURS), 2, width_ratios=[2.35, 1], wspace=0.12, hspace=0.35)
    draw_map(page, grid[:, 0], positions, zones, found)
    draw_traffic(page, grid, zones, found)
    write_replay(play.stage, positions, zones, found)
    return page


def write_replay(stage: Stage, positions: pd.DataFrame, zones: pd.DataFrame, found: pd.DataFrame) -> None:
    """Write the same as a page that plays: vans on the map, zones as they change. It needs no network."""
    begin = pd.Timestamp(MORNING_MS, unit="ms", tz="UTC")
    second = (positions["time_ms"] - MORNING_MS) // 1000
    table = (
        positions.assign(second=second)
        .pivot_table(index="second", columns="vehicle", values=["x", "y"])
        .ffill()
        .bfill()
    )
    tracks = np.stack([table["x"].to_numpy(), table["y"].to_numpy()], axis=2) * 10
    visits = found.assign(
        entered=(found["entered"] - begin).dt.total_seconds().astype(int),
        left=(found["left"] - begin).dt.total_seconds().astype(int),
    )
    data = {
        "width": WIDTH_M, "height": HEIGHT_M, "street": STREET_M, "period": PERIOD_S, "speed": stage.speed,
        "colours": COLOURS, "vans": list(table["x"].columns),
        "zones": {
            zone: versions.sort_values("version")[["x", "y", "radius"]].to_numpy().tolist()
            for zone, versions in zones.groupby("zone")
        },
        "visits": visits[["vehicle", "zone", "entered", "left"]].to_numpy().tolist(),
        "tracks": base64.b64encode(tracks.round().astype("<u2").tobytes()).decode(),
    }  # fmt: skip
    template = Path(__file__).with_name("vehicles_map.html").read_text()
    stage.folder("vehicles.html").write_text(template.replace("__DATA__", json.dumps(data)))


def draw_map(page: Picture, place: Any, positions: pd.DataFrame, zones: pd.DataFrame, found: pd.DataFrame) -> None:
    """Streets, tracks, zones in all their versions, and where vans entered and left."""
    axes = page.axes(place, "The city, 08:00", x="km east", y="km north")
    axes.grid(visible=False)
    river = np.linspace(-0.2, HEIGHT_M / 1000 + 0.2, 60)
    axes.plot(2.45 + 0.28 * np.sin(river * 1.9) - 0.12 * river, river, color="#dcebf7", linewidth=22, zorder=0)
    for x in range(0, WIDTH_M + 1, STREET_M):
        axes.plot([x / 1000, x / 1000], [0, HEIGHT_M / 1000], color=GRID, linewidth=2.2, zorder=1)
    for y in range(0, HEIGHT_M + 1, STREET_M):
        axes.plot([0, WIDTH_M / 1000], [y / 1000, y / 1000], color=GRID, linewidth=2.2, zorder=1)
    for _, track in positions.groupby("vehicle"):
        axes.plot(track["x"] / 1000, track["y"] / 1000, color=FAINT, linewidth=0.5, alpha=0.35, zorder=2)
    draw_visits(axes, positions, found)
    counts = found["zone"].value_counts()
    for zone, versions in zones[zones["radius"] > 0].groupby("zone"):
        colour = COLOURS[zone]
        shapes = versions.drop_duplicates(["x", "y", "radius"])
        for x, y, radius in shapes[["x", "y", "radius"]].to_numpy() / 1000:
            axes.add_patch(circle(x, y, radius, facecolor=colour, alpha=0.22 / len(shapes) ** 0.7, zorder=3))
            axes.add_patch(circle(x, y, radius, edgecolor=colour, fill=False, alpha=0.6, linewidth=1, zorder=4))
        x, y, radius = versions.loc[versions["radius"].idxmax(), ["x", "y", "radius"]].astype(float) / 1000
        axes.text(
            x, y + radius + 0.06, f"{zone}  {counts.get(zone, 0)}", color=colour, fontsize=10, fontweight="bold",
            ha="center", va="bottom", zorder=9,
            bbox={"boxstyle": "round,pad=0.2", "fc": "white", "ec": "none", "alpha": 0.8},
        )  # fmt: skip
    place_of = positions.set_index(["vehicle", pd.to_datetime(positions["time_ms"], unit="ms", utc=True)])[["x", "y"]]
    place_of = place_of[~place_of.index.duplicated()]
    for column, marker, colour in (("entered", "^", INK), ("left", "v", "white")):
        at = place_of.reindex(pd.MultiIndex.from_frame(found[["vehicle", column]]))
        axes.scatter(at["x"] / 1000, at["y"] / 1000, marker=marker, s=15, color=colour, edgecolor=INK, linewidth=0.6,
                     zorder=6, label=column)  # fmt: skip
    axes.legend(loc="lower right", ncols=2, facecolor="white", frameon=True, edgecolor="none")
    axes.set_aspect("equal")
    axes.set_xlim(-0.05, WIDTH_M / 1000 + 0.05)
    axes.set_ylim(-0.05, HEIGHT_M / 1000 + 0.05)


def draw_visits(axes: Any, positions: pd.DataFrame, found: pd.DataFrame) -> None:
    """The part of each track that Spark found inside a zone, in the zone's colour."""
    begin = pd.Timestamp(MORNING_MS, unit="ms", tz="UTC")
    tracks = {vehicle: track[["x", "y"]].to_numpy() / 1000 for vehicle, track in positions.groupby("vehicle")}
    for vehicle, zone, entered, left in found[["vehicle", "zone", "entered", "left"]].itertuples(index=False):
        first, last = (int((moment - begin).total_seconds()) for moment in (entered, left))
        inside = tracks[vehicle][first : last + 1]
        axes.plot(inside[:, 0], inside[:, 1], color=COLOURS[zone], linewidth=2, alpha=0.5, zorder=5)


def circle(x: float, y: float, radius: float, **style: Any) -> Any:
    """A zone on the map."""
    from matplotlib.patches import Circle

    return Circle((x, y), radius, **style)


def draw_traffic(page: Picture, grid: Any, zones: pd.DataFrame, found: pd.DataFrame) -> None:
    """Vans inside each zone over time."""
    begin = pd.Timestamp(MORNING_MS, unit="ms", tz="UTC")
    seconds = np.arange(int((found["left"].max() - begin).total_seconds()) + 1)
    highest = 1
    panels = []
    for number, (zone, colour) in enumerate(COLOURS.items()):
        mine = found[found["zone"] == zone]
        entered = (mine["entered"] - begin).dt.total_seconds().to_numpy()
        left = (mine["left"] - begin).dt.total_seconds().to_numpy()
        inside = ((entered <= seconds[:, None]) & (left >= seconds[:, None])).sum(axis=1)
        highest = max(highest, int(inside.max(initial=0)))
        last = number == len(COLOURS) - 1
        axes = page.axes(grid[number, 1], x="minutes" if last else "")
        axes.fill_between(seconds / 60, inside, step="mid", color=colour, alpha=0.35, linewidth=0)
        axes.plot(seconds / 60, inside, drawstyle="steps-mid", color=colour, linewidth=1.2)
        axes.text(0.01, 0.95, zone, transform=axes.transAxes, color=colour, fontweight="bold", fontsize=9, va="top")
        if number == 0:
            axes.set_title("Vans inside")
        if not last:
            axes.set_xticklabels([])
        panels.append(axes)
    for axes in panels:
        axes.set_ylim(0, highest * 1.25)
        axes.set_xlim(0, seconds[-1] / 60)
        axes.tick_params(labelcolor=MUTED)


EXAMPLE = Example(
    name="vehicles",
    headline="Vans drive through zones that change every minute; Spark tells who entered and left, to the second.",
    filters=[POSITIONS, ZONES],
    devices=devices,
    queries=queries,
    check=check,
    picture=picture,
    seconds=80.0,
    speed=10.0,
    disturbances={"late": 0.02, "duplicates": 0.01, "out_of_order": 0.01, "offline": 0.2},
)

if __name__ == "__main__":
    raise SystemExit(run(EXAMPLE))
