"""SendMessage, RecallMessage and EndTransaction: what producers ask for.

The messages of one request are sent in their order on one connection, in batches where they can be, and each has its
own result. Messages of a message group go to one queue of all the topic's, chosen by a checksum of the group's name,
and wait for the broker group that has it; others go to the broker groups in turn, and past those that cannot be
reached.
Invariant: OK is answered when the broker has confirmed the message by its rule of durability. Loop rule: on the loop's
thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from grpc_proxy.brokers import BrokerGroups
from grpc_proxy.config import GrpcConfig
from grpc_proxy.link import BrokerLink
from grpc_proxy.mapping.metadata import GrpcCaller
from grpc_proxy.mapping.outgoing import OutgoingMessage, Type, batch_request, batches, outgoing
from grpc_proxy.mapping.routes import ALL_QUEUES, TopicPlaces
from grpc_proxy.mapping.statuses import CallRejected, Code, overall, reason_name, status, status_of
from grpc_proxy.mapping.transactions import decision_fields, parse_id, transaction_id
from grpc_proxy.mapping.values import topic_of
from grpc_proxy.metrics import GrpcMetrics
from grpc_proxy.routes import Routes
from grpc_proxy.stubs import service
from remoting.protocol.bodies.recall_handle import decode_handle
from remoting.protocol.errors import LightMQError, Refused, RemoteViolation
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from runtime.clock import Clock

_PLACED = (int(Type.FIFO), int(Type.LITE))
"""Types whose messages have a place of their own."""
MESSAGES_MAX = 1_024
"""Most messages of one request."""


class Sending:
    """Sends, recalls and ends of transactions."""

    def __init__(
        self, brokers: BrokerGroups, routes: Routes, config: GrpcConfig, clock: Clock, metrics: GrpcMetrics
    ) -> None:
        self._brokers = brokers
        self._routes = routes
        self._config = config
        self._clock = clock
        self._metrics = metrics
        self._turn = 0

    async def send_message(self, caller: GrpcCaller, request: Any) -> Any:
        """Store messages; the status of each is in its entry."""
        messages = self._parsed(request.messages)
        places = await self._routes.places(messages[0].topic)
        self._turn += 1
        groups = [(batch, *self._chosen(places, batch[0])) for batch in batches(messages)]
        if len(groups) == 1:
            entries = await self._send_batch(caller, *groups[0])
        else:
            found = await asyncio.gather(*(self._send_batch(caller, *group) for group in groups))
            entries = [entry for part in found for entry in part]
        return service.SendMessageResponse(status=overall([entry.status for entry in entries]), entries=entries)

    async def recall_message(self, caller: GrpcCaller, request: Any) -> Any:
        """Drop a delayed message by the handle of its send."""
        topic = topic_of(request.topic)
        if not request.recall_handle:
            raise CallRejected(Code.BAD_REQUEST, "the recall handle is missing")
        try:
            broker = decode_handle(request.recall_handle).broker
        except RemoteViolation as error:
            raise CallRejected(Code.BAD_REQUEST, error.reason) from error
        link = self._brokers.require(broker, Code.BAD_REQUEST, "the recall handle")
        fields = {"topic": topic, "producerGroup": topic, "recallHandle": request.recall_handle}
        answer = await link.request(caller, RequestCode.RECALL_MESSAGE, fields)
        return service.RecallMessageResponse(status=status(), message_id=answer.fields.get("msgId", ""))

    async def end_transaction(self, caller: GrpcCaller, request: Any) -> Any:
        """Commit or roll back; answered when that is confirmed."""
        fields = decision_fields(request, topic_of(request.topic))
        broker = parse_id(request.transaction_id)[2]
        link = self._brokers.require(broker, Code.INVALID_TRANSACTION_ID, "the transaction id")
        await link.request(caller, RequestCode.END_TRANSACTION, fields)
        return service.EndTransactionResponse(status=status())

    def _parsed(self, messages: Any) -> list[OutgoingMessage]:
        """The messages for the broker. CallRejected as a whole: for what is in one of them, or for a mixture."""
        if not 0 < len(messages) <= MESSAGES_MAX:
            raise CallRejected(Code.BAD_REQUEST, f"{len(messages)} messages: a request has 1 to {MESSAGES_MAX}")
        now_ms = self._clock.now_ms()
        limits = self._config.limits
        parsed = [outgoing(message, limits, now_ms) for message in messages]
        if len(parsed) > 1 and len({(message.topic, message.type) for message in parsed}) > 1:
            raise CallRejected(Code.BAD_REQUEST, "the messages of a request have one topic and one type")
        if parsed[0].type == Type.TRANSACTION and len(parsed) > 1:
            raise CallRejected(Code.BAD_REQUEST, "a transaction has one message")
        return parsed

    def _chosen(self, places: TopicPlaces, message: OutgoingMessage) -> tuple[BrokerLink, int]:
        """Where a message goes: in order to the place of its message group or lite topic; otherwise, with the others of
        its request, to a broker group that can be reached, each in proportion to its queues; it chooses the queue."""
        kind = message.type
        alone = self._brokers.named("")
        if alone is not None and kind not in _PLACED and places.takes(alone.name, kind):
            return alone, ALL_QUEUES
        links = {link.name: link for link in self._brokers.links}
        if kind == Type.FIFO:
            broker, index = places.queue_of(message.message_group, kind)
            return links[broker], index
        if kind == Type.LITE:
            return links[places.home_of(message.lite_topic)], ALL_QUEUES
        counts = dict(places.writable(kind))
        reachable = self._brokers.reachable([links[broker] for broker in counts])
        taking = [link for link in reachable if link.takes_messages] or reachable
        turns = [link for index in range(max(counts.values())) for link in taking if index < counts[link.name]]
        return turns[self._turn % len(turns)], ALL_QUEUES

    async def _send_batch(
        self, caller: GrpcCaller, batch: Sequence[OutgoingMessage], link: BrokerLink, queue_index: int
    ) -> list[Any]:
        """The results of messages that go together. A batch that the broker rejects is sent again one by one: it was
        not stored, and the fault may be in one of them."""
        if len(batch) == 1:
            return [await self._send(caller, batch[0], link, queue_index)]
        try:
            fields, body = batch_request(batch, queue_index)
            answer = await link.request(caller, RequestCode.SEND_BATCH_MESSAGE, fields, body)
        except LightMQError as error:
            if isinstance(error, Refused) and error.code == ResponseCode.MESSAGE_ILLEGAL:
                return [await self._send(caller, message, link, queue_index) for message in batch]
            found = status_of(error)
            self._metrics.refuse(reason_name(found.code), len(batch))
            return [service.SendResultEntry(status=found) for _ in batch]
        done, first = status(), int(answer.fields["queueOffset"])
        return [
            service.SendResultEntry(status=done, message_id=message.message_id, offset=first + index)
            for index, message in enumerate(batch)
        ]

    async def _send(self, caller: GrpcCaller, message: OutgoingMessage, link: BrokerLink, queue_index: int) -> Any:
        """The result of one message."""
        try:
            fields = message.fields(queue_index)
            answer = await link.request(caller, RequestCode.SEND_MESSAGE_V2, fields, message.body)
        except LightMQError as error:
            found = status_of(error)
            if isinstance(error, Refused) and error.code == ResponseCode.MESSAGE_ILLEGAL and message.type == Type.DELAY:
                found.code = Code.ILLEGAL_DELIVERY_TIME
            self._metrics.refuse(reason_name(found.code))
            return service.SendResultEntry(status=found)
        given = answer.fields
        entry = service.SendResultEntry(
            status=status(), message_id=message.message_id, offset=int(given["queueOffset"]),
            recall_handle=given.get("recallHandle", ""),
        )  # fmt: skip
        if message.type == Type.TRANSACTION:
            entry.transaction_id = transaction_id(entry.offset, given["msgId"], link.name)
        return entry
