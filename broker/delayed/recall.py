"""Recall of waiting messages: their handles, RECALL_MESSAGE (370), and RESCHEDULE_MESSAGE (9057), which changes the
time of one: it is recalled and stored again in one group, so it is delivered once, at the old time or at the new one.

A producer gets a handle with the answer to its send and recalls the message by it until the message is due. The handle
says where the message waits. Retention may have copied it meanwhile; then the queue of its span is searched for the
unique key, in the background and by few requests at a time. So it is for a message with the property TIMER_DEL_UNIQKEY,
which recalls by unique key and time. What is refused has RocketMQ's codes: 17 for an unknown topic, 604 for a handle
that is none, of another topic or broker, or of a message that does not wait (any more), 16 for who may not publish
where the message will be visible. Invariant: a recall is answered when it is confirmed; a message is delivered or
recalled, never both. Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.delayed.buckets import RECALLED
from broker.requests import RequestTools, number, refusal_of, text
from broker.store.errors import StoreError
from broker.store.placed import property_value
from remoting.access import visibility
from remoting.access.rights import LOCATE, PUBLISH
from remoting.protocol.bodies.recall_handle import NO_KEY, RecallHandle, decode_handle, encode_handle
from remoting.protocol.errors import Refused, RemoteViolation
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.image import show
from remoting.protocol.records.names import RETRY_PREFIX
from remoting.protocol.records.properties import UNIQUE_KEY
from remoting.protocol.records.record import HEADER, HEADER_SIZE, RecordHeader, RecordView
from remoting.server.router import later
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.delayed.buckets import DelayBucket
    from broker.delayed.delayed import Delayed
    from broker.topics.topics import Topics
    from runtime.metrics import Registry

Act = Callable[[Peer, Command, "DelayBucket", int, RecordView], None]
"""What is done with a message that was found: (peer, request, its bucket, its offset there, its record)."""
SEARCHES_MAX = 4
"""Searches for copied messages at a time; one more request that needs one is refused with SYSTEM_BUSY."""
SEARCH_STEP = 500
"""Records compared before the loop does other work."""


class RecallHandles:
    """Makes the handles of waiting messages."""

    def __init__(self, messages: Delayed, broker_name: str) -> None:
        self._buckets = messages.buckets
        self._broker_name = broker_name

    def of(self, queue_id: int, image: bytes, offset: int, key: str | None = None) -> str | None:
        """The handle of an image that waits in this queue; None when it does not wait, or waits for a retry.

        `key`: its unique key, where that is known already.
        """
        bucket = self._buckets.of_queue(queue_id)
        if bucket is None:
            return None
        head = RecordHeader._make(HEADER.unpack_from(image))
        texts_at = HEADER_SIZE + 4 * head.n_props
        topic = image[texts_at : texts_at + head.topic_len].decode("utf-8", "replace")
        if topic.startswith(RETRY_PREFIX):
            return None
        if key is None:
            key = unique_key(RecordView(image))
        due_ms = bucket.start_ms + (head.producer_seq >> 32)
        return encode_handle(RecallHandle(topic, self._broker_name, due_ms, key or NO_KEY, offset))


class MessageFinder:
    """Finds the waiting messages that handles name."""

    def __init__(self, tools: RequestTools, messages: Delayed, registry: Registry) -> None:
        self._tools = tools
        self._buckets = messages.buckets
        self._searches = 0
        self.refused = registry.counter(
            "rocketmq_delayed_recalls_refused_total", "Requests about one waiting message that were refused"
        )

    def find(self, peer: Peer, command: Command, handle: RecallHandle, act: Act) -> None:
        """`act` on the message of a handle, now or after a search, if the peer may publish where it will be visible.

        Whether it still waits is for `act` to find out.

        Raises:
            Refused: raised or answered: there is none. Who may not publish to the handle's topic is told the same as of
                a message of others: NO_PERMISSION.
        """
        bucket = self._buckets.find(handle.due_ms)
        if bucket is None:
            raise self._absent(peer, command, handle)
        offset = handle.offset
        if offset is None or offset < bucket.floor:
            later(peer, command, self._search(peer, command, handle, act))
            return
        record = next(iter(self._buckets.read(bucket, offset, 1).records), None)
        if record is None:
            raise self._absent(peer, command, handle)
        if not _is_meant(record, bucket, handle):
            raise self._absent(peer, command, handle, is_read=True)
        self._authorize(peer, command, handle, record)
        act(peer, command, bucket, offset, record)

    def _authorize(self, peer: Peer, command: Command, handle: RecallHandle, record: RecordView) -> None:
        """Refuse a message that will be visible where the peer may not publish, with the answer for one not there."""
        authorizer = self._tools.authorizer
        if authorizer.trusts(peer, command):
            return
        if not all(authorizer.allows(peer, command, PUBLISH, resource) for resource in visibility.of_image(record)):
            authorizer.authorize(peer, command, PUBLISH, handle.topic)
            for resource in visibility.of_image(record):
                authorizer.authorize(peer, command, PUBLISH, resource)

    def _absent(self, peer: Peer, command: Command, handle: RecallHandle, *, is_read: bool = False) -> Refused:
        """The refusal where there is no such record: a new master may not be able to read it yet; `is_read`: another
        one is there."""
        self._tools.authorizer.authorize(peer, command, PUBLISH, handle.topic)
        if is_read or self._tools.is_sure:
            return not_waiting()
        return Refused(ResponseCode.SYSTEM_BUSY, "what this broker had when it became the master is not confirmed")

    async def _search(self, peer: Peer, command: Command, handle: RecallHandle, act: Act) -> None:
        """Find a message whose place is not known any more, then `act` on it."""
        if self._searches >= SEARCHES_MAX:
            raise Refused(ResponseCode.SYSTEM_BUSY, f"{self._searches} searches for waiting messages are under way")
        self._searches += 1
        try:
            found = await self._searched(handle)
            if found is None:
                raise self._absent(peer, command, handle)
            self._authorize(peer, command, handle, found[2])
            act(peer, command, *found)
        except StoreError as error:
            raise refusal_of(self._tools.metrics, error) from error
        except Refused:
            self.refused.value += 1
            raise
        finally:
            self._searches -= 1

    async def _searched(self, handle: RecallHandle) -> tuple[DelayBucket, int, RecordView] | None:
        """Compare what waits in the bucket with the handle, a step at a time; None when it is not there."""
        offset = 0
        while (bucket := self._buckets.find(handle.due_ms)) is not None:
            offset = max(offset, bucket.floor)
            found = self._buckets.read(bucket, offset, SEARCH_STEP)
            for at, record in enumerate(found.records, offset):
                if _is_meant(record, bucket, handle):
                    return bucket, at, record
            if found.after == offset:
                break
            offset = found.after
            await asyncio.sleep(0)
        return None


class RecallRequests:
    """Recalls waiting messages for their producers."""

    def __init__(
        self, tools: RequestTools, messages: Delayed, topics: Topics, finder: MessageFinder, registry: Registry
    ) -> None:
        self._tools = tools
        self._messages = messages
        self._topics = topics
        self._finder = finder
        self._handles = RecallHandles(messages, tools.config.broker_name)
        registry.counter(
            "rocketmq_delayed_recalled_messages_total",
            "Waiting messages that were recalled since the start",
            function=lambda: messages.counts.recalled,
        )
        registry.counter(
            "rocketmq_delayed_rescheduled_messages_total",
            "Waiting messages whose time was changed since the start",
            function=lambda: messages.counts.rescheduled,
        )

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {RequestCode.RECALL_MESSAGE: self.recall, RequestCode.RESCHEDULE_MESSAGE: self.reschedule}

    def recall(self, peer: Peer, command: Command) -> None:
        """370: drop the message of a handle; answered with its unique key when that is confirmed."""
        self._with_message(peer, command, self._recall)

    def reschedule(self, peer: Peer, command: Command) -> None:
        """9057: change the time of the message of a handle to `deliverMs`, or to `delayMs` from now.

        Answered when that is confirmed, with the new handle unless the message was delivered.
        """
        self._with_message(peer, command, self._reschedule)

    def recall_by_key(self, peer: Peer, command: Command, topic: str, due_ms: int, key: str) -> None:
        """Recall as a message with TIMER_DEL_UNIQKEY asks, for the time the message waits for and its unique key.

        Answered as a send is, with the key as the message's id. Raises Refused as `recall`.
        """
        fields = {"msgId": key, "transactionId": key, "queueId": "0", "queueOffset": "0"}

        def act(peer: Peer, command: Command, bucket: DelayBucket, offset: int, record: RecordView) -> None:
            end, reply = self._dropped(bucket, offset, record), command.reply(fields=fields)
            if not command.is_oneway:
                self._tools.answers.reply_at(end, peer, reply)

        handle = RecallHandle(topic, self._tools.config.broker_name, due_ms, key)
        self._tools.authorizer.authorize(peer, command, LOCATE, topic)
        try:
            if due_ms <= self._tools.clock.now_ms():
                raise Refused(ResponseCode.ILLEGAL_OPERATION, "recall failed, the time of the message has come")
            self._finder.find(peer, command, handle, act)
        except Refused:
            self._finder.refused.value += 1
            raise

    def _with_message(self, peer: Peer, command: Command, act: Act) -> None:
        """Find the message that the request names, then `act` on it; refusals are counted."""
        try:
            self._finder.find(peer, command, self._handle(peer, command), act)
        except Refused:
            self._finder.refused.value += 1
            raise

    def _handle(self, peer: Peer, command: Command) -> RecallHandle:
        """What is to be recalled. Raises Refused unless some rule of the peer touches the topic and the handle fits."""
        topic, given = text(command.fields, "topic"), text(command.fields, "recallHandle")
        self._tools.authorizer.authorize(peer, command, LOCATE, topic)
        self._topics.require(topic)
        try:
            handle = decode_handle(given)
        except RemoteViolation as error:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, error.reason) from error
        if handle.topic != topic:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker != self._tools.config.broker_name:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, "recall failed, the message is at another broker")
        if handle.due_ms <= self._tools.clock.now_ms():
            raise Refused(ResponseCode.ILLEGAL_OPERATION, "recall failed, the time of the message has come")
        return handle

    def _recall(self, peer: Peer, command: Command, bucket: DelayBucket, offset: int, record: RecordView) -> None:
        end = self._dropped(bucket, offset, record)
        self._tools.answers.reply_at(end, peer, command.reply(fields={"msgId": unique_key(record)}))

    def _dropped(self, bucket: DelayBucket, offset: int, record: RecordView) -> int:
        """Drop a message that waits, or was recalled before; the position to wait for."""
        if bucket.recalled.get(offset) == RECALLED:
            return self._tools.store.end_position
        if bucket.is_waiting(key := (bucket.due_ms(record), offset)):
            return self._messages.drop(bucket, key, RECALLED)
        raise not_waiting()

    def _reschedule(self, peer: Peer, command: Command, bucket: DelayBucket, offset: int, record: RecordView) -> None:
        key = bucket.due_ms(record), offset
        if not bucket.is_waiting(key):
            raise not_waiting()
        now_ms = self._tools.clock.now_ms()
        delay_ms, at_ms = number(command.fields, "delayMs", -1), number(command.fields, "deliverMs", -1)
        if delay_ms < 0 and at_ms < 0:
            raise Refused(ResponseCode.INVALID_PARAMETER, "one of deliverMs and delayMs is needed, 0 or more")
        due_ms = now_ms + delay_ms if delay_ms >= 0 else at_ms
        moved = self._messages.reschedule(bucket, key, show(record), due_ms, now_ms)
        fields = {"msgId": unique_key(record)}
        if moved.waits_at is not None:
            queue_id, at = moved.waits_at
            fields["recallHandle"] = self._handles.of(queue_id, moved.image, at) or ""
        self._tools.answers.reply_at(moved.end_position, peer, command.reply(fields=fields))


def _is_meant(record: RecordView, bucket: DelayBucket, handle: RecallHandle) -> bool:
    """Whether a waiting record is the message of a handle."""
    return (
        bucket.due_ms(record) == handle.due_ms
        and record.topic.decode("utf-8", "replace") == handle.topic
        and unique_key(record) == handle.unique_key
    )


def unique_key(image: RecordView) -> str:
    """The unique key of an image or record as handles have it."""
    return property_value(image, UNIQUE_KEY).decode("utf-8", "replace") or NO_KEY


def not_waiting() -> Refused:
    """The refusal for a message that was delivered, or was never there."""
    return Refused(ResponseCode.ILLEGAL_OPERATION, "recall failed, no such message waits")
