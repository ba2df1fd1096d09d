"""Figures for RocketMQ's tools: lag of groups (208, 317), traffic of topics and groups (315), rates of the broker.

Lag: CONSUME_STATS of one group (208), BROKER_CONSUME_STATS of all (317). The group of a shared subscription of MQTT has
its whole filter as its name and its filter as its only topic; RocketMQ's own tools, which know no such names, are not
shown them among all. Bodies are RocketMQ's, with two more members
that its tools ignore: `minOffset`, the oldest message kept, and `waitingMs`, how long ago the first message the group
has not read was stored (0 with nothing waiting). Lag in messages is `brokerOffset - max(consumerOffset, minOffset)`.

Traffic in the last minute, hour and day: VIEW_BROKER_STATS_DATA (315).

    TOPIC_PUT_NUMS   key topic          from the log: what it still has of that time, whatever its source
    GROUP_GET_NUMS   key topic@group    counted by pulls since the start of this broker
    GROUP_GET_SIZE   the same in bytes

Other figures that RocketMQ counts are refused as RocketMQ refuses what it has none of, with the names that there are.

`Rates`: messages per second over the last 10 s, 60 s and 600 s, and per day, from samples of counters. At most one
sample a second is kept, for `SPAN_S`; a rate is what came between the oldest sample of its span and the newest, so it
is right whatever the pauses between samples were.

Invariants: what is counted is confirmed; a figure is measured or refused; topics the peer may not read are left out, as
in TOPIC_LIST. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from broker.groups.traffic import DAY_MS, MILLISECONDS, MINUTE_MS, SPANS_MS
from broker.requests import text
from broker.store.errors import StoreError
from remoting.access.rights import CONSUME, MONITOR, of_topic
from remoting.protocol.errors import Refused
from remoting.protocol.frames import fastjson
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import RecordView
from remoting.protocol.records.topics import inner_filter
from remoting.server.router import later
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.groups.feature import ConsumerGroups
    from broker.groups.traffic import GroupTraffic
    from broker.requests import RequestTools
    from broker.shared.groups import SharedGroup, SharedGroups
    from broker.store.log_store import LogStore
    from broker.topics.topics import ClientQueues, Topics

SPANS_S = (10, 60, 600)
SPAN_S = SPANS_S[-1]


class Rates:
    """Rates of one counter since the start of the process."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque(maxlen=SPAN_S + 1)
        self._day = 0
        self.yesterday_morning = 0
        """The counter when yesterday began (UTC), 0 before the start."""
        self.today_morning = 0
        """The same for today."""

    def sample(self, now_ms: int, count: int) -> None:
        """Record the counter's present value."""
        day = now_ms // DAY_MS
        if self._samples and day != self._day:
            self.yesterday_morning = self.today_morning if day == self._day + 1 else count
            self.today_morning = count
        self._day = day
        if not self._samples or now_ms - self._samples[-1][0] >= 1_000 or now_ms < self._samples[-1][0]:
            self._samples.append((now_ms, count))

    def per_second(self) -> tuple[float, ...]:
        """One rate for each of `SPANS_S`."""
        return tuple(self._over(span_s) for span_s in SPANS_S)

    def _over(self, span_s: int) -> float:
        if len(self._samples) < 2:
            return 0.0
        newest_ms, newest = self._samples[-1]
        for at_ms, count in self._samples:
            if 0 < newest_ms - at_ms <= span_s * 1_000:
                return (newest - count) * 1_000 / (newest_ms - at_ms)
        return 0.0


QUEUES_MAX = 10_000
"""Most queues in one answer of 317, groups in order of their names; `truncated` marks an answer with more. Each costs
two reads of the log."""

ROWS_A_TURN = 100
"""Queues looked at in one turn of the loop."""

Row = tuple[dict[str, Any], dict[str, int]]


@dataclass(frozen=True, slots=True)
class ConsumeStatsRequests:
    """Answers how far groups are behind."""

    tools: RequestTools
    queues: ClientQueues
    groups: ConsumerGroups
    shared: SharedGroups

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {Code.GET_CONSUME_STATS: self.consume_stats, Code.GET_BROKER_CONSUME_STATS: self.broker_consume_stats}

    def consume_stats(self, peer: Peer, command: Command) -> None:
        """208: how far a group is behind, queue by queue."""
        group, wanted = text(command.fields, "consumerGroup"), command.fields.get("topic") or ""
        self.groups.commits.flush()
        later(peer, command, self._consume_stats(peer, command, group, wanted))

    async def _consume_stats(self, peer: Peer, command: Command, group: str, wanted: str) -> Command:
        shared = self.shared.get(group)
        if shared is not None:
            self.tools.authorizer.authorize(peer, command, MONITOR, "groups")
            return command.reply(body=self._table(command, group, [self._shared_row(group, shared)]))
        known = self.groups.offsets.of_group(group)
        offsets = ((key, offset) for key, offset in known.items() if wanted in ("", key[0]))
        return command.reply(body=self._table(command, group, await self._rows(peer, command, offsets)))

    def broker_consume_stats(self, peer: Peer, command: Command) -> None:
        """317: every group that ever committed here, `{"consumeStatsList":[{group:[stats]}],"totalDiff":..}`."""
        self.groups.commits.flush()
        later(peer, command, self._broker_consume_stats(peer, command))

    async def _broker_consume_stats(self, peer: Peer, command: Command) -> Command:
        listed: list[bytes] = []
        left, behind, truncated = QUEUES_MAX, 0, False
        if command.language != "JAVA" and self._may_monitor(peer, command):
            shared = self.shared.items()
            truncated = len(shared) > left
            for number, (name, group) in enumerate(shared[:left], 1):
                row = self._shared_row(name, group)
                listed.append(b"{%s:[%s]}" % (msgspec.json.encode(name), self._table(command, name, [row])))
                if number % ROWS_A_TURN == 0:
                    await asyncio.sleep(0)
            left -= min(left, len(shared))
        for group_name in self.groups.offsets.groups():
            if left <= 0:
                truncated = True
                break
            rows = await self._rows(peer, command, self.groups.offsets.of_group(group_name).items())
            left -= len(rows)
            if rows:
                listed.append(b"{%s:[%s]}" % (msgspec.json.encode(group_name), self._table(command, group_name, rows)))
                behind += sum(messages_behind(numbers) for _, numbers in rows)
        body = b'{"consumeStatsList":[%s],"totalDiff":%d,"totalInflightDiff":0,"brokerAddr":%s,"truncated":%s}' % (
            b",".join(listed),
            behind,
            msgspec.json.encode(self.tools.identity.address),
            msgspec.json.encode(truncated),
        )
        return command.reply(body=body)

    def _table(self, command: Command, group: str, rows: list[Row]) -> bytes:
        """The rows of a group with the rate at which it pulls their topics, as JSON."""
        now_ms = self.tools.clock.now_ms()
        topics = {key["topic"] for key, _ in rows}
        rate = sum((self.groups.traffic.per_second(group, topic, now_ms) for topic in topics), 0.0)
        return offset_table(command, rows, "consumeTps", rate)

    async def _rows(self, peer: Peer, command: Command, offsets: Iterable[tuple[tuple[str, int], int]]) -> list[Row]:
        """Queue and numbers of each queue that the peer may read, by topic and queue."""
        rows, allowed = [], dict[str, bool]()
        for number, ((topic, index), offset) in enumerate(sorted(offsets), 1):
            if number % ROWS_A_TURN == 0:
                await asyncio.sleep(0)
            if topic not in allowed:
                allowed[topic] = self._may_read(peer, command, topic)
            if not allowed[topic]:
                continue
            try:
                queue = self.queues.find(topic, index)
            except Refused:  # the topic, or this queue of it, was removed
                continue
            if queue is not None:
                rows.append((queue_key(self.tools.config.broker_name, topic, index), self._numbers(queue, offset)))
        return rows

    def _shared_row(self, name: str, group: SharedGroup) -> Row:
        """The one queue of a shared subscription's group; what its members have acknowledged out of order is done."""
        messages, offset, begin, end = self.shared.behind(group)
        waiting = stored_ms(self.tools.store, group.queue_id, offset, begin, end) if messages else 0
        numbers = {
            "brokerOffset": end,
            "consumerOffset": end - messages,
            "pullOffset": group.offsets.next,
            "lastTimestamp": stored_ms(self.tools.store, group.queue_id, offset - 1, begin, end),
            "minOffset": begin,
            "waitingMs": max(0, self.tools.clock.now_ms() - waiting) if waiting else 0,
        }
        return queue_key(self.tools.config.broker_name, inner_filter(name), 0), numbers

    def _may_monitor(self, peer: Peer, command: Command) -> bool:
        try:
            self.tools.authorizer.authorize(peer, command, MONITOR, "groups")
        except Refused:
            return False
        return True

    def _may_read(self, peer: Peer, command: Command, topic: str) -> bool:
        try:
            self.tools.authorizer.authorize(peer, command, CONSUME, of_topic(topic))
        except Refused:
            return False
        return True

    def _numbers(self, queue: int, offset: int) -> dict[str, int]:
        low, high = self.tools.store.reading.bounds(queue)
        waiting = stored_ms(self.tools.store, queue, max(offset, low), low, high)
        return {
            "brokerOffset": high,
            "consumerOffset": offset,
            "pullOffset": offset,
            "lastTimestamp": stored_ms(self.tools.store, queue, offset - 1, low, high),
            "minOffset": low,
            "waitingMs": max(0, self.tools.clock.now_ms() - waiting) if waiting else 0,
        }


def messages_behind(numbers: dict[str, int]) -> int:
    """Messages of a queue that can still be read and have not been."""
    return max(0, numbers["brokerOffset"] - max(numbers["consumerOffset"], numbers["minOffset"]))


def stored_ms(store: LogStore, queue: int, offset: int, low: int, high: int) -> int:
    """When a message was stored; 0 where there is none, or none that can be read."""
    if not low <= offset < high:
        return 0
    try:
        records = store.reading.read(queue, offset, 1, 1).records
    except StoreError:
        return 0
    return RecordView(records[0]).store_ms if records else 0


def queue_key(broker_name: str, topic: str, index: int) -> dict[str, Any]:
    """RocketMQ's MessageQueue object."""
    return {"brokerName": broker_name, "queueId": index, "topic": topic}


def offset_table(
    command: Command, table: list[tuple[dict[str, Any], dict[str, int]]], rate: str, per_second: float
) -> bytes:
    """`{"offsetTable":{queue:numbers},rate:per_second}`; the queue is an object as key for Java, else text."""
    if command.language != "JAVA":
        return msgspec.json.encode(
            {"offsetTable": {msgspec.json.encode(key).decode(): value for key, value in table}, rate: per_second}
        )
    return b'{"offsetTable":%s,"%s":%s}' % (fastjson.object_keys(table), rate.encode(), msgspec.json.encode(per_second))


TOPIC_PUT_NUMS, GROUP_GET_NUMS, GROUP_GET_SIZE = "TOPIC_PUT_NUMS", "GROUP_GET_NUMS", "GROUP_GET_SIZE"
OFFERED = (TOPIC_PUT_NUMS, GROUP_GET_NUMS, GROUP_GET_SIZE)
MEMBERS = ("statsMinute", "statsHour", "statsDay")
"""Of the answer, in the order of `SPANS_MS`."""


@dataclass(frozen=True, slots=True)
class TrafficStatsRequests:
    """Answers figures of topics and groups over the last minute, hour and day."""

    tools: RequestTools
    topics: Topics
    group_traffic: GroupTraffic

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {Code.VIEW_BROKER_STATS_DATA: self.view_stats}

    def view_stats(self, _peer: Peer, command: Command) -> Command:
        """315: the figure that the fields `statsName` and `statsKey` name, as RocketMQ's JSON."""
        name, key = text(command.fields, "statsName"), text(command.fields, "statsKey")
        found = self._figures(name, key)
        if found is None:
            remark = f"The stats <{name}> <{key}> not exist; there are {', '.join(OFFERED)}"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        body = {
            member: {"sum": total, "tps": total * MILLISECONDS / span_ms, "avgpt": total / count if count else 0.0}
            for member, span_ms, (total, count) in zip(MEMBERS, SPANS_MS, found, strict=True)
        }
        return command.reply(body=msgspec.json.encode(body))

    def _figures(self, name: str, key: str) -> list[tuple[int, int]] | None:
        """(sum, number of values summed) for each span; None where there is no such figure."""
        now_ms = self.tools.clock.now_ms()
        if name == TOPIC_PUT_NUMS and self.topics.get(key) is not None:
            queue_ids = self.topics.queue_ids(key)
            puts = [_put_since(self.tools.store, queue_ids, now_ms - span_ms) for span_ms in SPANS_MS]
            return [(count, count) for count in puts]
        if name in (GROUP_GET_NUMS, GROUP_GET_SIZE):
            topic, _, group = key.partition("@")
            totals = self.group_traffic.totals(group, topic, now_ms)
            if totals is not None:
                by_size = name == GROUP_GET_SIZE
                return [(one.size_bytes if by_size else one.messages, one.answers) for one in totals]
        return None


def put_per_second(store: LogStore, queue_ids: Sequence[int], now_ms: int) -> float:
    """Messages per second put into a topic of these queues over the last minute."""
    return _put_since(store, queue_ids, now_ms - MINUTE_MS) * MILLISECONDS / MINUTE_MS


def _put_since(store: LogStore, queue_ids: Sequence[int], since_ms: int) -> int:
    """Messages of a topic stored since then that are still in the log."""
    return sum(
        store.reading.bounds(queue_id)[1] - store.reading.search_time(queue_id, since_ms) for queue_id in queue_ids
    )
