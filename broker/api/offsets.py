"""Offsets for RocketMQ clients: 14 query, 15 update, 29 by time, 30 max, 31 min, 32 earliest time.

Every offset that is told is confirmed: ends come from the confirmed part of a queue, a committed offset is told once
its record is confirmed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api.access import CONSUME
from broker.api.append import refusal_of
from broker.api.fields import flag, number, text
from broker.api.queues import find_queue, is_light
from remoting.access.resources import of_group, of_topic
from remoting.protocol.codes import ResponseCode
from remoting.protocol.commands import Command
from remoting.protocol.errors import Refused
from remoting.protocol.record import RecordView
from remoting.transport.contracts import Peer

if TYPE_CHECKING:
    from broker.api.context import Broker

NO_TIME = -1
"""Answer of 32 for a queue without messages."""


def query_consumer_offset(broker: Broker, peer: Peer, command: Command) -> Command | None:
    """14: the group's offset. Without one: 0 for a young queue unless the client objects, else QUERY_NOT_FOUND."""
    fields = command.fields
    group, topic, index = text(fields, "consumerGroup"), text(fields, "topic"), number(fields, "queueId")
    broker.authorizer.authorize(peer, command, CONSUME, of_group(group))
    broker.authorizer.authorize(peer, command, CONSUME, of_topic(topic))
    broker.group_commits.flush()
    found = broker.offsets.get(group, topic, index)
    if found is not None:
        offset, position = found
        broker.reply_at(position, peer, command.reply(fields={"offset": str(offset)}))
        return None
    queue_id = find_queue(broker, topic, index)
    low = broker.store.bounds(queue_id)[0] if queue_id is not None else 0
    if low == 0 and flag(fields, "setZeroIfNotFound", default=True):
        return command.reply(fields={"offset": "0"})
    return command.reply(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")


def update_consumer_offset(broker: Broker, peer: Peer, command: Command) -> None:
    """15: commit the group's offset; one-way in practice, answered when confirmed otherwise."""
    fields = command.fields
    group, topic, index = text(fields, "consumerGroup"), text(fields, "topic"), number(fields, "queueId")
    offset = number(fields, "commitOffset")
    broker.authorizer.authorize(peer, command, CONSUME, of_group(group))
    broker.authorizer.authorize(peer, command, CONSUME, of_topic(topic))
    if not is_light(topic):
        broker.topics.require(topic)
    if offset < 0:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"commitOffset {offset} is negative")

    def done(error: Exception | None) -> None:
        if command.is_oneway:
            return
        if error is None:
            peer.send(command.reply())
        else:
            refused = refusal_of(broker.metrics, error)
            peer.send(command.reply(refused.code, refused.remark, refused.fields))

    broker.group_commits.add(group, topic, index, offset, done)


def search_offset(broker: Broker, peer: Peer, command: Command) -> Command:
    """29: first offset stored at or after a time; `boundaryType` upper: the last one stored at or before it.

    With nothing that late the end, with nothing that early the beginning: always an offset one can read from.
    """
    queue_id = _queue(broker, peer, command)
    timestamp = number(command.fields, "timestamp")
    if queue_id is None:
        return _offset(command, 0)
    upper = command.fields.get("boundaryType", "lower").lower() == "upper"
    found = broker.store.search_time(queue_id, timestamp, upper=upper)
    return _offset(command, max(broker.store.bounds(queue_id)[0], found - 1) if upper else found)


def max_offset(broker: Broker, peer: Peer, command: Command) -> Command:
    """30: confirmed end of a queue; 0 for a topic that does not exist, as RocketMQ answers."""
    bounds = _bounds(broker, peer, command)
    return _offset(command, bounds[1])


def min_offset(broker: Broker, peer: Peer, command: Command) -> Command:
    """31: offset of the oldest message that is kept."""
    bounds = _bounds(broker, peer, command)
    return _offset(command, bounds[0])


def earliest_store_time(broker: Broker, peer: Peer, command: Command) -> Command:
    """32: when the oldest message of a queue was stored; -1 without one."""
    queue_id = _queue(broker, peer, command)
    records = []
    if queue_id is not None:
        records = broker.store.read(queue_id, broker.store.bounds(queue_id)[0], 1, 1).records
    timestamp = RecordView(records[0]).store_ms if records else NO_TIME
    return command.reply(fields={"timestamp": str(timestamp)})


def _queue(broker: Broker, peer: Peer, command: Command) -> int | None:
    topic = text(command.fields, "topic")
    broker.authorizer.authorize(peer, command, CONSUME, of_topic(topic))
    if not is_light(topic) and broker.topics.get(topic) is None:
        return None
    return find_queue(broker, topic, number(command.fields, "queueId"))


def _bounds(broker: Broker, peer: Peer, command: Command) -> tuple[int, int]:
    queue_id = _queue(broker, peer, command)
    return broker.store.bounds(queue_id) if queue_id is not None else (0, 0)


def _offset(command: Command, offset: int) -> Command:
    return command.reply(fields={"offset": str(offset)})
