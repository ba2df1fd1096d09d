"""Questions of RocketMQ's clients about offsets: 14 a group's, 29 by time, 30 the end, 31 the first, 32 earliest time.

A queue that does not exist is answered like an empty one, as RocketMQ does. A new master that may not have confirmed
yet what its predecessor has shown answers 29 and 30 when it has: an end that falls would be taken for lost messages.

Invariant: every offset in an answer is confirmed: ends come from the confirmed part of a queue, a committed offset is
answered once its record is confirmed. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from broker.requests import flag, number, text
from broker.topics.topics import is_light
from remoting.access.rights import CONSUME, of_group, of_topic
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.record import RecordView
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.requests import RequestTools

NO_TIME = -1
"""Answer of 32 for a queue without messages."""


class FoundQueues(Protocol):
    """Queues as RocketMQ's clients name them."""

    def find(self, topic: str, index: int, /) -> int | None:
        """Store queue id; None for one that does not exist. Refused, for some who know that it does not."""
        ...


class CommittedOffsets(Protocol):
    """The offsets of groups."""

    def committed(self, group: str, topic: str, index: int, /) -> tuple[int, int] | None:
        """(offset, log position that a reply showing it waits for), or None when the group never committed there.

        Raises:
            Refused: this broker cannot tell.
        """
        ...


class OffsetQueries:
    """Answers questions about the offsets of groups and queues."""

    def __init__(self, tools: RequestTools, *, queues: FoundQueues, offsets: CommittedOffsets) -> None:
        self._tools = tools
        self._queues = queues
        self._offsets = offsets

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.QUERY_CONSUMER_OFFSET: self.query_consumer_offset,
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
        found = self._offsets.committed(group, topic, index)
        if found is not None:
            offset, position = found
            self._tools.answers.reply_at(position, peer, command.reply(fields={"offset": str(offset)}))
            return None
        queue_id = self._found(topic, index)
        low = self._tools.store.reading.bounds(queue_id)[0] if queue_id is not None else 0
        if queue_id is None and not is_light(topic):
            return command.reply(ResponseCode.QUERY_NOT_FOUND, f"Not found, there is no queue {topic}/{index}")
        if low == 0 and flag(fields, "setZeroIfNotFound", default=True):
            return command.reply(fields={"offset": "0"})
        return command.reply(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")

    def search_offset(self, peer: Peer, command: Command) -> None:
        """29: first offset stored at or after a time; `boundaryType` upper: the last one stored at or before it.

        The end when nothing is that late, the beginning when nothing is that early: always an offset to read from.
        """
        place, timestamp = self._place(peer, command), number(command.fields, "timestamp")
        upper = command.fields.get("boundaryType", "lower").lower() == "upper"

        def found() -> int:
            queue_id, reading = self._found(*place), self._tools.store.reading
            if queue_id is None:
                return 0
            offset = reading.search_time(queue_id, timestamp, upper=upper)
            return max(reading.bounds(queue_id)[0], offset - 1) if upper else offset

        self._reply_when_sure(peer, command, found)

    def max_offset(self, peer: Peer, command: Command) -> None:
        """30: confirmed end of a queue; 0 for one that does not exist, as RocketMQ answers."""
        place = self._place(peer, command)
        self._reply_when_sure(peer, command, lambda: self._bounds(*place)[1])

    def min_offset(self, peer: Peer, command: Command) -> Command:
        """31: offset of the oldest message that is kept."""
        return _offset(command, self._bounds(*self._place(peer, command))[0])

    def earliest_store_time(self, peer: Peer, command: Command) -> Command:
        """32: when the oldest message of a queue was stored; -1 without one."""
        queue_id, reading = self._found(*self._place(peer, command)), self._tools.store.reading
        records = reading.read(queue_id, reading.bounds(queue_id)[0], 1, 1).records if queue_id is not None else []
        timestamp = RecordView(records[0]).store_ms if records else NO_TIME
        return command.reply(fields={"timestamp": str(timestamp)})

    def _reply_when_sure(self, peer: Peer, command: Command, offset: Callable[[], int]) -> None:
        """Answer with the offset once this broker knows that no other one has shown a later end."""
        reply, position = command.reply(), self._tools.identity.started_position

        def then() -> None:
            reply.fields = {"offset": str(offset())}
            peer.send(reply)

        self._tools.answers.when_confirmed(position, peer, reply, then)

    def _place(self, peer: Peer, command: Command) -> tuple[str, int]:
        """Topic and number of the queue that a peer asks about, which it may read."""
        topic, index = text(command.fields, "topic"), number(command.fields, "queueId")
        self._tools.authorizer.authorize(peer, command, CONSUME, of_topic(topic))
        return topic, index

    def _found(self, topic: str, index: int) -> int | None:
        """The queue's id; None when there is none: RocketMQ answers such requests as for an empty queue."""
        try:
            return self._queues.find(topic, index)
        except Refused:
            return None

    def _bounds(self, topic: str, index: int) -> tuple[int, int]:
        queue_id = self._found(topic, index)
        return self._tools.store.reading.bounds(queue_id) if queue_id is not None else (0, 0)


def _offset(command: Command, offset: int) -> Command:
    return command.reply(fields={"offset": str(offset)})
