"""The figures of the overview: sampled from every broker, kept for the charts, shared by all who look.

Every viewer sees the same samples: once a second while somebody looks, every `IDLE_S` otherwise, so that charts have a
past. Roles are looked at with every sample, so that a change is dated to the second; the lag of groups is dear, so it
is asked for every `SLOW_S` while somebody looks and every `SLOW_IDLE_S` otherwise; the points between two looks repeat
the last one. Rates are differences of counters between two samples of one
broker process; a counter that fell counts from zero.
Invariant: the cost is that of one viewer, however many there are; a broker that does not answer is in `missing` and
raises an alarm, and does not delay the others' figures beyond the time limit of a request.
Loop rule: one task on the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from console.alarms import Alarms, rules
from console.cluster import Asked, BrokerGroupsView, json_object
from console.lags import Lag, lag_of
from console.rates import CounterRates, refusals
from console.roles import RoleHistory, broker_rows
from remoting import background, clock
from remoting.protocol.errors import LightMQError
from remoting.protocol.frames.codes import RequestCode as Code
from runtime.clock import Clock
from runtime.logs import get_logger

WATCHED_S = 1.0
IDLE_S = 10.0
SLOW_S = 5.0
"""Between two looks at what is dearer to ask for."""
SLOW_IDLE_S = 30.0
"""The same while nobody looks: alarms and charts do not depend on being looked at."""
Point = tuple[int, float | None, float | None, float | None, int, int]
"""time_ms, messages in per second, out per second, bytes in per second (None: not known yet), clients, largest lag in
messages"""


@dataclass(slots=True)
class Sample:
    """What was seen last."""

    time_ms: int = 0
    overview: dict[str, Any] = field(default_factory=dict)
    brokers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Group -> its answer to METRICS."""
    refusals: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Counter -> its value and its rate, summed over the brokers."""
    missing: dict[str, str] = field(default_factory=dict)
    lag: Lag = field(default_factory=Lag)


class OverviewFigures:
    """Samples of the whole installation."""

    def __init__(
        self, cluster: BrokerGroupsView, clock: Clock, *, mode: str, node: str, version: str, history_s: int
    ) -> None:
        """`mode`: how this installation runs, for people; `node`: the name of this process."""
        self._cluster = cluster
        self._clock = clock
        self._facts = {"version": version, "mode": mode, "node": node}
        self._started_ms = clock.now_ms()
        self._rates = CounterRates()
        self._task: asyncio.Task[None] | None = None
        self._watchers = 0
        self._woken = asyncio.Event()
        self._sampled = asyncio.Event()
        self._slow_s = -SLOW_IDLE_S
        self._log = get_logger("console")
        self._alarms = Alarms()
        self.roles = RoleHistory()
        self.history: deque[Point] = deque(maxlen=history_s)
        self.sample = Sample()

    def start(self) -> None:
        """Sample at once, then every second or every `IDLE_S`."""
        self._task = background.task(self._run(), "samples the figures of the console")

    async def stop(self) -> None:
        """End the task of sampling; what was sampled stays."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Sample every second inside."""
        self._watchers += 1
        self._woken.set()
        try:
            yield
        finally:
            self._watchers -= 1

    def now_ms(self) -> int:
        """Return the time of day in ms since 1970."""
        return self._clock.now_ms()

    async def next(self) -> Sample:
        """Wait for the next sample and return it."""
        await self._sampled.wait()
        return self.sample

    async def fresh(self) -> Sample:
        """Return a sample that is no older than a second or two, taken now if need be."""
        if self._clock.now_ms() - self.sample.time_ms > 2_000 * WATCHED_S:
            await self._take()
        return self.sample

    @property
    def alarms(self) -> list[dict[str, Any]]:
        """What needs attention, the worst first."""
        return self._alarms.items

    @property
    def past_alarms(self) -> list[dict[str, Any]]:
        """What needed attention since the start of this process and no longer does, the latest end first."""
        return self._alarms.past

    async def _run(self) -> None:
        while True:
            try:
                await self._take()
            except LightMQError as error:
                self._log.debug("figures_missing", reason=str(error))
            await self._pause()

    async def _pause(self) -> None:
        """Wait until the next sample is due, or somebody begins to look."""
        if self._watchers:
            await asyncio.sleep(WATCHED_S)
            return
        self._woken.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IDLE_S):
                await self._woken.wait()

    async def _take(self) -> None:
        """Take one sample. Raises LightMQError when no broker answers, which is a sample, too."""
        try:
            asked = await self._cluster.ask_all(None, Code.METRICS)
        except LightMQError as error:
            asked = Asked({}, {"brokers": str(error)})
        now_s = clock.monotonic_s()
        lag = self.sample.lag
        with contextlib.suppress(LightMQError):  # no controller answers, which is no change of roles
            self.roles.note(await broker_rows(self._cluster, None), self._clock.now_ms())
        if asked.answers and now_s >= self._slow_s + (SLOW_S if self._watchers else SLOW_IDLE_S):
            self._slow_s = now_s
            lag = await self._lag() or lag
        brokers = {name: json_object(answer) for name, answer in asked.answers.items()}
        for name, found in brokers.items():
            self._rates.take(name, int(found.get("started_ms", 0)), found["metrics"], found["status"], now_s)
        sample = Sample(self._clock.now_ms(), {}, brokers, {}, asked.missing, lag)
        sample.refusals = refusals(self._rates, brokers)
        sample.overview = self._overview(sample)
        self._keep(sample)

    def _keep(self, sample: Sample) -> None:
        self.sample = sample
        seen = sample.overview
        found = rules(sample.brokers, sample.missing, seen, sample.lag.worst, sample.refusals)
        self._alarms.judge(found, sample.time_ms)
        self.history.append((
            sample.time_ms, seen["messages_in_rate"], seen["messages_out_rate"], seen["bytes_in_rate"],
            seen["clients"], sample.lag.messages_max,
        ))  # fmt: skip
        sampled, self._sampled = self._sampled, asyncio.Event()
        sampled.set()

    async def _lag(self) -> Lag | None:
        try:
            asked = await self._cluster.ask_all(None, Code.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
        except LightMQError:
            return None
        return lag_of(asked)

    def _overview(self, sample: Sample) -> dict[str, Any]:
        rates, statuses = self._rates, [found["status"] for found in sample.brokers.values()]
        stores = [status["store"] for status in statuses]
        metrics = [found["metrics"] for found in sample.brokers.values()]
        log_bytes = _sum(metrics, "rocketmq_storage_bytes")
        return {
            **self._facts,
            "time_ms": sample.time_ms,
            "uptime_s": (sample.time_ms - self._started_ms) // 1_000,
            "messages_in_rate": rates.total("messages_in"),
            "messages_out_rate": rates.total("messages_out"),
            "bytes_in_rate": rates.total("bytes_in"),
            "messages_total": _sum(stores, "messages_total"),
            "clients": _sum(statuses, "clients_connected"),
            "sessions": _sum(statuses, "sessions"),
            "topics": _sum(statuses, "topics"),
            "queues": _sum(stores, "queues"),
            "retained": _sum(statuses, "retained_messages"),
            "delayed": _sum(metrics, "rocketmq_delayed_messages"),
            "groups": sample.lag.groups,
            "lag_max": sample.lag.messages_max,
            "lag_max_s": sample.lag.seconds_max,
            "disk": {
                "free": min((store["disk_free_bytes"] for store in stores), default=0),
                "total": min((found.get("disk_total_bytes", 0) for found in sample.brokers.values()), default=0),
                "log": log_bytes,
            },
            "flush_behind_bytes": _sum(metrics, "rocketmq_flush_behind_bytes"),
            "flush_mode": next((found.get("flush_mode", "") for found in sample.brokers.values()), ""),
            "confirm_lag_bytes": _sum(metrics, "rocketmq_confirm_lag_bytes"),
            "refusals_rate": sum(rate for _, rate in sample.refusals.values()),
            "brokers": len(sample.brokers),
            "missing": sample.missing,
        }


def _sum(tables: list[dict[str, Any]], name: str) -> int:
    return int(sum(table.get(name, 0) for table in tables))
