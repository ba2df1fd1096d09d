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

from broker.api.access import CONSUME
from broker.api.admin import offset_table, queue_key, stored_ms
from broker.api.fields import text
from broker.api.queues import find_queue
from remoting.access.resources import of_topic
from remoting.protocol.commands import Command
from remoting.protocol.errors import Refused
from remoting.transport.contracts import Peer

if TYPE_CHECKING:
    from broker.api.context import Broker

QUEUES_MAX = 10_000
"""Most queues in one answer of 317, groups in order of their names; `truncated` says that there are more. Each costs
two reads of the log on the loop."""

Row = tuple[dict[str, Any], dict[str, int]]


def consume_stats(broker: Broker, peer: Peer, command: Command) -> Command:
    """208: how far a group is behind, queue by queue."""
    group, wanted = text(command.fields, "consumerGroup"), command.fields.get("topic") or ""
    broker.group_commits.flush()
    offsets = ((key, offset) for key, offset in broker.offsets.of_group(group).items() if wanted in ("", key[0]))
    return command.reply(body=_table(broker, command, group, _rows(broker, peer, command, offsets)))


def broker_consume_stats(broker: Broker, peer: Peer, command: Command) -> Command:
    """317: every group that ever committed here, `{"consumeStatsList":[{group:[stats]}],"totalDiff":..}`."""
    broker.group_commits.flush()
    listed: list[bytes] = []
    left, behind, truncated = QUEUES_MAX, 0, False
    for group, offsets in sorted(broker.offsets.by_group().items()):
        if left <= 0:
            truncated = True
            break
        rows = _rows(broker, peer, command, offsets.items())
        left -= len(rows)
        if rows:
            listed.append(b"{%s:[%s]}" % (msgspec.json.encode(group), _table(broker, command, group, rows)))
            behind += sum(messages_behind(numbers) for _, numbers in rows)
    body = b'{"consumeStatsList":[%s],"totalDiff":%d,"totalInflightDiff":0,"brokerAddr":%s,"truncated":%s}' % (
        b",".join(listed),
        behind,
        msgspec.json.encode(broker.address),
        msgspec.json.encode(truncated),
    )
    return command.reply(body=body)


def _table(broker: Broker, command: Command, group: str, rows: list[Row]) -> bytes:
    """The rows of a group, and how fast it pulls their topics."""
    now_ms = broker.clock.now_ms()
    topics = {key["topic"] for key, _ in rows}
    rate = sum((broker.group_traffic.per_second(group, topic, now_ms) for topic in topics), 0.0)
    return offset_table(command, rows, "consumeTps", rate)


def messages_behind(numbers: dict[str, int]) -> int:
    """Messages of a queue that can still be read and were not."""
    return max(0, numbers["brokerOffset"] - max(numbers["consumerOffset"], numbers["minOffset"]))


def _rows(broker: Broker, peer: Peer, command: Command, offsets: Iterable[tuple[tuple[str, int], int]]) -> list[Row]:
    """Queue and numbers of everything the peer may see, by topic and queue."""
    rows, allowed = [], dict[str, bool]()
    for (topic, index), offset in sorted(offsets):
        if topic not in allowed:
            allowed[topic] = _may_read(broker, peer, command, topic)
        if not allowed[topic]:
            continue
        try:
            queue = find_queue(broker, topic, index)
        except Refused:  # the topic, or this queue of it, was removed
            continue
        if queue is not None:
            rows.append((queue_key(broker, topic, index), _numbers(broker, queue, offset)))
    return rows


def _may_read(broker: Broker, peer: Peer, command: Command, topic: str) -> bool:
    try:
        broker.authorizer.authorize(peer, command, CONSUME, of_topic(topic))
    except Refused:
        return False
    return True


def _numbers(broker: Broker, queue: int, offset: int) -> dict[str, int]:
    low, high = broker.store.bounds(queue)
    waiting = stored_ms(broker, queue, max(offset, low), low, high)
    return {
        "brokerOffset": high,
        "consumerOffset": offset,
        "pullOffset": offset,
        "lastTimestamp": stored_ms(broker, queue, offset - 1, low, high),
        "minOffset": low,
        "waitingMs": max(0, broker.clock.now_ms() - waiting) if waiting else 0,
    }
