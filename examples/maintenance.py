"""Maintenance: a detector learns from a machine's history in the log, then the same query that judged it goes live.

    plant/<machine>/temperature   {"seq", "time_ms", "celsius"}   a reading every five minutes

The machine is simulated: shifts, seasons of the air, a bearing whose wear shows as friction heat for one or two days
before it fails, and the repair. Its history is in the log when Spark comes: a batch reads it, days in a second, and an
isolation forest (scikit-learn) learns from what was outside of the known failures. The streaming query begins at the
first reading too: it judges the history, and goes on, from the same checkpoint, with what arrives.
Features are made by a state per machine, and judged by an Arrow-based pandas UDF.

    python examples/maintenance.py [--seconds 40] [--seed 1] [--check]
    python examples/maintenance.py --csv machine_temperature_system_failure.csv --windows labelled_windows.json

`--csv` takes a real series (columns timestamp, value), for example of the NAB corpus, and `--windows` its labels.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kit import Claim, Example, Picture, Queries, Replay, Run, Stage, equal, holds, read_rows, run
from kit.later import pd

import numpy as np
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from lightmq.demo.picture import AMBER, BLUE, FAINT, GREEN, INK, MUTED, RED
from runtime.clock import SystemClock

FILTER = "plant/+/temperature"
READING = "seq long, time_ms long, celsius double"
MONDAY_MS = 1_767_571_200_000
"""Monday, 5 January 2026, 00:00 UTC."""
DAYS, EVERY_S = 77, 300
PER_DAY, PER_HOUR = 86_400 // EVERY_S, 3600 // EVERY_S
HISTORY_SHARE = 0.4
"""How much of the series is in the log before Spark comes."""
REPAIR_S = 86_400
"""After a failure the machine is in repair: readings of that time are not learned from, nor alarms in it counted."""
KEPT = PER_DAY + PER_HOUR
"""Readings that a machine's state keeps: what the features need."""
FEATURES = ("celsius", "two_hours", "spread", "change")
TREES, SAMPLES, QUANTILE = 100, 512, 0.995
"""Of the forest; a reading is odd when it scores above this share of the healthy history."""
ODD, OF = 6, 12
"""An alarm is raised when so many of the last readings are odd, and ends when none is."""
SILENCE = PER_DAY // 2
"""Alarms closer than this are one."""
REPLAY_MIN = 1000
HISTORY_TIMEOUT_S = 240.0


# --- The machine -------------------------------------------------------------------------------------------------


def simulate(seed: int) -> tuple[pd.DataFrame, list[tuple[int, int]]]:
    """Readings, and for each failure the span of readings from the first wear to the failure.

    C dT/dt = P load + friction - k (T - T_air), a step of five minutes at a time.
    """
    rng = np.random.default_rng(seed)
    count = DAYS * PER_DAY
    day = np.arange(count) / PER_DAY
    hour = day % 1 * 24
    shift = 1 / (1 + np.exp(-(hour - 6) * 2)) / (1 + np.exp((hour - 22) * 2))
    load = np.where(day.astype(int) % 7 < 5, 0.70 + 0.2 * shift, 0.66 + 0.08 * shift) + slow(rng, count, 60) * 0.12
    air = 19 + 3 * np.sin((hour - 9) / 24 * 2 * np.pi) + slow(rng, count, 800) * 20
    friction, stopped, failures = np.zeros(count), np.zeros(count, bool), []
    number = DAYS // 14
    for one in range(number):
        end = int((one + 0.55 + rng.uniform(-0.2, 0.2)) * count / number)
        begin = end - int(rng.uniform(30, 50) * PER_HOUR)
        wear = np.linspace(0, 1, end - begin)
        friction[begin:end] = rng.uniform(34, 44) * (np.exp(2.2 * wear) - 1) / (np.exp(2.2) - 1)
        stopped[end : end + int(rng.uniform(6, 14) * PER_HOUR)] = True
        failures.append((begin, end))
    celsius, temperature = np.empty(count), 60.0
    for step in range(count):
        wanted = air[step] + (0.0 if stopped[step] else 62 * load[step] + friction[step])
        temperature += (wanted - temperature) / 18
        celsius[step] = temperature
    readings = pd.DataFrame({"celsius": np.round(celsius + rng.normal(0, 0.35, count), 2)})
    readings["time_ms"] = MONDAY_MS + np.arange(count) * EVERY_S * 1000
    return readings, failures


def slow(rng: np.random.Generator, count: int, span: int) -> np.ndarray:
    """Noise that changes over so many readings."""
    return np.asarray(pd.Series(rng.normal(0, 1, count)).ewm(span=span).mean())


def real(path: Path, labels: str) -> tuple[pd.DataFrame, list[tuple[int, int]]]:
    """A series of two columns, timestamp and value, with its labelled windows (JSON as in the NAB corpus) if given."""
    table = pd.read_csv(path, parse_dates=["timestamp"])
    at = table["timestamp"].dt.tz_localize("UTC").astype("datetime64[ms, UTC]")
    readings = pd.DataFrame({"celsius": table["value"], "time_ms": at.astype("int64")})
    windows = []
    if labels:
        known = json.loads(Path(labels).read_text())
        chosen: list[list[str]] = next((spans for name, spans in known.items() if name.endswith(path.name)), [])
        windows = [(int((at < stamp(begin)).sum()), int((at <= stamp(end)).sum()) - 1) for begin, end in chosen]
    return readings, windows


def stamp(text: str) -> pd.Timestamp:
    """A time of a label, which is in UTC without saying so."""
    return pd.Timestamp(text, tz="UTC")


def devices(stage: Stage) -> Replay:
    """The machine: its history at once, the rest of its readings when each is due."""
    csv = stage.words["csv"]
    readings, failures = real(Path(csv), stage.words["windows"]) if csv else simulate(stage.seed)
    machine = Path(csv).stem if csv else "press-1"
    history = int(len(readings) * HISTORY_SHARE)
    readings["seq"] = np.arange(len(readings))
    readings["device"], readings["topic"] = machine, f"plant/{machine}/temperature"
    live_s = (readings["time_ms"] - readings["time_ms"].iloc[history]) / 1000
    span_s = float(live_s.iloc[-1])
    # The live part takes the time of the story, however long the series is; it begins when Spark is there.
    readings["due_s"] = np.maximum(0.0, live_s / span_s * stage.story_s)
    known = {"history": history, "readings": len(readings), "failures": failures, "machine": machine}
    stage.folder("series.json").write_text(json.dumps(known))

    def figures(story_s: float) -> Mapping[str, str]:
        share = min(1.0, story_s / stage.story_s)
        at_ms = float(np.interp(share, [0, 1], readings["time_ms"].iloc[[history, -1]]))
        return {
            machine: f"{pd.Timestamp(at_ms, unit='ms'):%d %B, %H:%M}, {span_s / stage.seconds:,.0f} times its speed"
        }

    return Machine(stage, readings, figures)


class Machine(Replay):
    """Publishes its history at once, and the rest from the moment when Spark has judged the first batch."""

    def __init__(self, stage: Stage, readings: pd.DataFrame, figures: Any) -> None:
        super().__init__(stage, "maintenance", readings, ["seq", "time_ms", "celsius"], connections=1, figures=figures)
        self._live = threading.Event()

    @property
    def story_s(self) -> float:
        """How far the story is; it waits at its beginning until Spark is there."""
        if not self._live.is_set():
            return 0.0
        return super().story_s

    def go_live(self) -> None:
        """Spark is there: new readings arrive from now on."""
        if not self._live.is_set():
            self._begun_ns = self._clock.monotonic_ns()
            self._live.set()


# --- The detector ------------------------------------------------------------------------------------------------


def features(celsius: np.ndarray, at: int) -> tuple[float, float, float, float]:
    """Features of the reading at a place: itself, mean and spread of two hours, change of the hour since yesterday."""
    two_hours = celsius[max(0, at + 1 - 2 * PER_HOUR) : at + 1]
    hour = celsius[max(0, at + 1 - PER_HOUR) : at + 1]
    yesterday = celsius[max(0, at + 1 - KEPT) : max(0, at + 1 - PER_DAY)]
    change = float(hour.mean() - yesterday.mean()) if len(yesterday) == PER_HOUR else 0.0
    return float(celsius[at]), float(two_hours.mean()), float(two_hours.std()), change


class Window(StatefulProcessor):
    """Keeps the last day of a machine and yields each new reading with its features."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state: the newest reading's number and the values that lead up to it."""
        self._state = handle.getValueState("day", "seq long, celsius array<double>")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Add the readings in their order; one that came again changes nothing."""
        newest, kept = self._state.get() or (-1, [])
        fresh = {row.seq: row for row in rows if row.seq > newest}
        ordered = [fresh[seq] for seq in sorted(fresh)]
        celsius = np.array([*kept, *(row.celsius for row in ordered)])
        for number, row in enumerate(ordered, len(kept)):
            found = dict(zip(FEATURES, features(celsius, number), strict=True))
            yield Row(machine=key[0], seq=row.seq, time_ms=row.time_ms, **found)
        if ordered:
            self._state.update((ordered[-1].seq, celsius[-KEPT:].tolist()))

    def close(self) -> None:
        """Nothing is held outside Spark's state."""


WITH_FEATURES = "machine string, seq long, time_ms long, celsius double, two_hours double, spread double, change double"


def readings_of(source: DataFrame) -> DataFrame:
    """The machine from the topic, and the body's fields."""
    body = F.from_json(F.col("body").cast("string"), READING).alias("reading")
    return source.select(F.split("mqttTopic", "/")[1].alias("machine"), body).select("machine", "reading.*")


def load(reader: Any, stage: Stage) -> DataFrame:
    """The readings of all machines; `reader` is spark.read or spark.readStream."""
    source = reader.format("rocketmq").options(**stage.source).option("mqttFilter", FILTER)
    return readings_of(source.option("columns", "mqttTopic,body").load())


def learn(spark: SparkSession, stage: Stage, known: dict[str, Any]) -> tuple[Any, float]:
    """Read the history back in one batch, train on its healthy part; the forest, and the score that counts as odd."""
    from sklearn.ensemble import IsolationForest

    clock = SystemClock()
    deadline_ns = clock.monotonic_ns() + int(HISTORY_TIMEOUT_S * 1e9)
    while True:
        began_ns = clock.monotonic_ns()
        history = load(spark.read, stage).where(f"seq < {known['history']}").dropDuplicates(["seq"])
        table: pd.DataFrame = history.toPandas()
        took_s = (clock.monotonic_ns() - began_ns) / 1e9
        if len(table) == known["history"] or clock.monotonic_ns() > deadline_ns:
            break
        threading.Event().wait(0.5)  # the machine is still sending it
    table = table.sort_values("seq")
    celsius = table["celsius"].to_numpy()
    healthy = np.arange(len(table)) >= KEPT
    for begin, end in known["failures"]:
        healthy[begin : end + REPAIR_S // EVERY_S] = False
    learned = np.array([features(celsius, int(number)) for number in np.flatnonzero(healthy)])
    forest = IsolationForest(n_estimators=TREES, max_samples=min(SAMPLES, len(learned)), random_state=0).fit(learned)
    odd_above = float(np.quantile(-forest.score_samples(learned), QUANTILE))
    span_s = float(table["time_ms"].iloc[-1] - table["time_ms"].iloc[0]) / 1000
    figures = {"readings": len(table), "learned": len(learned), "days": span_s / 86_400, "took_s": took_s}
    stage.folder("learned.json").write_text(json.dumps(figures | {"odd_above": odd_above}))
    return forest, odd_above


def queries(spark: SparkSession, stage: Stage) -> Queries:
    """One query for history and live readings alike: features, score, odd or not."""
    known = json.loads(stage.folder("series.json").read_text())
    forest, odd_above = learn(spark, stage, known)
    detector = spark.sparkContext.broadcast(forest)

    @F.pandas_udf("double")
    def score(celsius: pd.Series, two_hours: pd.Series, spread: pd.Series, change: pd.Series) -> pd.Series:
        table = np.column_stack([celsius, two_hours, spread, change])
        return pd.Series(-detector.value.score_samples(table) if len(table) else [])

    def judged() -> Any:
        rows = load(spark.readStream, stage).groupBy("machine").transformWithState(
            statefulProcessor=Window(), outputStructType=WITH_FEATURES, outputMode="Append", timeMode="None"
        )  # fmt: skip
        scored = rows.withColumn("score", score(*FEATURES)).withColumn("is_odd", F.col("score") > odd_above)
        return stage.to_parquet(scored.withColumn("judged_ms", F.unix_millis(F.current_timestamp())), "judged")

    return {"judged": judged}


def during(play: Run) -> bool:
    """New readings arrive once Spark has judged its first batch; until the last one is sent."""
    play.devices.go_live()
    return not play.devices.finished()


# --- What must be true -------------------------------------------------------------------------------------------


def alarms_of(judged: pd.DataFrame) -> list[int]:
    """Numbers of the readings that raise an alarm: several odd ones together, after a time without."""
    together = judged["is_odd"].astype(int).rolling(OF, min_periods=1).sum().to_numpy()
    alarms, last = [], -SILENCE
    for number in map(int, np.flatnonzero(together >= ODD)):
        if number - last >= SILENCE and number >= KEPT:
            alarms.append(number)
        last = number
    return alarms


def leads(judged: pd.DataFrame, failures: list[tuple[int, int]]) -> list[float | None]:
    """Hours from the first alarm within each labelled window to its end; None for a missed one."""
    together = judged["is_odd"].astype(int).rolling(OF, min_periods=1).sum().to_numpy()
    raised = np.flatnonzero(together >= ODD)
    found: list[float | None] = []
    for begin, end in failures:
        inside = raised[(raised >= begin) & (raised <= end)]
        found.append(float(end - inside[0]) / PER_HOUR if len(inside) else None)
    return found


def known_of(play: Run) -> tuple[dict[str, Any], dict[str, Any], pd.DataFrame]:
    """The series, what was learned, and the judged readings in their order."""
    known = json.loads(play.stage.folder("series.json").read_text())
    learned = json.loads(play.stage.folder("learned.json").read_text())
    return known, learned, read_rows(play.stage, "judged").sort_values("seq", ignore_index=True)


def false_alarms(judged: pd.DataFrame, failures: list[tuple[int, int]]) -> list[int]:
    """Alarms in no labelled window and in no repair after one."""
    repair = REPAIR_S // EVERY_S
    return [at for at in alarms_of(judged) if not any(begin <= at <= end + repair for begin, end in failures)]


def check(play: Run) -> list[Claim]:
    """Every reading is judged once, history is read fast, and failures are foreseen."""
    known, learned, judged = known_of(play)
    history, failures = known["history"], known["failures"]
    speed = learned["days"] * 86_400 / learned["took_s"]
    live = [one for one in failures if one[0] >= history]
    found = leads(judged, live)
    foreseen = [hours for hours in found if hours is not None]
    false = len([at for at in false_alarms(judged, failures) if at >= history])
    claims = [
        equal("readings", sent=play.devices.sent, acknowledged=play.devices.acknowledged, judged_once=len(judged),
              distinct=judged["seq"].nunique()),
        equal("history", in_the_log=history, read_by_the_batch=learned["readings"]),
        holds(f"history is read at {REPLAY_MIN:,} times its speed", speed >= REPLAY_MIN,
              f"{learned['days']:.0f} days in {learned['took_s']:.1f} s: {speed:,.0f} times"),
    ]  # fmt: skip
    if live:
        needed = len(live) if not play.stage.words["csv"] else (len(live) + 1) // 2
        claims += [
            holds("failures are foreseen (recall)", len(foreseen) >= needed,
                  f"{len(foreseen)} of {len(live)} labelled windows after the training, false alarms {false} in "
                  f"{(known['readings'] - history) / PER_DAY:.0f} days"),
            holds("in time", min(foreseen, default=0.0) >= 1.0,
                  "lead time " + ", ".join("none" if hours is None else f"{hours:.1f} h" for hours in found)),
        ]  # fmt: skip
    return claims


# --- The picture -------------------------------------------------------------------------------------------------


def picture(play: Run, claims: list[Claim]) -> Picture:
    """The series with labelled windows and alarms, its scores, and each failure from close by."""
    known, learned, judged = known_of(play)
    failures, history = known["failures"], known["history"]
    live = [one for one in failures if one[0] >= history]
    found = leads(judged, live)
    foreseen = [hours for hours in found if hours is not None]
    title = f"{len(alarms_of(judged))} alarms in {len(judged) / PER_DAY:.0f} days"
    if live:
        hours = f"{min(foreseen):.0f} to {max(foreseen):.0f}" if len(foreseen) > 1 else f"{sum(foreseen):.0f}"
        title = f"{len(foreseen)} of {len(live)} failures foreseen, {hours} hours ahead"
    page = Picture(
        title,
        f"an isolation forest learned from {learned['days']:.0f} days, read back from the log in "
        f"{learned['took_s']:.1f} s; the query that judged them went on with the live readings",
        height=8.8,
    )
    grid = page.grid(3, max(1, len(live)), height_ratios=[1.5, 0.75, 1.15], hspace=0.55, wspace=0.22)
    at = pd.to_datetime(judged["time_ms"], unit="ms")
    unit = "as in the file" if play.stage.words["csv"] else "°C"
    series = page.axes(grid[0, :], f"Temperature of {known['machine']}, a reading every five minutes", y=unit)
    scores = page.axes(grid[1, :], "Score: how easily the forest sets a reading apart", sharex=series)
    draw_series(series, at, judged, known)
    draw_scores(scores, at, judged, learned["odd_above"], history)
    for number, (window, lead) in enumerate(zip(live, found, strict=True)):
        draw_failure(page, grid[2, number], judged, window, lead, unit if not number else "")
    return page


def draw_series(axes: Any, at: pd.Series, judged: pd.DataFrame, known: dict[str, Any]) -> None:
    """Everything: history and live, labelled windows, alarms."""
    history, failures = known["history"], known["failures"]
    axes.plot(at, judged["celsius"], color=BLUE, linewidth=0.6)
    axes.axvspan(at.iloc[0], at.iloc[history], color=FAINT, alpha=0.14, linewidth=0)
    low, high = float(judged["celsius"].min()), float(judged["celsius"].max())
    axes.set_ylim(low - 0.05 * (high - low), high + 0.3 * (high - low))
    axes.text(at.iloc[0], high + 0.21 * (high - low), "  history: read back, learned from", color=MUTED, fontsize=8.5)
    axes.text(at.iloc[history], high + 0.21 * (high - low), "  live", color=MUTED, fontsize=8.5)
    axes.axvline(at.iloc[history], color=MUTED, linewidth=1)
    for begin, end in failures:
        axes.axvspan(at.iloc[begin], at.iloc[end], color=RED, alpha=0.16, linewidth=0)
    alarms, false = alarms_of(judged), set(false_alarms(judged, failures))
    for color, chosen, label in (
        (RED, [one for one in alarms if one not in false], "alarm"),
        (AMBER, [one for one in alarms if one in false], "false alarm"),
    ):
        heights = [high + 0.1 * (high - low)] * len(chosen)
        axes.scatter(at.iloc[chosen], heights, marker="v", s=46, color=color, linewidth=0, label=label, zorder=5)
    axes.axvspan(at.iloc[0], at.iloc[0], color=RED, alpha=0.16, label="labelled: on the way to a failure")
    axes.legend(loc="lower right", ncols=3, bbox_to_anchor=(1, 1), borderaxespad=0.2)
    axes.set_xlim(at.iloc[0], at.iloc[-1])


def draw_scores(axes: Any, at: pd.Series, judged: pd.DataFrame, odd_above: float, history: int) -> None:
    """The score of each reading, and the limit that was learned."""
    odd = judged["is_odd"]
    axes.scatter(at[~odd], judged["score"][~odd], s=1.2, color=FAINT, linewidth=0, rasterized=True)
    axes.scatter(at[odd], judged["score"][odd], s=2.5, color=RED, linewidth=0, rasterized=True)
    axes.axhline(odd_above, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.text(1.0, odd_above, f"odd above {odd_above:.2f} ", transform=axes.get_yaxis_transform(), color=INK,
              fontsize=8.5, ha="right", va="bottom")  # fmt: skip
    axes.axvline(at.iloc[history], color=MUTED, linewidth=1)


def draw_failure(
    page: Picture, place: object, judged: pd.DataFrame, window: tuple[int, int], hours: float | None, unit: str
) -> None:
    """One labelled window from close by, on a clock that ends with it."""
    begin, end = window
    part = judged.iloc[max(0, begin - PER_DAY // 2) : end + PER_DAY // 4]
    clock = (part["seq"] - end) / PER_HOUR
    when = pd.to_datetime(judged["time_ms"].iloc[end], unit="ms")
    axes = page.axes(place, f"{when:%d %B, %H:%M}", x="hours to the end of the window", y=unit)
    axes.plot(clock, part["celsius"], color=BLUE, linewidth=1.2)
    odd = part["is_odd"]
    axes.scatter(clock[odd], part["celsius"][odd], s=5, color=RED, linewidth=0, zorder=4)
    axes.axvspan((begin - end) / PER_HOUR, 0, color=RED, alpha=0.1, linewidth=0)
    axes.set_xlim(float(clock.min()), float(clock.max()))
    low, high = float(part["celsius"].min()), float(part["celsius"].max())
    axes.set_ylim(low, high + 0.3 * (high - low))
    if hours is None:
        axes.text(0.05, 0.9, "missed", transform=axes.transAxes, color=RED, fontsize=9)
        return
    axes.axvline(-hours, color=GREEN, linewidth=1.4)
    axes.annotate("", (0, high + 0.14 * (high - low)), (-hours, high + 0.14 * (high - low)),
                  arrowprops={"arrowstyle": "<->", "color": GREEN, "linewidth": 1.2})  # fmt: skip
    at_hours, side = (-hours / 2, "center") if hours > 0.3 * -float(clock.min()) else (-hours - 0.8, "right")
    axes.text(at_hours, high + 0.17 * (high - low), f"{hours:.0f} h ahead", color=GREEN, fontsize=8.5, ha=side)


EXAMPLE = Example(
    name="maintenance",
    headline="A detector learns from the history in the log; the query that judged it goes on with the live readings.",
    filters=[FILTER],
    devices=devices,
    queries=queries,
    during=during,
    check=check,
    picture=picture,
    seconds=40.0,
    live=True,
    arguments={
        "csv": ("", "a real series instead of the simulated machine: columns timestamp and value"),
        "windows": ("", "its labelled windows: JSON as in the NAB corpus, file name to [[begin, end], ...]"),
    },
)

if __name__ == "__main__":
    raise SystemExit(run(EXAMPLE))
