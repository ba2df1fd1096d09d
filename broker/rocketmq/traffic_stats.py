"""VIEW_BROKER_STATS_DATA (315): messages of a topic and of a consumer group in the last minute, hour and day.

    TOPIC_PUT_NUMS   key topic          from the log: what it still holds of the time, whoever put it there
    GROUP_GET_NUMS   key topic@group    counted by pulls since the start of this broker
    GROUP_GET_SIZE   the same in bytes

Everything else that RocketMQ counts is answered as RocketMQ answers for what it has no figures of, with the names that
there are. Invariant: a figure is measured or refused. Loop thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from broker.groups.clients import MINUTE_MS, SPANS_MS
from broker.requests.fields import text
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.groups.clients import GroupTraffic
    from broker.requests.tools import RequestTools
    from broker.store.log_store import LogStore
    from broker.topics.topics import Topics

TOPIC_PUT_NUMS, GROUP_GET_NUMS, GROUP_GET_SIZE = "TOPIC_PUT_NUMS", "GROUP_GET_NUMS", "GROUP_GET_SIZE"
OFFERED = (TOPIC_PUT_NUMS, GROUP_GET_NUMS, GROUP_GET_SIZE)
MEMBERS = ("statsMinute", "statsHour", "statsDay")
"""Of the answer, in the order of `SPANS_MS`."""
MILLISECONDS = 1_000


class TrafficStatsRequests:
    """Figures of topics and groups over the last minute, hour and day."""

    def __init__(self, tools: RequestTools, *, topics: Topics, group_traffic: GroupTraffic) -> None:
        self._tools = tools
        self._topics = topics
        self._group_traffic = group_traffic

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.VIEW_BROKER_STATS_DATA: self.view_stats,
        }

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
        """(sum, how many it is the sum of) for each span; None where there is no such figure."""
        now_ms = self._tools.clock.now_ms()
        if name == TOPIC_PUT_NUMS and self._topics.get(key) is not None:
            queue_ids = self._topics.queue_ids(key)
            puts = [_put_since(self._tools.store, queue_ids, now_ms - span_ms) for span_ms in SPANS_MS]
            return [(count, count) for count in puts]
        if name in (GROUP_GET_NUMS, GROUP_GET_SIZE):
            topic, _, group = key.partition("@")
            totals = self._group_traffic.totals(group, topic, now_ms)
            if totals is not None:
                by_size = name == GROUP_GET_SIZE
                return [(one.size_bytes if by_size else one.messages, one.answers) for one in totals]
        return None


def put_per_second(store: LogStore, queue_ids: Sequence[int], now_ms: int) -> float:
    """Messages per second that a topic of these queues got over the last minute."""
    return _put_since(store, queue_ids, now_ms - MINUTE_MS) * MILLISECONDS / MINUTE_MS


def _put_since(store: LogStore, queue_ids: Sequence[int], since_ms: int) -> int:
    """Messages of a topic stored since then that are still in the log."""
    return sum(
        store.reading.bounds(queue_id)[1] - store.reading.search_time(queue_id, since_ms) for queue_id in queue_ids
    )
