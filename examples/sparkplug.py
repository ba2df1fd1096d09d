"""Sparkplug: a factory of edge nodes whose aliases change at each birth; Spark sees typed values under their names.

    spBv1.0/works/NBIRTH|NDEATH/<line>            birth with bdSeq, seq 0; death is the will of the connection
    spBv1.0/works/DBIRTH|DDATA/<line>/<device>    names, types and aliases at birth; afterwards aliases alone
    spBv1.0/works/NCMD/<line>                     "Node Control/Rebirth", from Spark, when a message is missing

Lines lose their connection and are declared dead by the server; messages get lost on the way, Spark sees the hole in
the sequence numbers and commands a rebirth. Each birth gives every metric another alias. What the option `decode`
makes of it is compared with what was sent, value by value, and with an as-of join over the births, done by hand.
(QoS 1, where the specification has 0, so that every message is accounted for.)

    python examples/sparkplug.py [--seconds 40] [--seed 1] [--check]
"""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kit import Claim, Example, Living, Picture, Queries, Run, Stage, equal, holds, read_rows, run
from kit.later import pd

import numpy as np
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from pyspark.sql import DataFrame, DataFrameReader, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.streaming import DataStreamReader, StatefulProcessor, StatefulProcessorHandle

from lightmq.demo.picture import AMBER, BLUE, FAINT, INK, MUTED, PAPER, RED, SERIES, TEAL, callout
from runtime.clock import SystemClock
from spark_connector.decode.sparkplug.payload import payload_class

GROUP = "works"
FILTER = f"spBv1.0/{GROUP}/#"
LINES = ("casting", "milling", "coating", "packing")
INT16, INT64, FLOAT, DOUBLE, BOOLEAN, STRING = 2, 4, 9, 10, 11, 12
METRICS: dict[str, dict[str, int]] = {
    "oven": {"Temperature": DOUBLE, "Setpoint": INT16, "Heating": BOOLEAN, "Energy": INT64, "Batch": STRING},
    "press": {"Force": FLOAT, "Drift": INT16, "Strokes": INT64, "Running": BOOLEAN},
    "belt": {"Speed": FLOAT, "Current": DOUBLE, "Items": INT64, "Jammed": BOOLEAN, "Mode": STRING},
}
"""Devices of every line, their metrics and data types (Sparkplug 3.0, section 6.4.16)."""
FIELDS = {INT16: "int_value", INT64: "long_value", FLOAT: "float_value", DOUBLE: "double_value",
          BOOLEAN: "boolean_value", STRING: "string_value"}  # fmt: skip
MEMBERS = {INT16: "long", INT64: "long", FLOAT: "double", DOUBLE: "double", BOOLEAN: "boolean", STRING: "text"}
"""In which column of a decoded metric a value of a type stands."""
EVERY_S, OFFLINE_S = 0.2, 2.5
ANSWER_S_MAX = 25.0
"""The story waits so long beyond its end for a rebirth."""
CONNECT_TIMEOUT_S = 20.0
REBIRTH = "Node Control/Rebirth"


# --- The factory -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Birth:
    """One birth of a line, why it came, and when it was over."""

    line: str
    reason: str
    at_ms: int
    ended_ms: int = 0
    died: bool = False


@dataclass(slots=True)
class Gap:
    """A message that never reached the server, and when the line was born again for it."""

    line: str
    at_ms: int
    answered_ms: int = 0


@dataclass(slots=True)
class Line:
    """One edge node: its connection, its numbers, and the state of its three devices."""

    name: str
    rng: np.random.Generator
    client: Client | None = None
    back_at_s: float = 0.0
    bd_seq: int = 0
    seq: int = 0
    aliases: dict[tuple[str, str], int] = field(default_factory=dict)
    told: dict[tuple[str, str], Any] = field(default_factory=dict)
    """Newest reported values: a metric is reported when it has changed."""
    rebirth_wanted: bool = False
    temperature: float = 180.0
    setpoint: int = 210
    heating: bool = True
    energy: float = 0.0
    strokes: int = 0
    items: int = 0
    drift: float = -12.0

    def step(self, dt_s: float) -> None:
        """Let the devices work for a while: a heated oven (thermal RC), a press that drifts, a belt that counts."""
        rng = self.rng
        if rng.random() < 0.01:
            self.setpoint = int(rng.choice([190, 210, 230]))
        self.heating = self.temperature < self.setpoint + (4 if self.heating else -4)
        self.temperature += dt_s * ((380 if self.heating else 22) - self.temperature) / 240 + rng.normal(0, 0.15)
        self.energy += dt_s * (18_000 if self.heating else 400) / 3600
        self.strokes += int(dt_s * 1.5)
        self.items += int(rng.poisson(dt_s * 0.8))
        self.drift = float(np.clip(self.drift + rng.normal(0, 1.2), -400, 400))

    def values(self) -> dict[str, dict[str, Any]]:
        """What the metrics of each device are now."""
        rng = self.rng
        running = self.heating or self.strokes % 7 > 0
        jammed = bool(rng.random() < 0.02)
        return {
            "oven": {
                "Temperature": round(self.temperature, 3), "Setpoint": self.setpoint, "Heating": self.heating,
                "Energy": int(self.energy), "Batch": f"{self.name[:2].upper()}-{self.items // 40:04d}",
            },
            "press": {
                "Force": float(np.float32(900 + 40 * rng.normal())), "Drift": int(self.drift),
                "Strokes": self.strokes, "Running": running,
            },
            "belt": {
                "Speed": float(np.float32(0.0 if jammed else 0.8 + 0.02 * rng.normal())),
                "Current": round(9.5 if jammed else 4.2 + 0.1 * rng.normal(), 3), "Items": self.items,
                "Jammed": jammed, "Mode": "manual" if jammed else "auto",
            },
        }  # fmt: skip


def add_metric(payload: Any, name: str | None, alias: int, kind: int, value: Any, at_ms: int) -> None:
    """Add one metric; without a name and a type it is known by its alias alone, as after a birth."""
    metric = payload.metrics.add(alias=alias, timestamp=at_ms)
    if name is not None:
        metric.name, metric.datatype = name, kind
    bits = {INT16: 0xFFFF, INT64: 0xFFFFFFFFFFFFFFFF}.get(kind)
    setattr(metric, FIELDS[kind], value & bits if bits else value)  # two's complement


class Factory(Living):
    """Four edge nodes of three devices. Thread rule: one thread lives for all; paho's threads count and set flags."""

    def __init__(self, stage: Stage) -> None:
        super().__init__("factory")
        self._stage = stage
        rng = np.random.default_rng(stage.seed)
        self._rng = rng
        self._clock = SystemClock()
        self.lines = [Line(name, np.random.default_rng([stage.seed, number])) for number, name in enumerate(LINES)]
        self._answered = threading.Condition(threading.Lock())
        """Guards the counters."""
        self.sent = 0
        self.acknowledged = 0
        self.truth: list[tuple[str, str, str, int, Any]] = []
        """Line, device, metric, time in ms and value of everything that was sent."""
        self.births: list[Birth] = []
        self.gaps: list[Gap] = []
        self.deaths = 0
        self._accidents = self._plan()
        self._begun_s = 0.0
        self.begun_ms = 0
        """When Spark was there and the lines began to work; 0 before."""

    def _plan(self) -> list[tuple[float, str, Line]]:
        """When what happens to whom, in seconds: connections that break and messages that get lost, in turn."""
        plan = []
        for number in range(max(4, int(self._stage.seconds / 3))):
            at_s = 2.0 + (self._stage.seconds - 3.0) * (number + self._rng.uniform(0, 0.6)) / (self._stage.seconds / 3)
            what = "broken" if number % 2 else "lost"
            plan.append((at_s, what, self.lines[(number // 2 + number % 2 * 2) % len(self.lines)]))
        return sorted((one for one in plan if one[0] < self._stage.seconds), key=lambda one: one[0])

    def start(self) -> None:
        """Connect and be born; raises OSError, TimeoutError."""
        for line in self.lines:
            self._connect(line, "start")
        self._thread.start()

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9

    def _connect(self, line: Line, reason: str) -> None:
        """Connect with the death certificate as the will, then publish the births."""
        connected = threading.Event()
        client = Client(
            CallbackAPIVersion.VERSION2, client_id=f"{GROUP}-{line.name}", protocol=MQTTProtocolVersion.MQTTv311,
            clean_session=True,
        )  # fmt: skip
        client.max_inflight_messages_set(200)
        client.will_set(f"spBv1.0/{GROUP}/NDEATH/{line.name}", self._death(line), qos=1)
        client.on_subscribe = lambda *_: connected.set()
        client.on_connect = lambda made, *_: made.subscribe(f"spBv1.0/{GROUP}/NCMD/{line.name}", qos=1)
        client.on_publish = self._on_publish

        def on_message(_client: Client, _userdata: object, message: MQTTMessage) -> None:
            command = payload_class().FromString(message.payload)
            line.rebirth_wanted |= any(one.name == REBIRTH and one.boolean_value for one in command.metrics)

        client.on_message = on_message
        client.connect(self._stage.mqtt_host, self._stage.mqtt_port, keepalive=30)
        client.loop_start()
        if not connected.wait(CONNECT_TIMEOUT_S):
            raise TimeoutError(f"{line.name} was not connected in {CONNECT_TIMEOUT_S:.0f} s")
        line.client = client
        self._be_born(line, reason)

    def _death(self, line: Line) -> bytes:
        payload = payload_class()(timestamp=self._clock.now_ms())
        add_metric(payload, "bdSeq", 0, INT64, line.bd_seq, self._clock.now_ms())
        return bytes(payload.SerializeToString())

    def _on_publish(self, *_: object) -> None:
        with self._answered:
            self.acknowledged += 1
            self._answered.notify_all()

    def _be_born(self, line: Line, reason: str) -> None:
        """NBIRTH and DBIRTHs: every metric gets a new alias."""
        now_ms = self._clock.now_ms()
        self._end_births(line, now_ms)
        self.births.append(Birth(line.name, reason, now_ms))
        metrics = [(device, name) for device, kinds in METRICS.items() for name in kinds]
        numbers = self._rng.permutation(np.arange(1, len(metrics) + 1))
        line.aliases = dict(zip(metrics, (int(number) for number in numbers), strict=True))
        line.seq, line.rebirth_wanted = 0, False
        birth = payload_class()()
        add_metric(birth, "bdSeq", 0, INT64, line.bd_seq, now_ms)
        add_metric(birth, REBIRTH, 100, BOOLEAN, False, now_ms)
        self._publish(line, "NBIRTH", birth)
        for device, values in line.values().items():
            self._report(line, device, values, with_names=True)

    def _end_births(self, line: Line, now_ms: int) -> None:
        for birth in self.births:
            if birth.line == line.name and not birth.ended_ms:
                birth.ended_ms = now_ms

    def _report(self, line: Line, device: str, values: Mapping[str, Any], *, with_names: bool = False) -> None:
        now_ms = self._clock.now_ms()
        payload = payload_class()()
        for name, value in values.items():
            kind = METRICS[device][name]
            add_metric(payload, name if with_names else None, line.aliases[device, name], kind, value, now_ms)
            line.told[device, name] = value
            self.truth.append((line.name, device, name, now_ms, value))
        self._publish(line, "DBIRTH" if with_names else "DDATA", payload, device)

    def _publish(self, line: Line, kind: str, payload: Any, device: str = "") -> None:
        assert line.client is not None
        payload.timestamp, payload.seq = self._clock.now_ms(), line.seq
        line.seq = (line.seq + 1) % 256
        topic = "/".join(part for part in ("spBv1.0", GROUP, kind, line.name, device) if part)
        with self._answered:
            self.sent += 1
        line.client.publish(topic, payload.SerializeToString(), qos=1)

    def _live(self) -> None:
        while not self._stopped.wait(EVERY_S):
            for line in self.lines if self._begun_s else ():
                line.step(EVERY_S * self._stage.speed)
                self._turn(line)

    def allow_accidents(self) -> None:
        """Spark is there to notice: the lines work, and accidents happen from now on."""
        if not self._begun_s:
            self._begun_s, self.begun_ms = self._now_s(), self._clock.now_ms()

    def _turn(self, line: Line) -> None:
        """One line's turn: come back, be born again, have an accident, or report what has changed."""
        now_s = self._now_s()
        if line.client is None:
            if now_s >= line.back_at_s:
                line.bd_seq += 1
                self._connect(line, "reconnected")
            return
        if line.rebirth_wanted:
            for gap in self.gaps:
                if gap.line == line.name and not gap.answered_ms:
                    gap.answered_ms = self._clock.now_ms()
            self._be_born(line, "rebirth")
            return
        accident = self._accident(line, now_s)
        if accident == "broken":
            self._break(line)
            return
        if accident == "lost":
            line.seq = (line.seq + 1) % 256  # the message with this number is never seen again
            self.gaps.append(Gap(line.name, self._clock.now_ms()))
        for device, values in line.values().items():
            changed = {name: value for name, value in values.items() if value != line.told[device, name]}
            if changed:
                self._report(line, device, changed)

    def _accident(self, line: Line, now_s: float) -> str:
        """What happens to a line now, if anything; one that waits for its rebirth has had enough."""
        if any(gap.line == line.name and not gap.answered_ms for gap in self.gaps):
            return ""
        for one in self._accidents:
            if one[2] is line and one[0] <= now_s - self._begun_s:
                self._accidents.remove(one)
                return one[1]
        return ""

    def _break(self, line: Line) -> None:
        """Cut the connection, once the server has everything, without a word: the server publishes the will."""
        assert line.client is not None
        self._await_answers(CONNECT_TIMEOUT_S)
        made = line.client.socket()
        self._end_births(line, self._clock.now_ms())
        self.births[max(n for n, one in enumerate(self.births) if one.line == line.name)].died = True
        line.client.on_disconnect = lambda client, *_: client.disconnect()  # it shall not connect again by itself
        with suppress(OSError):
            assert isinstance(made, socket.socket)
            made.shutdown(socket.SHUT_RDWR)
        line.client.loop_stop()
        line.client, line.back_at_s = None, self._now_s() + OFFLINE_S
        self.deaths += 1

    def _await_answers(self, timeout_s: float) -> bool:
        with self._answered:
            return self._answered.wait_for(lambda: self.acknowledged >= self.sent, timeout_s)

    def waiting(self) -> bool:
        """Whether a lost message has not led to a rebirth yet, or a line is away."""
        return any(not gap.answered_ms for gap in self.gaps) or any(line.client is None for line in self.lines)

    def settle(self, timeout_s: float) -> bool:
        """Say goodbye: a line that leaves publishes its own death, as the specification wants it."""
        now_ms = self._clock.now_ms()
        for line in self.lines:
            self._end_births(line, now_ms)
            if line.client is not None:
                with self._answered:
                    self.sent += 1
                line.client.publish(f"spBv1.0/{GROUP}/NDEATH/{line.name}", self._death(line), qos=1)
        done = self._await_answers(timeout_s)
        for line in self.lines:
            if line.client is not None:
                line.client.disconnect()
                line.client.loop_stop()
        return done

    def figures(self) -> Mapping[str, str]:
        """What happened to the factory."""
        answered = sum(1 for gap in list(self.gaps) if gap.answered_ms)
        return {
            "lines": f"{sum(line.client is not None for line in self.lines)} of {len(self.lines)} alive, "
            f"{self.deaths} deaths",
            "aliases": f"re-numbered {len(self.births) - len(self.lines)} times, gaps answered {answered}"
            f" of {len(self.gaps)}",
        }  # fmt: skip


# --- The pipeline ------------------------------------------------------------------------------------------------


class Sequence(StatefulProcessor):
    """Watches the sequence numbers of one line; yields a command when one is missing for longer than a batch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state: the next number, numbers that came too early, and whether a rebirth was asked for."""
        self._state = handle.getValueState("sequence", "born long, next int, early array<int>, asked boolean")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Follow the numbers in the order of the log, whichever queues the messages came from."""
        born, expected, early, asked = self._state.get() or (-1, 0, [], False)
        known, waiting = list(early), bool(early)
        for row in sorted(rows, key=lambda one: one.logPosition):
            if row.messageType == "NBIRTH":
                born, expected, known, waiting, asked = row.logPosition, 1, [], False, False
            elif row.logPosition > born:  # another queue may bring what was before the birth
                known.append(row.seq)
            while expected in known:
                known.remove(expected)
                expected = (expected + 1) % 256
        if known and waiting and not asked:
            asked = True
            yield Row(mqttTopic=f"spBv1.0/{GROUP}/NCMD/{key[0]}", body=rebirth_command())
        self._state.update((born, expected, known, asked))

    def close(self) -> None:
        """Nothing is held outside Spark's state."""


def rebirth_command() -> bytes:
    """The payload that asks an edge node for new births."""
    now_ms = SystemClock().now_ms()
    payload = payload_class()(timestamp=now_ms)
    payload.metrics.add(name=REBIRTH, timestamp=now_ms, datatype=BOOLEAN, boolean_value=True)
    return bytes(payload.SerializeToString())


def messages(reader: DataFrameReader | DataStreamReader, stage: Stage) -> DataFrame:
    """Every Sparkplug message of the group, decoded; `reader` is spark.read or spark.readStream."""
    source = reader.format("rocketmq").options(**stage.source).option("mqttFilter", FILTER)
    return source.option("decode", "sparkplug").load()


def metrics(decoded: DataFrame) -> DataFrame:
    """A row per metric, with its name and its value in a typed column."""
    columns = ["messageType", "edgeNodeId", "deviceId", "seq", "bdSeq", "logPosition", "_corrupt"]
    names = ["name", "alias", "datatype", "timestamp", "long", "double", "boolean", "text"]
    return decoded.select(*columns, F.inline_outer("metrics")).select(*columns, *names)


def queries(spark: SparkSession, stage: Stage) -> Queries:
    """Commands for rebirths back to the lines, and all values to Parquet."""

    def rebirths() -> Any:
        numbered = messages(spark.readStream, stage).where("seq IS NOT NULL")
        wanted = numbered.select("edgeNodeId", "messageType", "seq", "logPosition").groupBy("edgeNodeId")
        rows = wanted.transformWithState(
            statefulProcessor=Sequence(), outputStructType="mqttTopic string, body binary", outputMode="Append",
            timeMode="None",
        )  # fmt: skip
        return stage.to_mqtt(rows.withColumn("qos", F.lit(1)), "rebirths", trigger="250 milliseconds")

    def values() -> Any:
        return stage.to_parquet(metrics(messages(spark.readStream, stage)), "values")

    return {"rebirths": rebirths, "values": values}


def batch(spark: SparkSession, stage: Stage) -> None:
    """Name the aliases once more by hand: each data message belongs to the last birth of its device before it."""
    rows = metrics(messages(spark.read, stage)).where("deviceId IS NOT NULL").cache()
    device = Window.partitionBy("edgeNodeId", "deviceId")
    births = rows.where("messageType = 'DBIRTH'")
    positions = births.select("edgeNodeId", "deviceId", "logPosition").distinct()
    until = F.lead("logPosition", 1, 2**62).over(device.orderBy("logPosition"))
    spans = positions.withColumn("until", until)
    since, name_as_of = F.col("logPosition").alias("since"), F.col("name").alias("name_as_of")
    born = births.join(spans, ["edgeNodeId", "deviceId", "logPosition"])
    born = born.select("edgeNodeId", "deviceId", "alias", name_as_of, since, "until")
    data = rows.where("messageType = 'DDATA'")
    as_of = data.join(born, ["edgeNodeId", "deviceId", "alias"]).where("logPosition > since AND logPosition < until")
    last = born.where(f"until = {2**62}").select(
        "edgeNodeId", "deviceId", "alias", F.col("name_as_of").alias("name_of_last")
    )
    compared = as_of.join(last, ["edgeNodeId", "deviceId", "alias"], "left")
    compared.select("edgeNodeId", "deviceId", "name", "name_as_of", "name_of_last", "timestamp").write.parquet(
        str(stage.folder("as_of"))
    )


def during(play: Run) -> bool:
    """Accidents begin with Spark's first batch; the story goes on until every gap has its rebirth."""
    devices: Factory = play.devices
    devices.allow_accidents()
    return devices.waiting() and play.live_s < play.stage.seconds + ANSWER_S_MAX


# --- What must be true -------------------------------------------------------------------------------------------


def compare(stage: Stage, truth: list[tuple[str, str, str, int, Any]]) -> tuple[pd.DataFrame, int]:
    """Values as Spark has them, and how many of them are what was sent under that name at that time."""
    rows = read_rows(stage, "values")
    rows = rows[rows["messageType"].isin(["DBIRTH", "DDATA"])].copy()
    rows["at_ms"] = rows["timestamp"].astype("datetime64[ms, UTC]").astype("int64")
    read = {
        (row.edgeNodeId, row.deviceId, row.name, row.at_ms): row for row in rows.itertuples(index=False)
    }  # fmt: skip
    same = 0
    for line, device, name, at_ms, value in truth:
        row = read.get((line, device, name, at_ms))
        same += row is not None and getattr(row, MEMBERS[METRICS[device][name]]) == value
    return rows, same


def check(play: Run) -> list[Claim]:
    """Every message is read, every value has its name, deaths are rows, gaps lead to births."""
    devices: Factory = play.devices
    stage = play.stage
    rows, same = compare(stage, devices.truth)
    every = read_rows(stage, "values")
    by_type = every.drop_duplicates("logPosition")["messageType"].value_counts()
    as_of = read_rows(stage, "as_of")
    wrong = int((as_of["name_of_last"] != as_of["name"]).sum())
    different = int((as_of["name_as_of"] != as_of["name"]).sum())
    took = [(gap.answered_ms - gap.at_ms) / 1000 for gap in devices.gaps if gap.answered_ms]
    goodbyes = len(LINES)
    return [
        equal("messages", sent=devices.sent, acknowledged=devices.acknowledged,
              read_by_Spark=int(by_type.drop("NCMD", errors="ignore").sum()) - devices.deaths),
        equal("values", sent=len(devices.truth), read_by_Spark=len(rows), equal_to_those_sent=same),
        holds("nothing is corrupt", every["_corrupt"].isna().all(), f"{int(every['_corrupt'].notna().sum())} metrics"),
        holds("the as-of join gives the same names", len(as_of) > 0 and different == 0,
              f"by alias {len(as_of):,}, different {different}; by the last birth alone {wrong:,} would be wrong"),
        equal("deaths", connections_cut=devices.deaths, death_certificates=int(by_type.get("NDEATH", 0)) - goodbyes),
        equal("lost messages", lost=len(devices.gaps), commands=int(by_type.get("NCMD", 0)),
              rebirths=sum(birth.reason == "rebirth" for birth in devices.births)),
        holds("the field was rough", devices.deaths and devices.gaps,
              f"births {len(devices.births)}; from a lost message to the new birth "
              f"{np.median(took) if took else 0:.1f} s, at most {max(took, default=0):.1f} s"),
    ]  # fmt: skip


# --- The picture -------------------------------------------------------------------------------------------------


def picture(play: Run, claims: list[Claim]) -> Picture:
    """Lives of the lines, one alias as it was sent, and the metric it hides as decoded."""
    devices: Factory = play.devices
    rows, _ = compare(play.stage, devices.truth)
    as_of = read_rows(play.stage, "as_of")
    wrong = float((as_of["name_of_last"] != as_of["name"]).mean())
    begin_ms = devices.begun_ms or min(birth.at_ms for birth in devices.births)
    rows["second"] = (rows["at_ms"] - begin_ms) / 1000
    page = Picture(
        f"Aliases changed {len(devices.births) - len(LINES)} times, and all {len(rows):,} values kept their names",
        f"a table of the newest births alone would call {wrong:.0%} of the values by a wrong name; Spark joins each "
        "message with the birth before it",
        height=8.6,
    )  # fmt: skip
    grid = page.grid(2, 2, height_ratios=[1, 1.25], hspace=0.42, wspace=0.16)
    draw_lives(page, grid[0, :], devices, begin_ms)
    line = max(LINES, key=lambda name: sum(birth.line == name for birth in devices.births))
    mine = [birth for birth in devices.births if birth.line == line]
    lives = [((one.at_ms - begin_ms) / 1000, (one.ended_ms - begin_ms) / 1000) for one in mine]
    draw_alias(page, grid[1, 0], rows, line, lives)
    draw_decoded(page, grid[1, 1], rows, line, lives)
    return page


def draw_lives(page: Picture, place: object, devices: Factory, begin_ms: int) -> None:
    """A bar from each birth to the next one or to the death."""
    axes = page.axes(place, "Lives of the edge nodes, birth by birth", x="seconds")
    shades = (BLUE, "#7ba5f2")
    for row, name in enumerate(LINES):
        mine = [birth for birth in devices.births if birth.line == name]
        for number, birth in enumerate(mine):
            first, last = (birth.at_ms - begin_ms) / 1000, (birth.ended_ms - begin_ms) / 1000
            axes.barh(row, last - first, left=first, height=0.46, color=shades[number % 2], linewidth=0)
            if birth.died:
                axes.scatter(last, row, marker="X", s=72, color=RED, zorder=5, linewidth=0)
    for gap in devices.gaps:
        first, last = (gap.at_ms - begin_ms) / 1000, ((gap.answered_ms or gap.at_ms) - begin_ms) / 1000
        row = LINES.index(gap.line)
        axes.plot([first, last], [row + 0.34] * 2, color=AMBER, linewidth=2.4)
        axes.scatter(first, row + 0.34, color=AMBER, s=26, zorder=6, linewidth=0)
    axes.scatter([], [], marker="X", s=64, color=RED, linewidth=0, label="connection cut: the server publishes NDEATH")
    lost = "a message is lost, until Spark's command has led to a rebirth"
    axes.plot([], [], color=AMBER, linewidth=2.4, marker="o", label=lost)
    axes.legend(loc="lower right", ncols=2, bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2)
    axes.set_yticks(range(len(LINES)), LINES)
    axes.set_ylim(len(LINES) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_xlim(0, max(birth.ended_ms - begin_ms for birth in devices.births) / 1000)


Lives = list[tuple[float, float]]
"""When an edge node was born and when that life ended, in seconds."""


def draw_alias(page: Picture, place: object, rows: pd.DataFrame, line: str, lives: Lives) -> None:
    """What the number alone says: one alias stands for another metric after each birth."""
    mine = rows[(rows["edgeNodeId"] == line) & (rows["datatype"] != "String")].copy()
    mine["value"] = mine["double"].fillna(mine["long"]).fillna(mine["boolean"].astype("float"))
    counts = mine.groupby(["alias", "name"]).size().groupby("alias").agg(["size", "min"])
    alias = int(counts.sort_values(["size", "min"]).index[-1])  # the most meanings, each seen often
    axes = page.axes(place, f"As sent: whatever alias {alias} of {line} stands for", x="seconds", y="value, no unit")
    mine = mine[mine["alias"] == alias]
    for number, (begin, end) in enumerate(lives):
        part = mine[(mine["second"] >= begin) & (mine["second"] < end)]
        if len(part):
            axes.scatter(part["second"], part["value"], s=13, color=SERIES[number % len(SERIES)], linewidth=0)
            name_life(axes, lives, number, str(part["name"].iloc[-1]), SERIES[number % len(SERIES)])
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.25 * (high - low))
    mark(axes, lives, "")


def draw_decoded(page: Picture, place: object, rows: pd.DataFrame, line: str, lives: Lives) -> None:
    """The same messages, decoded: one metric through all births, with the alias it had."""
    axes = page.axes(place, f"As decoded: oven temperature of {line}", x="seconds", y="°C")
    mine = rows[(rows["edgeNodeId"] == line) & (rows["deviceId"] == "oven")].sort_values("second")
    temperature, setpoint = mine[mine["name"] == "Temperature"], mine[mine["name"] == "Setpoint"]
    low, high = float(temperature["double"].min()), float(max(temperature["double"].max(), setpoint["long"].max()))
    axes.set_ylim(low - 0.08 * (high - low), high + 0.3 * (high - low))
    for number, (begin, end) in enumerate(lives):
        wanted, part = (one[(one["second"] >= begin) & (one["second"] < end)] for one in (setpoint, temperature))
        if len(part) and len(wanted):
            times = [*wanted["second"], min(end, float(rows["second"].max()))]
            axes.step(times, [*wanted["long"], wanted["long"].iloc[-1]], where="post", color=FAINT, linewidth=1.2)
            axes.plot(part["second"], part["double"], color=TEAL, linewidth=2)
            name_life(axes, lives, number, f"alias {int(part['alias'].iloc[-1])}", MUTED)
    callout(axes, "setpoint", (0.0, float(setpoint["long"].iloc[0])), (4, 20), MUTED)
    mark(axes, lives, "born again")


def name_life(axes: Any, lives: Lives, number: int, text: str, color: str) -> None:
    """Write a word over one life, unless that is too short for it."""
    begin, end = max(0.0, lives[number][0]), lives[number][1]
    if end - begin > 0.08 * lives[-1][1]:
        axes.text((begin + end) / 2, 0.93, text, fontsize=8.5, color=color, transform=axes.get_xaxis_transform(),
                  ha="center")  # fmt: skip


def mark(axes: Any, lives: Lives, text: str) -> None:
    """Thin lines where the line was born, grey where it was away."""
    for (_, died_s), (born_s, _) in itertools.pairwise(lives):
        if born_s - died_s > 0.5:
            axes.axvspan(died_s, born_s, color=FAINT, alpha=0.18, linewidth=0)
            middle_s = (died_s + born_s) / 2
            axes.text(
                middle_s, 0.5, "away", transform=axes.get_xaxis_transform(), fontsize=8.5, color=MUTED, ha="center"
            )
    for number, (at_s, _) in enumerate(lives):
        axes.axvline(at_s, color=INK, linewidth=0.8, linestyle=(0, (2, 3)), alpha=0.7)
        if text and number == 1 and at_s < 0.8 * axes.get_xlim()[1]:
            axes.text(at_s, 0.03, f" {text}", transform=axes.get_xaxis_transform(), fontsize=8.5, color=INK,
                      bbox={"fc": PAPER, "ec": "none", "pad": 1, "alpha": 0.8})  # fmt: skip
    axes.set_xlim(0, lives[-1][1])


EXAMPLE = Example(
    name="sparkplug",
    headline="Four edge nodes, aliases that change at each birth; typed values under their names, rebirths by command.",
    filters=[FILTER],
    devices=Factory,
    queries=queries,
    batch=batch,
    during=during,
    check=check,
    picture=picture,
    seconds=40.0,
    speed=20.0,
    live=True,
)

if __name__ == "__main__":
    raise SystemExit(run(EXAMPLE))
