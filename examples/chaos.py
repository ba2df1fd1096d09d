"""Chaos: three controllers and three brokers under load, while the master is killed and then a broker is frozen.

    chaos/<device>/reading   {"device", "seq", "sent_ms"}   some hundred a second, QoS 1; Spark and a device read along

A broker group answers for a message when two of its three brokers have it on disk. So the master may die at any moment
(`kill -9`): the controllers elect one that has everything, the proxy and Spark's query follow. The killed broker comes
back and catches up; then the new master is frozen (SIGSTOP) and must find itself deposed when it wakes up. The checker
compares what was acknowledged with what a subscriber and Spark received, per device and in order, and draws it.

    python examples/chaos.py [--seconds 40] [--seed 1] [--check]
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kit import Claim, Example, Inbox, Living, Picture, Queries, Run, Stage, equal, holds, read_rows, run
from kit.cluster import BROKERS, POLL_S, Cluster, Roles
from kit.later import pd

import numpy as np
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows

from lightmq.demo.picture import AMBER, BLUE, FAINT, GREEN, MUTED, RED, TEAL
from runtime.clock import SystemClock

FILTER = "chaos/+/reading"
READING = "device long, seq long, sent_ms long"
DEVICES, CONNECTIONS, EVERY_S = 40, 4, 0.1
KILLED_AT, BACK_AFTER_S, FROZEN_AT, FROZEN_S = 0.2, 5.0, 0.6, 6.0
"""Shares of the story, and how long a broker is away."""
HEAL_S_MAX = 60.0
"""The story waits so long beyond its end for three brokers in sync."""
GAP_S_MAX, GAP_BUSY_S_MAX, BUSY_LOAD = 2.0, 30.0, 1.0
"""Longest time without an acknowledgement, on a quiet machine and on one with a load per core above BUSY_LOAD."""
CONNECT_TIMEOUT_S = 30.0
IN_FLIGHT_MAX = 2000


# --- The load ----------------------------------------------------------------------------------------------------


class Load(Living):
    """Forty devices over four connections, a subscriber, and a look at the roles five times a second.

    Thread rule: one thread publishes, one asks for the roles, paho's threads record answers under a lock.
    """

    def __init__(self, stage: Stage) -> None:
        super().__init__("devices")
        self._stage = stage
        self._clock = SystemClock()
        self._changed = threading.Condition(threading.Lock())
        """Guards what paho's threads write."""
        self.rows: list[list[int]] = []
        """Device, number, when sent and when acknowledged (0: not), in ms."""
        self._open: list[dict[int, int]] = [{} for _ in range(CONNECTIONS)]
        """By connection: packet id to the row that waits for its answer."""
        self._early: list[dict[int, int]] = [{} for _ in range(CONNECTIONS)]
        """Answers that came before it was known what they answer."""
        self.acknowledged = 0
        self.refused = 0
        self.delivered: list[tuple[int, int, int]] = []
        """Device, number and when the subscriber had it."""
        self.roles: list[Roles] = []
        self._cluster: Cluster | None = None
        self._clients: list[Client] = []
        self._inbox = Inbox(stage, "chaos-subscriber", FILTER, self._receive, qos=1)
        self._watched = threading.Event()
        """Set when nobody has to look at the roles any more."""
        self._watcher = threading.Thread(target=self._watch, name="roles", daemon=True)

    @property
    def sent(self) -> int:
        """Readings handed to MQTT."""
        return len(self.rows)

    def watch(self, cluster: Cluster) -> None:
        """Look at the roles from now on."""
        if self._cluster is None:
            self._cluster = cluster
            self._watcher.start()

    def start(self) -> None:
        """Connect and begin; raises OSError, TimeoutError."""
        self._inbox.connect()
        connected = threading.Semaphore(0)
        for number in range(CONNECTIONS):
            client = Client(
                CallbackAPIVersion.VERSION2, client_id=f"chaos-{number}", protocol=MQTTProtocolVersion.MQTTv311,
                clean_session=False,
            )  # fmt: skip
            client.max_inflight_messages_set(IN_FLIGHT_MAX)
            client.reconnect_delay_set(1, 2)
            client.on_connect = lambda *_: connected.release()
            client.on_publish = self._answer_of(number)
            client.connect(self._stage.mqtt_host, self._stage.mqtt_port, keepalive=60)
            client.loop_start()
            self._clients.append(client)
        for _ in self._clients:
            if not connected.acquire(timeout=CONNECT_TIMEOUT_S):
                raise TimeoutError("the proxy did not answer the devices")
        self._thread.start()

    def _answer_of(self, number: int) -> Any:
        def on_publish(_client: Client, _userdata: object, mid: int, _reason: Any, _properties: Any) -> None:
            now_ms = self._clock.now_ms()
            with self._changed:
                row = self._open[number].pop(mid, None)
                if row is None:
                    self._early[number][mid] = now_ms
                else:
                    self._acknowledge(row, now_ms)

        return on_publish

    def _acknowledge(self, row: int, now_ms: int) -> None:
        self.rows[row][3] = now_ms
        self.acknowledged += 1
        self._changed.notify_all()

    def _receive(self, _topic: str, body: bytes) -> None:
        reading = json.loads(body)
        with self._changed:
            self.delivered.append((reading["device"], reading["seq"], self._clock.now_ms()))
            self._changed.notify_all()

    def _live(self) -> None:
        seq, every_s = 0, EVERY_S / self._stage.speed
        due_s = self._clock.monotonic_ns() / 1e9
        while not self._stopped.wait(max(0.0, due_s - self._clock.monotonic_ns() / 1e9)):
            for device in range(DEVICES):
                self._publish(device, seq)
            seq, due_s = seq + 1, max(due_s + every_s, self._clock.monotonic_ns() / 1e9 - 1)

    def _publish(self, device: int, seq: int) -> None:
        number = device % CONNECTIONS
        now_ms = self._clock.now_ms()
        body = json.dumps({"device": device, "seq": seq, "sent_ms": now_ms})
        self.rows.append([device, seq, now_ms, 0])
        # Not under the lock: paho calls back while it holds locks of its own.
        mid = self._clients[number].publish(f"chaos/{device}/reading", body, qos=1).mid
        with self._changed:
            answered_ms = self._early[number].pop(mid, 0)
            if answered_ms:
                self._acknowledge(len(self.rows) - 1, answered_ms)
            else:
                self._open[number][mid] = len(self.rows) - 1

    def _watch(self) -> None:
        assert self._cluster is not None
        while not self._watched.wait(POLL_S):
            self.roles.append(Roles.of(self._cluster))

    def settle(self, timeout_s: float) -> bool:
        """Wait until everything is acknowledged and delivered."""
        with self._changed:
            done = self._changed.wait_for(lambda: self.acknowledged >= self.sent, timeout_s)
            self._changed.wait_for(lambda: len({one[:2] for one in self.delivered}) >= self.sent, timeout_s)
        self._watched.set()
        if self._watcher.is_alive():
            self._watcher.join()
        for client in self._clients:
            client.disconnect()
            client.loop_stop()
        self._inbox.close()
        return done

    def figures(self) -> Mapping[str, str]:
        """Who is master, and what the subscriber has."""
        if not self.roles:
            return {}
        now = self.roles[-1]
        return {
            "cluster": f"{now.master or 'no master'} leads in epoch {now.epoch}, {len(now.in_sync)} of 3 in sync",
            "delivered": f"{len(self.delivered):,}",
        }


# --- The pipeline ------------------------------------------------------------------------------------------------


def rows_of(source: DataFrame) -> DataFrame:
    """The body's fields, and when Spark processed the batch."""
    body = F.from_json(F.col("body").cast("string"), READING).alias("reading")
    read = source.select("queueId", "queueOffset", body).select("queueId", "queueOffset", "reading.*")
    return read.withColumn("read_ms", F.unix_millis(F.current_timestamp()))


def queries(spark: SparkSession, stage: Stage) -> Queries:
    """One query that keeps reading through every change of master."""

    def stream() -> DataFrame:
        source = spark.readStream.format("rocketmq").options(**stage.source).option("mqttFilter", FILTER)
        return source.option("columns", "queueId,queueOffset,body").load()

    return {"readings": lambda: stage.to_parquet(rows_of(stream()), "readings", trigger="500 milliseconds")}


# --- What happens to the brokers ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Attack:
    """One broker that is taken away; times in ms since 1970, 0: not yet."""

    broker: str
    how: str
    began_ms: int
    ended_ms: int = 0


@dataclass(slots=True)
class Attacks:
    """What was done, and how loaded the machine was meanwhile."""

    done: list[Attack] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)

    @property
    def gap_s_max(self) -> float:
        """The bound that holds here: a quiet machine's, unless other programs take its cores."""
        busy = max(self.loads, default=0.0) > BUSY_LOAD
        return GAP_BUSY_S_MAX if busy else GAP_S_MAX


ATTACKS = Attacks()


def during(play: Run) -> bool:
    """Kill the master, bring it back, freeze the next master, wake it; True until three are in sync again."""
    if play.stack is None:
        return False
    devices, cluster, done = play.devices, play.stack, ATTACKS.done
    devices.watch(cluster)
    now_ms = SystemClock().now_ms()
    roles = devices.roles[-1] if devices.roles else Roles()
    share = play.live_s / play.stage.seconds
    if not done:
        ATTACKS.loads.append(os.getloadavg()[0] / (os.cpu_count() or 1))
    whole = len(roles.in_sync) == len(BROKERS) and roles.master != ""
    if not done and share > KILLED_AT and whole:
        attack(play, roles.master, "killed", signal.SIGKILL)
    elif len(done) == 1 and not done[0].ended_ms and now_ms > done[0].began_ms + BACK_AFTER_S * 1000:
        cluster.start_broker(done[0].broker)
        done[0].ended_ms = now_ms
        play.note(f"{done[0].broker} is started again, on its data")
    elif len(done) == 1 and done[0].ended_ms and share > FROZEN_AT and whole:
        attack(play, roles.master, "frozen", signal.SIGSTOP)
    elif len(done) == 2 and not done[1].ended_ms and now_ms > done[1].began_ms + FROZEN_S * 1000:
        cluster.send(done[1].broker, signal.SIGCONT)
        done[1].ended_ms = now_ms
        play.note(f"{done[1].broker} wakes up")
    ended = len(done) == 2 and done[1].ended_ms and now_ms > done[1].ended_ms + 2000 and whole
    return not ended and play.live_s < play.stage.seconds + HEAL_S_MAX


def attack(play: Run, broker: str, how: str, number: signal.Signals) -> None:
    """Take a broker away."""
    ATTACKS.done.append(Attack(broker, how, SystemClock().now_ms()))
    play.stack.send(broker, number)
    play.note(f"{broker}, the master, is {how} ({'kill -9' if how == 'killed' else 'SIGSTOP'})")


# --- What must be true -------------------------------------------------------------------------------------------


def gap_s(load: Load, since_ms: int, until_ms: int) -> tuple[float, int]:
    """Longest time without an acknowledgement between two moments, in seconds, and when it began (ms)."""
    answers = sorted(row[3] for row in load.rows if since_ms - 1000 <= row[3] <= until_ms)
    if len(answers) < 2:
        return float("inf"), since_ms
    steps = np.diff(answers)
    longest = int(np.argmax(steps))
    return float(steps[longest]) / 1000, answers[longest]


def gaps(load: Load) -> list[tuple[Attack, float, int]]:
    """The gap that each attack made: until the next attack or the end."""
    ends = [one.began_ms for one in ATTACKS.done[1:]] + [max((row[3] for row in load.rows), default=0)]
    return [(one, *gap_s(load, one.began_ms, end)) for one, end in zip(ATTACKS.done, ends, strict=True)]


def out_of_order(pairs: list[tuple[int, int]]) -> int:
    """How many readings came before an earlier one of their device; repeated ones count the first time."""
    newest: dict[int, int] = {}
    seen: set[tuple[int, int]] = set()
    wrong = 0
    for device, seq in pairs:
        if (device, seq) not in seen:
            seen.add((device, seq))
            wrong += seq < newest.get(device, -1)
            newest[device] = max(newest.get(device, -1), seq)
    return wrong


def check(play: Run) -> list[Claim]:
    """Acknowledged is delivered, to the subscriber and to Spark, in order; masters changed; the gap is bounded."""
    load: Load = play.devices
    rows = read_rows(play.stage, "readings")
    acknowledged = {(row[0], row[1]) for row in load.rows if row[3]}
    delivered = [(device, seq) for device, seq, _ in load.delivered]
    read = list(zip(rows["device"], rows["seq"], strict=True))
    stored = rows.sort_values(["queueId", "queueOffset"])
    in_log = out_of_order(list(zip(stored["device"], stored["seq"], strict=True)))
    masters = [one.master for one in load.roles if one.master]
    changes = sum(one != next_one for one, next_one in itertools.pairwise(masters))
    longest = max((found[1] for found in gaps(load)), default=float("inf"))
    bound = ATTACKS.gap_s_max
    claims = [
        equal("messages", sent=load.sent, acknowledged=load.acknowledged,
              delivered=len(set(delivered) & acknowledged), read_by_Spark=len(set(read) & acknowledged)),
        holds("order per device", out_of_order(delivered) == in_log == 0,
              f"delivered out of order {out_of_order(delivered)}, stored out of order {in_log}; repeated: delivered "
              f"{len(delivered) - len(set(delivered))}, stored {len(read) - len(set(read))}"),
    ]  # fmt: skip
    if play.stack is not None:
        attacked = ", ".join(f"{one.broker} {one.how}" for one in ATTACKS.done)
        whole = bool(load.roles) and len(load.roles[-1].in_sync) == len(BROKERS)
        claims += [
            holds("the master was killed, the next one frozen", len(ATTACKS.done) == 2 and changes >= 2,
                  f"{attacked}; changes of master {changes}, last epoch {load.roles[-1].epoch}"),
            holds("the group is whole again", whole, f"{len(load.roles[-1].in_sync)} of 3 in sync"),
            holds(f"no longer than {bound:.0f} s without an acknowledgement", longest < bound,
                  ", ".join(f"{one.how}: {found:.2f} s" for one, found, _ in gaps(load))
                  + f" (load per core {max(ATTACKS.loads, default=0):.1f})"),
        ]  # fmt: skip
    return claims


# --- The picture -------------------------------------------------------------------------------------------------


def picture(play: Run, claims: list[Claim]) -> Picture:
    """Acknowledgements and deliveries, the roles of the brokers, what each message waited, and how Spark followed."""
    load: Load = play.devices
    begin_ms = load.roles[0].at_ms if load.roles else load.rows[0][2]
    found = gaps(load)
    longest = max((one[1] for one in found), default=0.0)
    page = Picture(
        f"A master killed, a master frozen: {longest:.1f} s without an answer, not one message lost",
        f"{load.acknowledged:,} readings acknowledged, each delivered to a subscriber and to Spark, in the order "
        "of its device",
        height=9.4,
    )  # fmt: skip
    grid = page.grid(4, 1, height_ratios=[1.25, 0.95, 1, 1], hspace=0.6)
    rate = page.axes(grid[0], "Messages per second", y="1/s")
    roles = page.axes(grid[1], "Roles, as the controllers see them", sharex=rate)
    waited = page.axes(grid[2], "From publish to acknowledgement", y="s", sharex=rate)
    behind = page.axes(grid[3], "Since the story began", x="seconds", y="messages", sharex=rate)
    draw_rates(rate, load, begin_ms, found)
    draw_roles(roles, load, begin_ms)
    draw_waits(waited, load, begin_ms)
    draw_totals(behind, load, read_rows(play.stage, "readings"), begin_ms)
    for axes in (rate, waited, behind):
        for one in ATTACKS.done:
            axes.axvspan((one.began_ms - begin_ms) / 1000, (one.ended_ms - begin_ms) / 1000, color=RED, alpha=0.07,
                         linewidth=0)  # fmt: skip
    rate.set_xlim(0, (max(row[3] for row in load.rows) - begin_ms) / 1000)
    return page


def draw_rates(axes: Any, load: Load, begin_ms: int, found: list[tuple[Attack, float, int]]) -> None:
    """Acknowledged and delivered messages in steps of a fifth of a second, and the gaps."""
    step = 0.2
    for name, times, color in (
        ("acknowledged", [row[3] for row in load.rows], BLUE),
        ("delivered", [one[2] for one in load.delivered], TEAL),
    ):
        seconds = (np.array(times) - begin_ms) / 1000
        edges = np.arange(0, max(seconds.max(), 1) + step, step)
        counts, _ = np.histogram(seconds[seconds >= 0], edges)
        axes.step(edges[:-1], counts / step, where="post", color=color, linewidth=1.4, label=name)
    axes.set_yscale("symlog", linthresh=100)
    axes.set_yticks([0, 100, 1000, 10_000], ["0", "100", "1,000", "10,000"])
    axes.legend(loc="lower right", ncols=2, bbox_to_anchor=(1, 1), borderaxespad=0.2)
    high = axes.get_ylim()[1] * 12
    axes.set_ylim(0, high)
    for one, took_s, _ in found:
        at_s = (one.began_ms - begin_ms) / 1000
        axes.axvline(at_s, color=RED, linewidth=1.1)
        axes.text(at_s, 0.95, f" {one.broker}, the master, {one.how}:\n {took_s:.2f} s without an acknowledgement",
                  transform=axes.get_xaxis_transform(), color=RED, fontsize=8.5, va="top")  # fmt: skip


def draw_roles(axes: Any, load: Load, begin_ms: int) -> None:
    """Who is master, who has everything, and who is away or behind."""
    colors = {"master": BLUE, "in sync": "#b9d0f7", "away": "#f3c7c5"}
    for now, after in itertools.pairwise(load.roles):
        first, last = (now.at_ms - begin_ms) / 1000, (after.at_ms - begin_ms) / 1000
        for row, name in enumerate(BROKERS):
            role = "master" if name == now.master else "in sync" if name in now.in_sync else "away"
            axes.barh(row, last - first, left=first, height=0.62, color=colors[role], linewidth=0)
    changed = [one for before, one in zip([Roles(), *load.roles], load.roles, strict=False)
               if one.master and (one.master, one.epoch) != (before.master, before.epoch)]  # fmt: skip
    for one in changed:
        axes.text((one.at_ms - begin_ms) / 1000 + 0.15, BROKERS.index(one.master), f"epoch {one.epoch}", fontsize=8,
                  color="white", va="center", clip_on=True)  # fmt: skip
    shown = {"master": "master", "in sync": "replica in sync", "away": "away, or catching up"}
    for role, color in colors.items():
        axes.barh(0, 0, color=color, label=shown[role])
    axes.legend(loc="lower right", ncols=3, bbox_to_anchor=(1, 1), borderaxespad=0.2)
    axes.set_yticks(range(len(BROKERS)), BROKERS)
    axes.set_ylim(len(BROKERS) - 0.5, -0.5)
    axes.grid(visible=False)


def draw_waits(axes: Any, load: Load, begin_ms: int) -> None:
    """A point per message at the time of its publication."""
    rows = np.array([row for row in load.rows if row[3]])
    waits = np.maximum(rows[:, 3] - rows[:, 2], 1) / 1000
    axes.scatter((rows[:, 2] - begin_ms) / 1000, waits, s=3, color=BLUE, alpha=0.35, linewidth=0, rasterized=True)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    p50, p99 = np.percentile(waits, [50, 99])
    axes.text(0.995, 0.9, f"half within {p50 * 1000:.0f} ms, 99 % within {p99:.2f} s", transform=axes.transAxes,
              ha="right", color=MUTED, fontsize=8.5)  # fmt: skip


def draw_totals(axes: Any, load: Load, rows: pd.DataFrame, begin_ms: int) -> None:
    """Sums over time: sent, acknowledged, delivered, read by Spark."""
    last_ms = max([*(one[2] for one in load.delivered), int(rows["read_ms"].max())])
    for name, times, color, width in (
        ("sent", [row[2] for row in load.rows], FAINT, 3.4),
        ("acknowledged", [row[3] for row in load.rows], BLUE, 1.6),
        ("delivered", [one[2] for one in load.delivered], GREEN, 1.2),
        ("read by Spark", list(rows["read_ms"]), AMBER, 1.6),
    ):
        seconds = (np.sort(times) - begin_ms) / 1000
        seconds = seconds[seconds >= 0]
        seconds, counts = np.append(seconds, (last_ms - begin_ms) / 1000), np.arange(1, len(seconds) + 2)
        counts[-1] = counts[-2]
        axes.step(seconds, counts, where="post", color=color, linewidth=width, label=name)
    axes.legend(loc="lower right", ncols=4, bbox_to_anchor=(1, 1), borderaxespad=0.2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_ylim(0)


EXAMPLE = Example(
    name="chaos",
    headline="Three controllers, three brokers, a running query; the master is killed, the next one frozen.",
    filters=[FILTER],
    devices=Load,
    queries=queries,
    during=during,
    check=check,
    picture=picture,
    servers=Cluster,
    seconds=40.0,
    live=True,
)

if __name__ == "__main__":
    raise SystemExit(run(EXAMPLE))
