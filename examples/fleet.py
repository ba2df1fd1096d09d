"""Fleet: machines report their temperature, Spark notices which one runs hot and sends a command, the machine obeys.

    fleet/<machine>/telemetry   {"machine", "seq", "celsius", "load", "sent_ms"}     five times a second, QoS 1
    fleet/<machine>/commands    {"id", "machine", "seq", "celsius", "above", "sent_ms"}   from Spark, QoS 2

In the middle of it the broker is killed (kill -9) and started again, then Spark's driver with its Java and workers.
Nothing that was acknowledged is lost, and each command is obeyed once: the rule is a function of the log, the sink
shows a batch once, and a persistent session with QoS 2 delivers it once. What should have been decided is computed
again at the end, from the log, by the same rule.

    python examples/fleet.py [--seconds 60] [--seed 1] [--check]
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any

from kit import Claim, Example, Gateways, Inbox, Living, Picture, Reporting, Run, Stage, equal, holds, read_rows, run
from kit.later import pd
from kit.stage import Queries

import numpy as np
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from lightmq.demo.picture import AMBER, BLUE, FAINT, GREEN, RED, beside, log_scale
from runtime.clock import SystemClock

TELEMETRY, COMMANDS = "fleet/+/telemetry", "fleet/+/commands"
READING = "machine string, seq long, celsius double, load double, sent_ms long"
MACHINES = 20
EVERY_S = 0.2
BROKER_DIES_AT, DRIVER_DIES_AT = 0.25, 0.45
"""As shares of the story."""
AFTER_S = 15.0
"""The story goes on for so long when the driver is back."""
P95_MAX_S = 15.0
"""Longest 95th percentile, from reading to command, that `--check` lets pass while all parts are alive."""


# --- The rule: which reading calls for a command. Pure, a function of a machine's readings in their order ---------


@dataclass(frozen=True, slots=True)
class Watched:
    """What is known of one machine."""

    seq: int = -1
    readings: int = 0
    mean: float = 0.0
    hot: int = 0
    quiet_until: int = 0


WARM_UP, SMOOTHING = 15, 0.03
HOT_ABOVE, HOT_READINGS, QUIET_READINGS = 4.5, 3, 45
RULE_STATE = "seq long, readings long, mean double, hot long, quiet_until long"


def judge(known: Watched, seq: int, celsius: float) -> tuple[Watched, float | None]:
    """Return what is known now, and degrees above the usual if this reading calls for a command.

    A reading that was sent again (its number is not new) changes nothing.
    """
    if seq <= known.seq:
        return known, None
    above = celsius - known.mean
    if known.readings < WARM_UP:
        mean = known.mean + above / (known.readings + 1)
        return replace(known, seq=seq, readings=known.readings + 1, mean=mean), None
    if above < HOT_ABOVE:
        return replace(known, seq=seq, mean=known.mean + SMOOTHING * above, hot=0), None
    known = replace(known, seq=seq, hot=known.hot + 1)
    if known.hot < HOT_READINGS or seq < known.quiet_until:
        return known, None
    return replace(known, hot=0, quiet_until=seq + QUIET_READINGS), above


class Watcher(StatefulProcessor):
    """Keeps a `Watched` per machine and yields a row per command."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state of the machine."""
        self._state = handle.getValueState("watched", RULE_STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Judge the new readings of one machine, in the order of the log."""
        known = Watched(*(self._state.get() or ()))
        for row in sorted(rows, key=lambda reading: reading.queueOffset):
            known, above = judge(known, row.seq, row.celsius)
            if above is not None:
                yield Row(machine=key[0], seq=row.seq, celsius=row.celsius, above=above, sent_ms=row.sent_ms)
        self._state.update(astuple(known))

    def close(self) -> None:
        """Nothing is held outside Spark's state."""


# --- The machines ------------------------------------------------------------------------------------------------


class Machines(Reporting, Living):
    """Twenty compressors: heat by load and friction, cooling to the air; a command throttles one and frees its bearing.

    C dT/dt = a load² + friction - k (T - T_air), solved for all at once every 0.2 s. Thread rule: one thread computes
    and publishes, paho's threads bring commands; what both touch is guarded by one lock.
    """

    def __init__(self, stage: Stage) -> None:
        Reporting.__init__(self, Gateways(stage, "fleet"))
        Living.__init__(self, "machines")
        self._rng = np.random.default_rng(stage.seed)
        self._clock = SystemClock()
        self.names = [f"press-{number:02d}" for number in range(1, MACHINES + 1)]
        self._inboxes = [
            Inbox(stage, f"{name}-inbox", f"fleet/{name}/commands", self._obey, qos=2) for name in self.names
        ]
        self._lock = threading.Lock()
        self._throttled_until = np.zeros(MACHINES)
        self.faulty = False
        """Whether bearings begin to seize; off until Spark is there to notice."""
        self.commands: list[dict[str, Any]] = []
        """Each delivery, with `at_ms` when it came."""
        self.traces: list[np.ndarray] = []
        self.trace_ms: list[int] = []

    def start(self) -> None:
        """Connect and begin to live."""
        self._gateways.connect()
        for inbox in self._inboxes:
            inbox.connect()
        self._thread.start()

    def _obey(self, topic: str, body: bytes) -> None:
        command = json.loads(body) | {"at_ms": self._clock.now_ms(), "topic": topic}
        with self._lock:
            self.commands.append(command)
            self._throttled_until[self.names.index(command["machine"])] = self._now_s() + 5.0

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9

    def _live(self) -> None:
        rng = self._rng
        base_load = rng.uniform(0.75, 1.0, MACHINES)
        air = rng.uniform(19, 25, MACHINES)
        temperature = air + 40 * base_load**2 + rng.normal(0, 0.5, MACHINES)
        friction, seizing = np.zeros(MACHINES), np.zeros(MACHINES, bool)
        rested_until = np.full(MACHINES, self._now_s()) + rng.uniform(2, 14, MACHINES)
        due_s, seq = self._now_s(), 0
        while not self._stopped.wait(max(0.0, due_s - self._now_s())):
            now_s = self._now_s()
            with self._lock:
                throttled = self._throttled_until > now_s
            seizing |= self.faulty & (now_s > rested_until) & (rng.random(MACHINES) < EVERY_S / 9)
            rested_until = np.where(throttled & seizing, now_s + rng.uniform(9, 22, MACHINES), rested_until)
            seizing &= ~throttled
            friction = np.where(seizing, np.minimum(friction + 11 * EVERY_S, 60), friction * 0.85)
            load = np.where(throttled, 0.45, base_load) + rng.normal(0, 0.008, MACHINES)
            wanted = air + 40 * load**2 + friction
            temperature = temperature + (wanted - temperature) * EVERY_S / 2.6
            shown = np.round(temperature + rng.normal(0, 0.25, MACHINES), 2)
            self._report(seq, shown, load)
            due_s, seq = due_s + EVERY_S, seq + 1

    def _report(self, seq: int, celsius: np.ndarray, load: np.ndarray) -> None:
        now_ms = self._clock.now_ms()
        self.traces.append(celsius)
        self.trace_ms.append(now_ms)
        for number, name in enumerate(self.names):
            reading = {
                "machine": name, "seq": seq, "celsius": float(celsius[number]), "load": round(float(load[number]), 3),
                "sent_ms": now_ms,
            }  # fmt: skip
            self._gateways.publish(number, f"fleet/{name}/telemetry", json.dumps(reading).encode())

    def await_commands(self, count: int, timeout_s: float) -> None:
        """Wait until so many commands were delivered, then a moment more for one too many; disconnect."""
        deadline = self._now_s() + timeout_s
        while len(self.commands) < count and self._now_s() < deadline:
            threading.Event().wait(0.05)
        threading.Event().wait(1.0)
        for inbox in self._inboxes:
            inbox.close()

    def figures(self) -> Mapping[str, str]:
        """The hottest machine, and what came back."""
        if not self.traces:
            return {}
        last = self.traces[-1]
        hottest = int(np.argmax(last))
        return {
            "hottest": f"{self.names[hottest]} {last[hottest]:.0f} °C",
            "commands": f"{len(self.commands)} (p95 {percentile(self.commands, 95):.1f} s)",
        }


def percentile(commands: list[dict[str, Any]], q: float) -> float:
    """Seconds from reading to command."""
    delays = [(one["at_ms"] - one["sent_ms"]) / 1000 for one in list(commands)]
    return float(np.percentile(delays, q)) if delays else 0.0


# --- The pipeline ------------------------------------------------------------------------------------------------


def readings(source: DataFrame) -> DataFrame:
    """The body's fields beside the place in the log."""
    body = F.from_json(F.col("body").cast("string"), READING).alias("reading")
    return source.select("queueId", "queueOffset", body).select("queueId", "queueOffset", "reading.*")


def queries(spark: SparkSession, stage: Stage) -> Queries:
    """One query: state per machine, commands back to MQTT."""

    def commands() -> Any:
        reader = spark.readStream.format("rocketmq").options(**stage.source)
        source = reader.option("mqttFilter", TELEMETRY).option("columns", "queueId,queueOffset,body").load()
        found = (
            readings(source)
            .groupBy("machine")
            .transformWithState(
                statefulProcessor=Watcher(),
                outputStructType="machine string, seq long, celsius double, above double, sent_ms long",
                outputMode="Append",
                timeMode="None",
            )
        )
        identity = F.concat_ws("-", "machine", "seq")
        body = F.to_json(F.struct(identity.alias("id"), "machine", "seq", "celsius", "above", "sent_ms"))
        topic = F.concat(F.lit("fleet/"), F.col("machine"), F.lit("/commands"))
        rows = found.select(topic.alias("mqttTopic"), body.alias("body"), F.lit(2).alias("qos"))
        return stage.to_mqtt(rows, "commands", trigger="250 milliseconds")

    return {"commands": commands}


def batch(spark: SparkSession, stage: Stage) -> None:
    """The whole log once more: every reading and every command that is stored."""
    for name, topic_filter in (("readings", TELEMETRY), ("stored_commands", COMMANDS)):
        source = spark.read.format("rocketmq").options(**stage.source).option("mqttFilter", topic_filter)
        rows = readings(source.option("columns", "queueId,queueOffset,body").load())
        rows.write.parquet(str(stage.folder(name)))


# --- What happens to broker and driver ---------------------------------------------------------------------------


@dataclass(slots=True)
class Accidents:
    """When the broker and the driver died and were back, in ms since 1970; 0: not yet."""

    broker_died: int = 0
    broker_back: int = 0
    driver_died: int = 0
    driver_back: int = 0


ACCIDENTS = Accidents()


def during(play: Run) -> bool:
    """Let machines fail, kill the broker, kill the driver; True until Spark has been back for a while."""
    now_ms, happened = SystemClock().now_ms, ACCIDENTS
    play.devices.faulty = True
    share = play.live_s / play.stage.seconds
    if play.stack is not None and not happened.broker_died and share > BROKER_DIES_AT:
        happened.broker_died = now_ms()
        play.stack.kill()
        play.note("the broker is killed (kill -9)")
        play.restart_server()
        happened.broker_back = now_ms()
        play.note(f"the broker is back after {(happened.broker_back - happened.broker_died) / 1000:.1f} s")
    if play.spark is not None and not happened.driver_died and share > DRIVER_DIES_AT:
        happened.driver_died = now_ms()
        play.spark.kill()
        play.note("Spark's driver is killed with its Java and its workers (kill -9)")
        play.restart_spark()
    elif play.spark is not None and happened.driver_died and not happened.driver_back and play.spark.count_of("ready"):
        happened.driver_back = now_ms()
        took_s = (happened.driver_back - happened.driver_died) / 1000
        play.note(f"Spark is back after {took_s:.1f} s, from its checkpoint")
    return not happened.driver_back or now_ms() < happened.driver_back + AFTER_S * 1000


def is_disturbed(command: Mapping[str, Any]) -> bool:
    """Whether the broker or the driver was away at some time between the reading and its command."""
    happened, settled_ms = ACCIDENTS, 3000
    by_broker = command["sent_ms"] <= happened.broker_back + settled_ms and command["at_ms"] >= happened.broker_died
    until = (happened.driver_back or 2**62) + settled_ms
    by_driver = happened.driver_died and command["sent_ms"] <= until and command["at_ms"] >= happened.driver_died
    return bool((happened.broker_died and by_broker) or by_driver)


# --- What must be true -------------------------------------------------------------------------------------------


def decide_again(rows: pd.DataFrame) -> set[str]:
    """Commands that follow from the log by the rule."""
    decided = set()
    for machine, mine in rows.sort_values("queueOffset").groupby("machine"):
        known = Watched()
        for seq, celsius in zip(mine["seq"], mine["celsius"], strict=True):
            known, above = judge(known, int(seq), float(celsius))
            if above is not None:
                decided.add(f"{machine}-{seq}")
    return decided


def cooled(devices: Machines) -> int:
    """Commands after which the machine was cooler four seconds later, or the story had ended."""
    times = np.array(devices.trace_ms)
    traces = np.array(devices.traces)
    count = 0
    for command in devices.commands:
        number = devices.names.index(command["machine"])
        before = int(np.searchsorted(times, command["at_ms"]))
        after = int(np.searchsorted(times, command["at_ms"] + 4000))
        count += after >= len(times) or traces[after, number] < traces[min(before, len(times) - 1), number]
    return count


def check(play: Run) -> list[Claim]:
    """Nothing acknowledged is missing; every command that follows from the log was obeyed, once; and soon."""
    devices: Machines = play.devices
    stage = play.stage
    rows, stored = read_rows(stage, "readings"), read_rows(stage, "stored_commands")
    decided = decide_again(rows)
    devices.await_commands(len(decided), 20)
    obeyed = Counter(command["id"] for command in devices.commands)
    distinct = len(rows.drop_duplicates(["machine", "seq"]))
    undisturbed = [one for one in devices.commands if not is_disturbed(one)]
    p50, p95 = percentile(undisturbed, 50), percentile(undisturbed, 95)
    happened = ACCIDENTS
    return [
        equal("readings", sent=devices.sent, acknowledged=devices.acknowledged, in_the_log=distinct),
        equal("commands", decided=len(decided), stored=len(stored), delivered=obeyed.total()),
        equal("each command once", distinct=len(obeyed), decided=len(decided & set(obeyed)), at_most=len(decided)),
        holds(
            "machines obey", decided and cooled(devices) >= 0.9 * len(devices.commands),
            f"{cooled(devices)} of {len(devices.commands)} were cooler 4 s later",
        ),
        holds(
            "both were killed", happened.driver_died and (happened.broker_back or play.stack is None),
            f"broker away {(happened.broker_back - happened.broker_died) / 1000:.1f} s, readings sent again "
            f"{len(rows) - distinct}",
        ),
        holds(
            "reading to command, all parts alive", undisturbed and p95 < P95_MAX_S,
            f"p50 {p50 * 1000:,.0f} ms, p95 {p95 * 1000:,.0f} ms of {len(undisturbed)} "
            f"(p95 {percentile(devices.commands, 95):.1f} s with both outages)",
        ),
    ]  # fmt: skip


# --- The picture -------------------------------------------------------------------------------------------------


def picture(play: Run, claims: list[Claim]) -> Picture:
    """Temperatures with what was sent back, the outages, and how long each command took."""
    devices: Machines = play.devices
    begin_ms = min((one["sent_ms"] for one in devices.commands), default=devices.trace_ms[0]) - 6000
    undisturbed = [one for one in devices.commands if not is_disturbed(one)]
    count = len({one["id"] for one in devices.commands})
    page = Picture(
        f"{count} commands to machines that ran hot, each obeyed once",
        f"with the broker and Spark's driver killed (kill -9) on the way; a command takes "
        f"{percentile(undisturbed, 50):.1f} s, 95 % of them {percentile(undisturbed, 95):.1f} s while all parts live",
        height=8.2,
    )
    grid = page.grid(2, 1, height_ratios=[2.1, 1], hspace=0.32)
    upper = page.axes(grid[0], "Temperature of twenty machines", y="°C")
    lower = page.axes(grid[1], "From the hot reading to the command", x="seconds", y="s", sharex=upper)
    upper.set_xlim(0, (devices.trace_ms[-1] - begin_ms) / 1000)
    draw_temperatures(upper, devices, begin_ms)
    draw_delays(lower, devices, begin_ms)
    for axes in (upper, lower):
        shade_outages(axes, begin_ms, labelled=axes is upper)
    return page


def draw_temperatures(axes: Any, devices: Machines, begin_ms: int) -> None:
    """All machines, the one with most commands in colour."""
    seconds = (np.array(devices.trace_ms) - begin_ms) / 1000
    traces = np.array(devices.traces)
    counts = Counter(one["machine"] for one in devices.commands)
    chosen = counts.most_common(1)[0][0] if counts else devices.names[0]
    for number, name in enumerate(devices.names):
        if name != chosen:
            axes.plot(seconds, traces[:, number], color=FAINT, linewidth=0.7, alpha=0.55)
    mine = traces[:, devices.names.index(chosen)]
    axes.plot(seconds, mine, color=BLUE, linewidth=2.2, label=chosen)
    for command in devices.commands:
        hot_s, at_s = (command["sent_ms"] - begin_ms) / 1000, (command["at_ms"] - begin_ms) / 1000
        is_chosen = command["machine"] == chosen
        number = devices.names.index(command["machine"])
        height = float(np.interp(at_s, seconds, traces[:, number]))
        alpha, size = (1.0, 46) if is_chosen else (0.55, 15)
        axes.scatter(hot_s, command["celsius"], color=RED, s=size, alpha=alpha, zorder=5, linewidth=0)
        axes.scatter(at_s, height, color=GREEN, s=size * 1.3, alpha=alpha, zorder=6, marker="v", linewidth=0)
    axes.scatter([], [], color=RED, s=40, label="runs hot: the reading that Spark judged")
    axes.scatter([], [], color=GREEN, s=52, marker="v", label="command obeyed: throttled for 5 s")
    axes.legend(loc="upper left", ncols=3)
    top = float(np.percentile(traces, 99.9))
    axes.set_ylim(float(traces.min()) - 2, top + 0.22 * (top - float(traces.min())))


def draw_delays(axes: Any, devices: Machines, begin_ms: int) -> None:
    """A point for each command, at the time of the reading that caused it."""
    p95 = 0.0
    for is_outage, color, label in ((False, BLUE, "all parts alive"), (True, AMBER, "caught up after an outage")):
        chosen = [one for one in devices.commands if is_disturbed(one) == is_outage]
        at_s = [(one["sent_ms"] - begin_ms) / 1000 for one in chosen]
        delays = [(one["at_ms"] - one["sent_ms"]) / 1000 for one in chosen]
        axes.scatter(at_s, delays, color=color, s=26, linewidth=0, alpha=0.9, label=label)
        if delays and not is_outage:
            p95 = float(np.percentile(delays, 95))
            axes.axhline(p95, color=BLUE, linewidth=1, linestyle=(0, (4, 3)))
    log_scale(axes)
    axes.legend(loc="lower right", ncols=2, bbox_to_anchor=(1, 1), borderaxespad=0.2)
    if p95:
        beside(axes, (axes.get_xlim()[1], p95), f"p95 {p95:.1f} s", BLUE, data=True)


def shade_outages(axes: Any, begin_ms: int, *, labelled: bool) -> None:
    """Where the broker and the driver were away."""
    happened = ACCIDENTS
    broker, driver = (happened.broker_died, happened.broker_back), (happened.driver_died, happened.driver_back)
    for name, (died, back), height in (("broker", broker, 0.87), ("driver", driver, 0.79)):
        if not died:
            continue
        first, last = (died - begin_ms) / 1000, ((back or died) - begin_ms) / 1000
        axes.axvspan(first, last, color=RED, alpha=0.09, linewidth=0)
        axes.axvline(first, color=RED, linewidth=1)
        if labelled:
            beside(axes, (first, height), f"{name} killed, back after {last - first:.1f} s", RED, step=0.07)


EXAMPLE = Example(
    name="fleet",
    headline="Twenty machines, a rule in Spark, commands back; then the broker and the driver are killed.",
    filters=[TELEMETRY, COMMANDS],
    devices=Machines,
    queries=queries,
    batch=batch,
    during=during,
    check=check,
    picture=picture,
    seconds=60.0,
    live=True,
)

if __name__ == "__main__":
    raise SystemExit(run(EXAMPLE))
