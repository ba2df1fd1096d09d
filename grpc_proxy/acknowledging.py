"""Acknowledgements: those that a client makes in one turn of the loop are one request to each broker group.

    AckMessage calls of a turn -> AckBatch of the client at a broker group -> BATCH_ACK_MESSAGE
    its answer NO_MESSAGE      -> the body names what was not in flight, the rest is done
    any other refusal          -> nothing is done; each message is asked for alone, so that its own fault is found

Clients acknowledge message by message, and send the calls of one receive together. Messages of lite topics, which no
batch has, are acknowledged alone.
Invariant: a message is reported as done only when the broker has answered that it is. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from grpc_proxy.brokers import BrokerGroups
from grpc_proxy.link import BrokerLink
from grpc_proxy.mapping.incoming import RETRY_MARK, TOPIC_MARK, ReceiptHandle, parse_handle
from grpc_proxy.mapping.metadata import GrpcCaller
from grpc_proxy.mapping.statuses import CallRejected, Code, overall, reason_name, status, status_of
from grpc_proxy.mapping.values import group_of, topic_of
from grpc_proxy.metrics import GrpcMetrics
from grpc_proxy.renewal import Renewal
from grpc_proxy.stubs import service
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command

ACKS_MAX = 1_024
"""Most messages of one AckMessage."""
BATCH_MAX = 4_096
"""Most messages of one request to the broker, and bits of one of its bit sets."""
_ABOUT_HANDLE = (ResponseCode.INVALID_PARAMETER, ResponseCode.MESSAGE_ILLEGAL)
_NOT_IN_FLIGHT = "the message is not in flight under this handle for the group"
_encode = msgspec.json.encode
Queue = tuple[str, str, bool, int, int, int]
"""Group, topic, whether of its retry topic, queue, pop time, invisible time: messages that one bit set names."""
Done = asyncio.Future[frozenset[tuple[Queue, int]]]
"""Resolved with the messages of the batch that were not in flight, by queue and offset."""


def queue_of(handle: ReceiptHandle, group: str, topic: str) -> Queue:
    """Return what a message shares with those that were given together with it."""
    return group, topic, handle.is_retry, handle.queue_index, handle.pop_ms, handle.invisible_ms


def bit_sets(queues: Iterable[tuple[Queue, set[int]]]) -> tuple[list[dict[str, Any]], list[Queue]]:
    """Return the acknowledgements of a batch's body, and of which queue each is; a bit set per BATCH_MAX offsets."""
    acks: list[dict[str, Any]] = []
    owners: list[Queue] = []

    def add(queue: Queue, first: int, bits: int) -> None:
        group, topic, is_retry, index, pop_ms, invisible_ms = queue
        raw = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
        acks.append({
            "c": group, "t": topic, "r": RETRY_MARK if is_retry else TOPIC_MARK, "so": first, "q": index, "rq": 0,
            "pt": pop_ms, "it": invisible_ms, "b": base64.b64encode(raw).decode(),
        })  # fmt: skip
        owners.append(queue)

    for queue, offsets in queues:
        first, bits = min(offsets), 0
        for offset in sorted(offsets):
            if offset - first >= BATCH_MAX:
                add(queue, first, bits)
                first, bits = offset, 0
            bits |= 1 << (offset - first)
        add(queue, first, bits)
    return acks, owners


class AckBatch:
    """Acknowledgements of one client that go to one broker group together."""

    def __init__(self, link: BrokerLink, caller: GrpcCaller) -> None:
        self.link = link
        self.caller = caller
        self.size = 0
        self._queues: dict[Queue, set[int]] = {}
        self._waiting: list[Done] = []

    def add(self, queues: Sequence[tuple[Queue, int]]) -> Done:
        """Have these messages acknowledged too."""
        self.size += len(queues)
        for queue, offset in queues:
            self._queues.setdefault(queue, set()).add(offset)
        waiter: Done = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        return waiter

    async def send(self) -> None:
        """Ask the broker, and tell everyone who waits."""
        acks, owners = bit_sets(self._queues.items())
        body = _encode({"brokerName": self.link.name, "acks": acks})
        try:
            refused = _refused(await self.link.answer(self.caller, RequestCode.BATCH_ACK_MESSAGE, {}, body), owners)
        except LightMQError as error:
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_exception(error)
            return
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(refused)


def _refused(answer: Command, owners: Sequence[Queue]) -> frozenset[tuple[Queue, int]]:
    """What the answer to a batch says was not in flight. Refused for any other refusal."""
    if answer.code == ResponseCode.SUCCESS:
        return frozenset()
    if answer.code != ResponseCode.NO_MESSAGE or not answer.body:
        raise Refused(answer.code, answer.remark or "")
    named = msgspec.json.decode(answer.body, type=list[tuple[int, int]])
    return frozenset((owners[number], offset) for number, offset in named)


class Acknowledging:
    """Ends the ownership of messages."""

    def __init__(self, brokers: BrokerGroups, renewal: Renewal, metrics: GrpcMetrics) -> None:
        self._brokers = brokers
        self._renewal = renewal
        self._metrics = metrics
        self._open: dict[tuple[str, int], AckBatch] = {}
        """By broker group and identity of the caller; each batch keeps its caller."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def ack_message(self, caller: GrpcCaller, request: Any) -> Any:
        """Messages are done; each has its own status."""
        group, topic = group_of(request.group), topic_of(request.topic)
        given = request.entries
        if not 0 < len(given) <= ACKS_MAX:
            raise CallRejected(Code.BAD_REQUEST, f"{len(given)} entries: a request has 1 to {ACKS_MAX}")
        found: list[Any] = [None] * len(given)
        batched: dict[BrokerLink, list[tuple[int, ReceiptHandle]]] = {}
        for at, entry in enumerate(given):
            try:
                handle = await self.present(entry)
                link = self.owner(handle)
                if handle.lite_topic:
                    await self.alone(caller, group, topic, handle)
                else:
                    batched.setdefault(link, []).append((at, handle))
            except LightMQError as error:
                found[at] = self._status(error)
        waiting = [self._take(caller, group, topic, link, handles) for link, handles in batched.items()]
        for waiter, handles in zip(waiting, batched.values(), strict=True):
            await self._settle(caller, group, topic, waiter, handles, found)
        done = status()
        found = [one or done for one in found]
        entries = [
            {"message_id": entry.message_id, "receipt_handle": entry.receipt_handle, "status": one}
            for entry, one in zip(given, found, strict=True)
        ]
        return service.AckMessageResponse(status=overall(found), entries=entries)

    async def present(self, asked: Any) -> ReceiptHandle:
        """Return the present handle for the one in a client's request or entry."""
        given = asked.receipt_handle
        return await self._renewal.take(given, parse_handle(given, asked.lite_topic))

    def owner(self, handle: ReceiptHandle) -> BrokerLink:
        """Return the broker group that gave a message."""
        return self._brokers.require(handle.broker, Code.INVALID_RECEIPT_HANDLE, "the receipt handle")

    async def about(self, caller: GrpcCaller, handle: ReceiptHandle, code: int, fields: dict[str, str]) -> Command:
        """Make a request about one message; what the broker finds wrong with its place is the handle's fault."""
        try:
            return await self.owner(handle).request(caller, code, fields)
        except Refused as refused:
            if refused.code in _ABOUT_HANDLE:
                raise CallRejected(Code.INVALID_RECEIPT_HANDLE, refused.remark) from refused
            raise

    async def alone(self, caller: GrpcCaller, group: str, topic: str, handle: ReceiptHandle) -> None:
        """Acknowledge one message by a request of its own."""
        await self.about(caller, handle, RequestCode.ACK_MESSAGE, handle.fields(group, topic))

    def _take(
        self, caller: GrpcCaller, group: str, topic: str, link: BrokerLink, handles: Sequence[tuple[int, ReceiptHandle]]
    ) -> Done:
        """Put messages into the batch of this turn."""
        name = link.name, id(caller)
        batch = self._open.get(name)
        if batch is not None and batch.size + len(handles) > BATCH_MAX:
            self._send(name, batch)
            batch = None
        if batch is None:
            batch = self._open[name] = AckBatch(link, caller)
            asyncio.get_running_loop().call_soon(self._send, name, batch)
        return batch.add([(queue_of(handle, group, topic), handle.offset) for _at, handle in handles])

    def _send(self, name: tuple[str, int], batch: AckBatch) -> None:
        if self._open.get(name) is not batch:
            return
        del self._open[name]
        task = asyncio.get_running_loop().create_task(batch.send())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settle(
        self,
        caller: GrpcCaller,
        group: str,
        topic: str,
        waiter: Done,
        handles: Sequence[tuple[int, ReceiptHandle]],
        found: list[Any],
    ) -> None:
        """Write the statuses of the messages in a batch that are not done."""
        try:
            refused = await waiter
        except Refused:
            for at, handle in handles:
                try:
                    await self.alone(caller, group, topic, handle)
                except LightMQError as error:
                    found[at] = self._status(error)
            return
        except LightMQError as error:
            for at, _handle in handles:
                found[at] = self._status(error)
            return
        for at, handle in handles if refused else ():
            if (queue_of(handle, group, topic), handle.offset) in refused:
                found[at] = self._status(CallRejected(Code.INVALID_RECEIPT_HANDLE, _NOT_IN_FLIGHT))

    def _status(self, error: LightMQError) -> Any:
        found = status_of(error)
        self._metrics.refuse(reason_name(found.code))
        return found
