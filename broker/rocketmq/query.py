"""Look-up of messages: 12 by key, 33 by position; 321 entries of a queue's index.

A look-up by key uses the store's key index: topic and one of the message's keys or, with the extra field
`_UNIQUE_KEY_QUERY`, the unique key; between two store times, the newest first, at most the requested number,
`MESSAGES_MAX` (RocketMQ's limit too) and `limits.pull_bytes_max`. Invariant: every message in an answer is confirmed,
not staged, and still in a queue that exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from broker.requests.fields import flag, number, text
from broker.rocketmq.stored_message import ipv4_host, message_at, origin_of, stored_message
from broker.store.keys.key_store import KeyQuestion
from broker.topics.topics import is_light
from remoting.access.rights import CONSUME, of_record, of_topic
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import MESSAGE, RecordView
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.requests.tools import RequestTools
    from broker.topics.topics import ClientQueues, Topics, VisibleQueues
    from remoting.batches.unpack import Unpacker

UNIQUE_FIELD = "_UNIQUE_KEY_QUERY"
MESSAGES_DEFAULT = 32
MESSAGES_MAX = 64
"""Most messages in one answer to 12."""
ENTRIES_MAX = 1_024
"""Entries of one answer to 321."""
FOREVER_MS = 2**62
_SIGN = 1 << 31


class QueryRequests:
    """Answers look-ups of messages."""

    def __init__(
        self,
        tools: RequestTools,
        *,
        topics: Topics,
        queues: ClientQueues,
        unpacker: Unpacker,
        visible: VisibleQueues,
    ) -> None:
        self._tools = tools
        self._topics = topics
        self._queues = queues
        self._unpacker = unpacker
        self._visible = visible

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.VIEW_MESSAGE_BY_ID: self.view_message,
            Code.QUERY_MESSAGE: self.query_message,
            Code.QUERY_CONSUME_QUEUE: self.query_consume_queue,
        }

    def view_message(self, peer: Peer, command: Command) -> Command:
        """33: one message by its position in the log, as its id names it."""
        position = number(command.fields, "offset")
        view = message_at(self._tools.store, self._unpacker, position)
        body = self._shown(view) if view is not None else None
        if view is None or body is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {position}")
        self._tools.authorizer.authorize(peer, command, CONSUME, of_record(view))
        return command.reply(body=body)

    def query_message(self, peer: Peer, command: Command) -> Command:
        """12: the newest messages of a topic with a key."""
        fields = command.fields
        topic, key = text(fields, "topic"), text(fields, "key")
        self._tools.authorizer.authorize(peer, command, CONSUME, of_topic(topic))
        self._queues.require_readable(topic)
        keys = self._tools.store.keys
        if keys is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, "this broker keeps no index of keys: store.key_index is off")
        found = keys.find(
            KeyQuestion(
                topic.encode(),
                key.encode(),
                begin_ms=number(fields, "beginTimestamp", 0),
                end_ms=min(number(fields, "endTimestamp", FOREVER_MS), FOREVER_MS),
                count_max=max(1, min(number(fields, "maxNum", MESSAGES_DEFAULT), MESSAGES_MAX)),
                bytes_max=self._tools.config.limits.pull_bytes_max,
                unique_only=flag(fields, UNIQUE_FIELD),
            )
        )
        views = [view for view in map(RecordView, found.records) if view.type == MESSAGE & 0xFF]
        shown = [body for view in views if (body := self._shown(view)) is not None]
        self._tools.metrics.messages_out.value += len(shown)
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
                # Keys are indexed with the append itself: every confirmed message can be found.
                "indexLastUpdateTimestamp": str(self._tools.clock.now_ms()),
                "indexLastUpdatePhyoffset": str(self._tools.store.confirm_position),
            },
            b"".join(shown),
        )

    def query_consume_queue(self, peer: Peer, command: Command) -> Command:
        """321: position, size and tag hash of a queue's entries."""
        fields = command.fields
        topic, first = text(fields, "topic"), number(fields, "index", 0)
        self._tools.authorizer.authorize(peer, command, CONSUME, of_topic(topic))
        if not is_light(topic):
            self._topics.require(topic)
        queue_id = self._queues.find(topic, number(fields, "queueId"))
        low, high = self._tools.store.reading.bounds(queue_id) if queue_id is not None else (0, 0)
        count = max(0, min(number(fields, "count", 10), ENTRIES_MAX))
        records: list[memoryview] = []
        if queue_id is not None and first < high:
            records = self._tools.store.reading.read(
                queue_id, max(first, low), count, self._tools.config.limits.pull_bytes_max
            ).records
        body: dict[str, Any] = {
            "queueData": [_entry(RecordView(record)) for record in records],
            "minQueueIndex": low,
            "maxQueueIndex": high,
        }
        return command.reply(body=msgspec.json.encode(body))

    def _shown(self, view: RecordView) -> bytes | None:
        """The message in RocketMQ's layout, from its first queue; None for one that is hidden or has expired."""
        dispatch = view.dispatch()
        if not dispatch:
            return None
        queue_id, offset = dispatch[0]
        if self._visible.hidden(queue_id) or offset < self._tools.store.reading.bounds(queue_id)[0]:
            return None
        owner = self._topics.owner(queue_id)
        return stored_message(
            view,
            owner[1] if owner is not None else 0,
            offset,
            ipv4_host(self._tools.identity.host, self._tools.identity.port),
            origin_of(self._tools.config.cluster_name),
        )


def _entry(view: RecordView) -> dict[str, Any]:
    tag = (view.tag_hash ^ _SIGN) - _SIGN  # the hash is a signed number there
    return {"physicOffset": view.position, "physicSize": view.total, "tagsCode": tag}
