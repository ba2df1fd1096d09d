"""Offsets for RocketMQ clients: 14 query, 15 update, 29 by time, 30 max, 31 min, 32 earliest time.

Every offset that is told is confirmed: ends come from the confirmed part of a queue, a committed offset is told once
its record is confirmed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.requests.answers import refusal_of
from broker.requests.fields import flag, number, text
from broker.topics.queues import is_light
from remoting.access.resources import of_group, of_topic
from remoting.access.rights import CONSUME
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import RecordView
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.groups.offsets import GroupOffsets, OffsetGather
    from broker.requests.tools import RequestTools
    from broker.topics.queues import ClientQueues
    from broker.topics.topics import Topics

NO_TIME = -1
"""Answer of 32 for a queue without messages."""


class OffsetRequests:
    """What clients ask about the offsets of groups and queues."""

    def __init__(
        self,
        tools: RequestTools,
        *,
        topics: Topics,
        queues: ClientQueues,
        offsets: GroupOffsets,
        group_commits: OffsetGather,
    ) -> None:
        self._tools = tools
        self._topics = topics
        self._queues = queues
        self._offsets = offsets
        self._group_commits = group_commits

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.QUERY_CONSUMER_OFFSET: self.query_consumer_offset,
            Code.UPDATE_CONSUMER_OFFSET: self.update_consumer_offset,
            Code.SEARCH_OFFSET_BY_TIMESTAMP: self.search_offset,
            Code.GET_MAX_OFFSET: self.max_offset,
            Code.GET_MIN_OFFSET: self.min_offset,
            Code.GET_EARLIEST_MSG_STORETIME: self.earliest_store_time,
        }

    def query_consumer_offset(self, peer: Peer, command: Command) -> Command | None:
        """14: the group's offset. Without one: 0 for a young queue unless the client objects, else QUERY_NOT_FOUND."""
        fields = command.fields
        group, topic, index = text(fields, "consumerGroup"), text(fields, "topic"), number(fields, "queueId")
        self._tools.authorizer.authorize(peer, command, CONSUME, of_group(group))
        self._tools.authorizer.authorize(peer, command, CONSUME, of_topic(topic))
        self._group_commits.flush()
        found = self._offsets.get(group, topic, index)
        if found is not None:
            offset, position = found
            self._tools.answers.reply_at(position, peer, command.reply(fields={"offset": str(offset)}))
            return None
        queue_id = self._queues.find(topic, index)
        low = self._tools.store.reading.bounds(queue_id)[0] if queue_id is not None else 0
        if low == 0 and flag(fields, "setZeroIfNotFound", default=True):
            return command.reply(fields={"offset": "0"})
        return command.reply(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")

    def update_consumer_offset(self, peer: Peer, command: Command) -> None:
        """15: commit the group's offset; one-way in practice, answered when confirmed otherwise."""
        fields = command.fields
        group, topic, index = text(fields, "consumerGroup"), text(fields, "topic"), number(fields, "queueId")
        offset = number(fields, "commitOffset")
        self._tools.authorizer.authorize(peer, command, CONSUME, of_group(group))
        self._tools.authorizer.authorize(peer, command, CONSUME, of_topic(topic))
        if not is_light(topic):
            self._topics.require(topic)
        if offset < 0:
            raise Refused(ResponseCode.INVALID_PARAMETER, f"commitOffset {offset} is negative")

        def done(error: Exception | None) -> None:
            if command.is_oneway:
                return
            if error is None:
                peer.send(command.reply())
            else:
                refused = refusal_of(self._tools.metrics, error)
                peer.send(command.reply(refused.code, refused.remark, refused.fields))

        self._group_commits.add(group, topic, index, offset, done)

    def search_offset(self, peer: Peer, command: Command) -> Command:
        """29: first offset stored at or after a time; `boundaryType` upper: the last one stored at or before it.

        With nothing that late the end, with nothing that early the beginning: always an offset one can read from.
        """
        queue_id = self._queue(peer, command)
        timestamp = number(command.fields, "timestamp")
        if queue_id is None:
            return _offset(command, 0)
        upper = command.fields.get("boundaryType", "lower").lower() == "upper"
        found = self._tools.store.reading.search_time(queue_id, timestamp, upper=upper)
        return _offset(command, max(self._tools.store.reading.bounds(queue_id)[0], found - 1) if upper else found)

    def max_offset(self, peer: Peer, command: Command) -> Command:
        """30: confirmed end of a queue; 0 for a topic that does not exist, as RocketMQ answers."""
        bounds = self._bounds(peer, command)
        return _offset(command, bounds[1])

    def min_offset(self, peer: Peer, command: Command) -> Command:
        """31: offset of the oldest message that is kept."""
        bounds = self._bounds(peer, command)
        return _offset(command, bounds[0])

    def earliest_store_time(self, peer: Peer, command: Command) -> Command:
        """32: when the oldest message of a queue was stored; -1 without one."""
        queue_id = self._queue(peer, command)
        records = []
        if queue_id is not None:
            records = self._tools.store.reading.read(
                queue_id, self._tools.store.reading.bounds(queue_id)[0], 1, 1
            ).records
        timestamp = RecordView(records[0]).store_ms if records else NO_TIME
        return command.reply(fields={"timestamp": str(timestamp)})

    def _queue(self, peer: Peer, command: Command) -> int | None:
        topic = text(command.fields, "topic")
        self._tools.authorizer.authorize(peer, command, CONSUME, of_topic(topic))
        if not is_light(topic) and self._topics.get(topic) is None:
            return None
        return self._queues.find(topic, number(command.fields, "queueId"))

    def _bounds(self, peer: Peer, command: Command) -> tuple[int, int]:
        queue_id = self._queue(peer, command)
        return self._tools.store.reading.bounds(queue_id) if queue_id is not None else (0, 0)


def _offset(command: Command, offset: int) -> Command:
    return command.reply(fields={"offset": str(offset)})
