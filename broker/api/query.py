"""Messages looked up: 12 by key, 33 by position, and 321 what a queue's index says.

A look-up by key asks the store's key index: topic and one of the message's keys or, with the extra field
`_UNIQUE_KEY_QUERY`, the unique key; between two store times, the newest first, as many as asked for and at most
`MESSAGES_MAX` (RocketMQ's limit too) or `limits.pull_bytes_max`. Invariant: what is shown is confirmed, in a queue that
exists and has not given it up, and not staged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from broker.api.access import CONSUME
from broker.api.fields import flag, number, text
from broker.api.message_at import message_at
from broker.api.queues import find_queue, is_light, require_readable
from broker.api.stored_message import stored_message
from broker.store.key_index.key_reader import KeyQuestion
from remoting.access.resources import of_record, of_topic
from remoting.protocol.codes import ResponseCode
from remoting.protocol.commands import Command
from remoting.protocol.errors import Refused
from remoting.protocol.record import MESSAGE, RecordView
from remoting.transport.contracts import Peer

if TYPE_CHECKING:
    from broker.api.context import Broker

UNIQUE_FIELD = "_UNIQUE_KEY_QUERY"
MESSAGES_DEFAULT = 32
MESSAGES_MAX = 64
"""Messages of one answer to 12, whatever the client asks for."""
ENTRIES_MAX = 1_024
"""Entries of one answer to 321."""
FOREVER_MS = 2**62
_SIGN = 1 << 31


def view_message(broker: Broker, peer: Peer, command: Command) -> Command:
    """33: one message by its position in the log, as its id names it."""
    position = number(command.fields, "offset")
    view = message_at(broker, position)
    body = _shown(broker, view) if view is not None else None
    if view is None or body is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {position}")
    broker.authorizer.authorize(peer, command, CONSUME, of_record(view))
    return command.reply(body=body)


def query_message(broker: Broker, peer: Peer, command: Command) -> Command:
    """12: the newest messages of a topic with a key."""
    fields = command.fields
    topic, key = text(fields, "topic"), text(fields, "key")
    broker.authorizer.authorize(peer, command, CONSUME, of_topic(topic))
    require_readable(broker, topic)
    keys = broker.store.keys
    if keys is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, "this broker keeps no index of keys: broker.store.key_index is off")
    found = keys.find(
        KeyQuestion(
            topic.encode(),
            key.encode(),
            begin_ms=number(fields, "beginTimestamp", 0),
            end_ms=min(number(fields, "endTimestamp", FOREVER_MS), FOREVER_MS),
            count_max=max(1, min(number(fields, "maxNum", MESSAGES_DEFAULT), MESSAGES_MAX)),
            bytes_max=broker.config.limits.pull_bytes_max,
            unique_only=flag(fields, UNIQUE_FIELD),
        )
    )
    views = [view for view in map(RecordView, found.records) if view.type == MESSAGE & 0xFF]
    shown = [body for view in views if (body := _shown(broker, view)) is not None]
    broker.metrics.messages_out.value += len(shown)
    remarks = []
    if found.unreadable:
        remarks.append(f"{found.unreadable} records that may have the key fail their checks")
    if not found.complete:
        remarks.append(f"ended after {found.examined} records that may have had the key")
    if not shown:
        remarks.insert(0, "can not find message, maybe time range not correct")
    return command.reply(
        ResponseCode.SUCCESS if shown else ResponseCode.QUERY_NOT_FOUND,
        "; ".join(remarks) or None,
        {
            # Keys are indexed with the append itself: what is confirmed can be found.
            "indexLastUpdateTimestamp": str(broker.clock.now_ms()),
            "indexLastUpdatePhyoffset": str(broker.store.confirm_position),
        },
        b"".join(shown),
    )


def query_consume_queue(broker: Broker, peer: Peer, command: Command) -> Command:
    """321: position, size and tag hash of a queue's entries, for tools that look into it."""
    fields = command.fields
    topic, first = text(fields, "topic"), number(fields, "index", 0)
    broker.authorizer.authorize(peer, command, CONSUME, of_topic(topic))
    if not is_light(topic):
        broker.topics.require(topic)
    queue_id = find_queue(broker, topic, number(fields, "queueId"))
    low, high = broker.store.bounds(queue_id) if queue_id is not None else (0, 0)
    count = max(0, min(number(fields, "count", 10), ENTRIES_MAX))
    records: list[memoryview] = []
    if queue_id is not None and first < high:
        records = broker.store.read(queue_id, max(first, low), count, broker.config.limits.pull_bytes_max).records
    body: dict[str, Any] = {
        "queueData": [_entry(RecordView(record)) for record in records],
        "minQueueIndex": low,
        "maxQueueIndex": high,
    }
    return command.reply(body=msgspec.json.encode(body))


def _entry(view: RecordView) -> dict[str, Any]:
    tag = (view.tag_hash ^ _SIGN) - _SIGN  # the hash is a signed number there
    return {"physicOffset": view.position, "physicSize": view.total, "tagsCode": tag}


def _shown(broker: Broker, view: RecordView) -> bytes | None:
    """The message as a client reads it, from its first queue; None for what nobody may see, or what has expired."""
    dispatch = view.dispatch()
    if not dispatch:
        return None
    queue_id, offset = dispatch[0]
    if broker.hidden(queue_id) or offset < broker.store.bounds(queue_id)[0]:
        return None
    owner = broker.topics.owner(queue_id)
    return stored_message(view, owner[1] if owner is not None else 0, offset, broker.store_host, broker.origin)
