"""Requests of POP consumers about messages that they have.

    200051 acknowledge, 200151 acknowledge many, 200053 change the time

A request names a message by its receipt handle; one that names another ownership than the present one is refused with
NO_MESSAGE and counted.

Acknowledgements of one turn of the loop are one append (`gathering`).

Invariant: a refusal changes nothing; an acknowledgement is answered when its record is confirmed. Loop thread only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

from broker.pop.check_points import INVISIBLE_MS_MAX
from broker.pop.gathering import AckGather
from broker.pop.handles import original_topic, parse_batch, parse_handle
from broker.pop.in_flight import MessagesInFlight
from broker.pop.popping import Refuse
from broker.pop.queues import PopQueues
from broker.requests import json_body, number, text
from remoting.access.rights import CONSUME, of_group, of_topic
from remoting.protocol.frames.codes import RequestCode as Code
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.requests import RequestTools
    from broker.topics.topics import Topics
    from runtime.metrics import Counter as MetricCounter


LITE_TOPIC = "liteTopic"
"""Field of 200051 and 200053 about messages of lite topics."""


class LiteHandlers(Protocol):
    """What answers 200051 and 200053 about messages of lite topics."""

    def acknowledge(self, peer: Peer, command: Command, /) -> None:
        """The message is done."""

    def change_time(self, peer: Peer, command: Command, /) -> None:
        """The group owns the message for another time."""


class AckRequests:
    """Ends ownership of messages, or changes its time."""

    def __init__(
        self,
        tools: RequestTools,
        *,
        topics: Topics,
        queues: PopQueues,
        in_flight: MessagesInFlight,
        acknowledged: MetricCounter,
        refuse: Refuse,
        lite: LiteHandlers,
    ) -> None:
        self._tools = tools
        self._topics = topics
        self._queues = queues
        self._in_flight = in_flight
        self._gather: AckGather[str] = AckGather(tools, in_flight, write=self._end, acknowledged=acknowledged)
        self._refuse = refuse
        self._lite = lite

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {
            Code.ACK_MESSAGE: self.acknowledge,
            Code.BATCH_ACK_MESSAGE: self.acknowledge_batch,
            Code.CHANGE_MESSAGE_INVISIBLETIME: self.change_time,
        }

    def acknowledge(self, peer: Peer, command: Command) -> None:
        """200051: the message is done; answered when that is confirmed."""
        if command.fields.get(LITE_TOPIC):
            self._lite.acknowledge(peer, command)
            return
        group, topic, queue_id, offset = self._owned(peer, command)
        self._gather.take(group, topic, queue_id, (offset,))
        self._gather.answer(peer, command, command.reply())

    def change_time(self, peer: Peer, command: Command) -> None:
        """200053: the group owns the message from now on for another time, under a new handle."""
        if command.fields.get(LITE_TOPIC):
            self._lite.change_time(peer, command)
            return
        invisible_ms = number(command.fields, "invisibleTime")
        if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
            remark = f"invisibleTime {invisible_ms} is not in 0..{INVISIBLE_MS_MAX}"
            raise self._refuse("time", ResponseCode.INVALID_PARAMETER, remark)
        group, topic, queue_id, offset = self._owned(peer, command)
        now_ms = self._tools.clock.now_ms()
        changes = self._in_flight.move(group, queue_id, offset, (now_ms, invisible_ms))
        closed = self._queues.is_closed(group, queue_id)
        position = self._in_flight.write(changes)
        self._queues.opened(group, topic, queue_id, closed=closed)
        fields = {"popTime": str(now_ms), "invisibleTime": str(invisible_ms), "reviveQid": "0"}
        if not command.is_oneway:
            self._tools.answers.reply_at(position, peer, command.reply(fields=fields))

    def acknowledge_batch(self, peer: Peer, command: Command) -> None:
        """200151: many messages are done. What is not in flight under its handle is refused alone, with NO_MESSAGE.

        The body of that answer names it, as JSON pairs: number of the acknowledgement in the request, offset.
        """
        acks = parse_batch(json_body(command))
        for ack in acks:
            self._authorize(peer, command, ack.group, ack.topic)
        queue_ids = [self._queue(ack.topic, ack.queue_index) for ack in acks]  # a refusal here: nothing is done
        done, wanted = 0, 0
        missing: list[tuple[int, int]] = []
        for at, (ack, queue_id) in enumerate(zip(acks, queue_ids, strict=True)):
            offsets = self._in_flight.named(ack.group, queue_id, ack.offsets, ack.owned)
            wanted += len(ack.offsets)
            if offsets:
                self._gather.take(ack.group, ack.topic, queue_id, offsets)
                done += len(offsets)
            if len(offsets) < len(ack.offsets):
                found = set(offsets)
                missing += [(at, offset) for offset in ack.offsets if offset not in found]
        reply = command.reply()
        if done < wanted or not wanted:
            refused = self._refuse("not_in_flight", ResponseCode.NO_MESSAGE, f"{done} of {wanted} were in flight")
            reply = command.reply(refused.code, refused.remark, body=msgspec.json.encode(missing))
        self._gather.answer(peer, command, reply)

    def _end(self, taken: Mapping[tuple[str, str, int], list[int]]) -> int:
        """The messages are done, as one record; returns the position to be confirmed."""
        closed = [self._queues.is_closed(group, queue_id) for group, _topic, queue_id in taken]
        release = self._in_flight.release
        changes = [
            change for (group, _, queue_id), offsets in taken.items() for change in release(group, queue_id, offsets)
        ]
        position = self._in_flight.write(changes)
        for (group, topic, queue_id), was_closed in zip(taken, closed, strict=True):
            self._queues.opened(group, topic, queue_id, closed=was_closed)
        return position

    def _owned(self, peer: Peer, command: Command) -> tuple[str, str, int, int]:
        """(group, topic, queue id, offset) of the message that the request names by its handle.

        Raises:
            Refused: TOPIC_NOT_EXIST, MESSAGE_ILLEGAL for a queue that is not there, INVALID_PARAMETER for a malformed
                handle, NO_MESSAGE where the group does not own the message under this handle.
        """
        fields = command.fields
        group, topic, index = text(fields, "consumerGroup"), text(fields, "topic"), number(fields, "queueId")
        self._authorize(peer, command, group, topic)
        queue_id = self._queue(topic, index)
        handle, offset = parse_handle(text(fields, "extraInfo")), number(fields, "offset")
        low, high = self._tools.store.reading.bounds(queue_id)
        if not low <= offset < high:
            remark = f"offset {offset} of {topic}/{index} is not in {low}..{high - 1}"
            raise self._refuse("out_of_range", ResponseCode.NO_MESSAGE, remark)
        owned = self._in_flight.find(group, queue_id, offset)
        named = handle.pop_ms, handle.invisible_ms
        if owned != named or (handle.queue_index, handle.broker) != (index, self._tools.config.broker_name):
            remark = f"message {offset} of {topic}/{index} is not in flight under this handle for the group [{group}]"
            raise self._refuse("not_in_flight", ResponseCode.NO_MESSAGE, remark)
        return group, topic, queue_id, offset

    def _authorize(self, peer: Peer, command: Command, group: str, topic: str) -> None:
        self._tools.authorizer.authorize(peer, command, CONSUME, of_group(group))
        self._tools.authorizer.authorize(peer, command, CONSUME, of_topic(original_topic(group, topic)))

    def _queue(self, topic: str, index: int) -> int:
        self._topics.require(topic)
        ids = self._topics.queue_ids(topic)
        if not 0 <= index < len(ids):
            remark = f"queueId[{index}] is illegal, topic:[{topic}] has {len(ids)} queues"
            raise self._refuse("queue", ResponseCode.MESSAGE_ILLEGAL, remark)
        return ids[index]
