"""How far consumer groups are behind: CONSUME_STATS of one group (208), BROKER_CONSUME_STATS of all (317).

Bodies are RocketMQ's, with two members more that its tools pass over: `minOffset`, the oldest message kept, and
`waitingMs`, how long ago the first message the group has not read was stored (0 with nothing waiting).
Lag in messages is `brokerOffset - max(consumerOffset, minOffset)`.

Invariant: what is counted is confirmed; topics the peer may not read are left out, as in TOPIC_LIST. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from broker.requests.fields import text
from broker.rocketmq.admin import offset_table, queue_key, stored_ms
from remoting.access.resources import of_topic
from remoting.access.rights import CONSUME
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.groups.feature import ConsumerGroups
    from broker.requests.tools import RequestTools
    from broker.topics.queues import ClientQueues

QUEUES_MAX = 10_000
"""Most queues in one answer of 317, groups in order of their names; `truncated` says that there are more. Each costs
two reads of the log on the loop."""

Row = tuple[dict[str, Any], dict[str, int]]


class ConsumeStatsRequests:
    """How far groups are behind."""

    def __init__(self, tools: RequestTools, *, queues: ClientQueues, groups: ConsumerGroups) -> None:
        self._tools = tools
        self._queues = queues
        self._offsets = groups.offsets
        self._group_commits = groups.commits
        self._group_traffic = groups.traffic

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.GET_CONSUME_STATS: self.consume_stats,
            Code.GET_BROKER_CONSUME_STATS: self.broker_consume_stats,
        }

    def consume_stats(self, peer: Peer, command: Command) -> Command:
        """208: how far a group is behind, queue by queue."""
        group, wanted = text(command.fields, "consumerGroup"), command.fields.get("topic") or ""
        self._group_commits.flush()
        offsets = ((key, offset) for key, offset in self._offsets.of_group(group).items() if wanted in ("", key[0]))
        return command.reply(body=self._table(command, group, self._rows(peer, command, offsets)))

    def broker_consume_stats(self, peer: Peer, command: Command) -> Command:
        """317: every group that ever committed here, `{"consumeStatsList":[{group:[stats]}],"totalDiff":..}`."""
        self._group_commits.flush()
        listed: list[bytes] = []
        left, behind, truncated = QUEUES_MAX, 0, False
        for group, offsets in sorted(self._offsets.by_group().items()):
            if left <= 0:
                truncated = True
                break
            rows = self._rows(peer, command, offsets.items())
            left -= len(rows)
            if rows:
                listed.append(b"{%s:[%s]}" % (msgspec.json.encode(group), self._table(command, group, rows)))
                behind += sum(messages_behind(numbers) for _, numbers in rows)
        body = b'{"consumeStatsList":[%s],"totalDiff":%d,"totalInflightDiff":0,"brokerAddr":%s,"truncated":%s}' % (
            b",".join(listed),
            behind,
            msgspec.json.encode(self._tools.identity.address),
            msgspec.json.encode(truncated),
        )
        return command.reply(body=body)

    def _table(self, command: Command, group: str, rows: list[Row]) -> bytes:
        """The rows of a group, and how fast it pulls their topics."""
        now_ms = self._tools.clock.now_ms()
        topics = {key["topic"] for key, _ in rows}
        rate = sum((self._group_traffic.per_second(group, topic, now_ms) for topic in topics), 0.0)
        return offset_table(command, rows, "consumeTps", rate)

    def _rows(self, peer: Peer, command: Command, offsets: Iterable[tuple[tuple[str, int], int]]) -> list[Row]:
        """Queue and numbers of everything the peer may see, by topic and queue."""
        rows, allowed = [], dict[str, bool]()
        for (topic, index), offset in sorted(offsets):
            if topic not in allowed:
                allowed[topic] = self._may_read(peer, command, topic)
            if not allowed[topic]:
                continue
            try:
                queue = self._queues.find(topic, index)
            except Refused:  # the topic, or this queue of it, was removed
                continue
            if queue is not None:
                rows.append((queue_key(self._tools.config.broker_name, topic, index), self._numbers(queue, offset)))
        return rows

    def _may_read(self, peer: Peer, command: Command, topic: str) -> bool:
        try:
            self._tools.authorizer.authorize(peer, command, CONSUME, of_topic(topic))
        except Refused:
            return False
        return True

    def _numbers(self, queue: int, offset: int) -> dict[str, int]:
        low, high = self._tools.store.reading.bounds(queue)
        waiting = stored_ms(self._tools.store, queue, max(offset, low), low, high)
        return {
            "brokerOffset": high,
            "consumerOffset": offset,
            "pullOffset": offset,
            "lastTimestamp": stored_ms(self._tools.store, queue, offset - 1, low, high),
            "minOffset": low,
            "waitingMs": max(0, self._tools.clock.now_ms() - waiting) if waiting else 0,
        }


def messages_behind(numbers: dict[str, int]) -> int:
    """Messages of a queue that can still be read and were not."""
    return max(0, numbers["brokerOffset"] - max(numbers["consumerOffset"], numbers["minOffset"]))
