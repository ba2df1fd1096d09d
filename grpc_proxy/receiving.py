"""ReceiveMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue, on POP of the broker.

A receive is one POP of all queues of the topic, for a group that consumes in order of one of them, and for a group that
is bound to the topic's lite topics of those that its client subscribes to. It waits at the broker until there is a
message, and its answers go out one by one as the client reads them. Messages that a client leaves unread are given
back. A push consumer's messages are renewed (`renewal`), a simple consumer's have the time that it asked for.
Invariant: a message given by the broker reaches its client, is given back, or comes again after its invisible time;
nothing about it is kept here that matters for that. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from grpc_proxy.acknowledging import Acknowledging
from grpc_proxy.brokers import BrokerGroups
from grpc_proxy.config import GrpcConfig
from grpc_proxy.groups import ConsumedGroups
from grpc_proxy.link import BrokerLink
from grpc_proxy.mapping.incoming import (
    ReceiptHandle,
    deliveries_before,
    handle_of,
    incoming,
    lite_deliveries_before,
    owned,
    plain_body,
)
from grpc_proxy.mapping.metadata import GrpcCaller
from grpc_proxy.mapping.routes import ALL_QUEUES
from grpc_proxy.mapping.settings import expression_of
from grpc_proxy.mapping.statuses import CallRejected, Code, status
from grpc_proxy.mapping.values import group_of, ms_of, timestamp, topic_of, wait_ms_of
from grpc_proxy.metrics import GrpcMetrics
from grpc_proxy.renewal import Renewal, moved
from grpc_proxy.routes import Routes
from grpc_proxy.stubs import service
from remoting import clock
from remoting.protocol.errors import LightMQError, Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.stored_message import iter_stored
from remoting.transport.failures import ConnectionLost, RequestTimeout
from runtime.clock import Clock

Send = Callable[[Any], Awaitable[None]]
"""Sends one answer of a stream; returns when there is room for the next."""
TURN_MS = 500
"""How long a receive of several broker groups waits at one of them before it asks the next."""
FORWARD_MS = 60_000
"""Time in which a message is put into the dead-letter topic."""
DEADLINE_MARGIN_MS = 500
"""A waiting receive is answered this long before its client's deadline."""


@dataclass(frozen=True, slots=True)
class Receive:
    """One request for messages."""

    group: str
    topic: str
    namespace: str
    broker: str
    """Broker group that the client asks for; empty for any."""
    queue_index: int
    count: int
    invisible_ms: int
    wait_ms: int
    is_renewed: bool
    expression: tuple[str, str]
    attempt_id: str


@dataclass(frozen=True, slots=True)
class Given:
    """A message that the broker gave, for the client."""

    message: Any
    handle: ReceiptHandle


class Receiving:
    """Gives messages to consumers, and changes their ownership."""

    def __init__(
        self,
        brokers: BrokerGroups,
        routes: Routes,
        groups: ConsumedGroups,
        renewal: Renewal,
        acknowledging: Acknowledging,
        config: GrpcConfig,
        clock: Clock,
        metrics: GrpcMetrics,
    ) -> None:
        self._brokers = brokers
        self._routes = routes
        self._groups = groups
        self._renewal = renewal
        self._acknowledging = acknowledging
        self._config = config
        self._clock = clock
        self._metrics = metrics
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._turn = 0

    async def receive(self, caller: GrpcCaller, request: Any, left_ms: int | None, send: Send) -> None:
        """Send what there is: a status, messages, the time of delivery. `left_ms`: until the client's deadline."""
        ask = self._parsed(request, left_ms)
        left = asyncio.Event()
        popping = asyncio.ensure_future(self._pop(caller, ask, left))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((popping, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if not popping.done():
                left.set()
                self._later(self._abandoned(caller, ask, popping))
        if not popping.done():
            raise CallRejected(Code.HA_NOT_AVAILABLE, "the proxy stops")
        given = popping.result()
        if not given:
            await send(service.ReceiveMessageResponse(status=status(Code.MESSAGE_NOT_FOUND, "no message")))
            return
        sent = 0
        try:
            await send(service.ReceiveMessageResponse(status=status()))
            for one in given:
                await send(service.ReceiveMessageResponse(message=one.message))
                sent += 1
                if ask.is_renewed:
                    self._renewal.watch(caller, ask.group, ask.topic, one.handle)
            await send(service.ReceiveMessageResponse(delivery_timestamp=timestamp(self._clock.now_ms())))
        finally:
            if sent < len(given):
                self._later(self._give_back(caller, ask, given[sent:]))

    async def change_invisible_duration(self, caller: GrpcCaller, request: Any) -> Any:
        """The message is its consumer's for another time, under a new handle."""
        group, topic = group_of(request.group), topic_of(request.topic)
        invisible_ms = ms_of(request.invisible_duration)
        if not 0 <= invisible_ms <= self._config.invisible_ms_max:
            raise self._illegal_time(invisible_ms, 0)
        handle = await self._acknowledging.present(request)
        changed = await self._change(caller, group, topic, handle, invisible_ms)
        return service.ChangeInvisibleDurationResponse(status=status(), receipt_handle=str(changed))

    async def forward_to_dead_letters(self, caller: GrpcCaller, request: Any) -> Any:
        """Put a message into the dead-letter topic of the group, and end its ownership."""
        group, topic = group_of(request.group), topic_of(request.topic)
        handle = await self._acknowledging.present(request)
        handle = await self._change(caller, group, topic, handle, FORWARD_MS)  # refused unless the group owns it
        fields = {
            "offset": str(handle.position), "group": group, "delayLevel": "-1", "originMsgId": request.message_id,
            "originTopic": topic, "popTime": str(handle.pop_ms),
            "maxReconsumeTimes": str(max(0, request.max_delivery_attempts)),
        }  # fmt: skip
        await self._acknowledging.owner(handle).request(caller, RequestCode.CONSUMER_SEND_MSG_BACK, fields)
        await self._acknowledging.alone(caller, group, topic, handle)
        return service.ForwardMessageToDeadLetterQueueResponse(status=status())

    def stop(self) -> None:
        """Answer the receives that wait; their clients go to another proxy."""
        self._stopping.set()

    async def settle(self) -> None:
        """Wait until what was left unread has been given back."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _parsed(self, request: Any, left_ms: int | None) -> Receive:
        config = self._config
        invisible_ms = config.invisible_ms_default
        if not request.auto_renew:
            invisible_ms = ms_of(request.invisible_duration)
            if not config.invisible_ms_min <= invisible_ms <= config.invisible_ms_max:
                raise self._illegal_time(invisible_ms, config.invisible_ms_min)
        return Receive(
            group=group_of(request.group),
            topic=topic_of(request.message_queue.topic),
            namespace=request.message_queue.topic.resource_namespace,
            broker=request.message_queue.broker.name,
            queue_index=max(ALL_QUEUES, request.message_queue.id),
            count=max(1, min(request.batch_size, config.limits.batch_max)),
            invisible_ms=invisible_ms,
            wait_ms=wait_ms_of(request, config.long_poll_ms_max, left_ms, DEADLINE_MARGIN_MS),
            is_renewed=request.auto_renew,
            expression=expression_of(request.filter_expression),
            attempt_id=request.attempt_id if request.HasField("attempt_id") else "",
        )

    async def _pop(self, caller: GrpcCaller, ask: Receive, left: asyncio.Event) -> list[Given]:
        """Messages of the first broker group that has some: the one that is asked for, then the others in turn.

        A push consumer asks each group by itself, and a consumer in order each queue: they get those of one group.
        `left`: set when the client waits no more.
        """
        rules = await self._groups.rules(caller, ask.group)
        is_lite = rules.lite_topic_parent == ask.topic
        if is_lite and ask.expression != ("TAG", "*"):
            raise CallRejected(Code.ILLEGAL_FILTER_EXPRESSION, "lite topics are read without a filter")
        pop = partial(self._pop_at, caller, ask, is_lite=is_lite, in_order=rules.consume_message_orderly)
        named = self._brokers.named(ask.broker)
        if named is not None and (len(self._brokers) == 1 or ask.is_renewed or rules.consume_message_orderly):
            return await pop(named, wait_ms=ask.wait_ms)
        deadline_s, slice_ms = clock.monotonic_s() + ask.wait_ms / 1_000, 0
        while True:
            failure, failures, sources = None, 0, await self._sources(ask)
            for source in sources:
                left_ms = int((deadline_s - clock.monotonic_s()) * 1_000)
                try:
                    given = await pop(source, wait_ms=max(0, min(left_ms, slice_ms)))
                except (ConnectionLost, RequestTimeout) as error:
                    failure, failures = error, failures + 1
                    continue
                if given or left.is_set():
                    return given
            if failure is not None and failures == len(sources):
                raise failure
            if clock.monotonic_s() >= deadline_s:
                return []
            slice_ms = TURN_MS

    async def _sources(self, ask: Receive) -> Sequence[BrokerLink]:
        """The broker groups that have the topic, in the order in which they are asked."""
        names = (await self._routes.places(ask.topic)).readable()
        links = self._brokers.reachable([link for link in self._brokers.links if link.name in names])
        self._turn += 1
        first = names.index(ask.broker) if ask.broker in names else self._turn
        return [links[(first + index) % len(links)] for index in range(len(links))]

    async def _pop_at(
        self, caller: GrpcCaller, ask: Receive, link: BrokerLink, *, is_lite: bool, in_order: bool, wait_ms: int
    ) -> list[Given]:
        code = RequestCode.POP_LITE_MESSAGE if is_lite else RequestCode.POP_MESSAGE
        asked, now_ms = replace(ask, wait_ms=wait_ms), self._clock.now_ms()
        fields = lite_pop_fields(asked, caller.client_id, now_ms) if is_lite else pop_fields(asked, in_order, now_ms)
        try:
            answer = await link.request(caller, code, fields, wait_ms=wait_ms)
        except Refused as refused:
            if refused.code == ResponseCode.POLLING_TIMEOUT:
                return []
            raise
        return self._given(ask, link.name, answer, is_lite=is_lite)

    def _given(self, ask: Receive, broker: str, answer: Command, *, is_lite: bool) -> list[Given]:
        """The messages in the answer to a POP."""
        counts = answer.fields.get("orderCountInfo", "")
        pop_ms, invisible_ms = int(answer.fields["popTime"]), int(answer.fields["invisibleTime"])
        before = {} if is_lite else deliveries_before(counts)
        lite_before = lite_deliveries_before(counts) if is_lite else []
        given = []
        for index, stored in enumerate(iter_stored(answer.body)):
            body, is_plain = plain_body(stored)
            self._metrics.unreadable.value += not is_plain
            message = incoming(stored, body, ask.topic, ask.namespace)
            system = message.system_properties
            handle = handle_of(stored, broker, pop_ms, invisible_ms, system.lite_topic if is_lite else "")
            system.delivery_attempt += (
                lite_before[index] if is_lite else before.get((stored.queue_id, stored.queue_offset), 0)
            )
            given.append(Given(owned(message, handle, invisible_ms), handle))
        return given

    async def _change(
        self, caller: GrpcCaller, group: str, topic: str, handle: ReceiptHandle, invisible_ms: int
    ) -> ReceiptHandle:
        fields = {**handle.fields(group, topic), "invisibleTime": str(invisible_ms)}
        return moved(
            handle, await self._acknowledging.about(caller, handle, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)
        )

    async def _abandoned(self, caller: GrpcCaller, ask: Receive, popping: asyncio.Future[list[Given]]) -> None:
        """Give back what a POP brings whose client does not wait for it any more."""
        await self._give_back(caller, ask, await popping)

    async def _give_back(self, caller: GrpcCaller, ask: Receive, given: Sequence[Given]) -> None:
        self._metrics.returned.value += len(given)
        for one in given:
            await self._change(caller, ask.group, ask.topic, one.handle, 0)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(_quiet(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _illegal_time(self, invisible_ms: int, least_ms: int) -> CallRejected:
        text = f"the invisible time {invisible_ms} ms is not in {least_ms}..{self._config.invisible_ms_max}"
        return CallRejected(Code.ILLEGAL_INVISIBLE_TIME, text)


def pop_fields(ask: Receive, in_order: bool, now_ms: int) -> dict[str, str]:
    """Return the fields of POP_MESSAGE."""
    kind, expression = ask.expression
    return {
        "consumerGroup": ask.group, "topic": ask.topic, "queueId": str(ask.queue_index if in_order else ALL_QUEUES),
        "maxMsgNums": str(ask.count), "invisibleTime": str(ask.invisible_ms), "pollTime": str(ask.wait_ms),
        "initMode": "0", "order": str(in_order).lower(), "attemptId": ask.attempt_id,
        "bornTime": str(now_ms), "expType": kind, "exp": expression,
    }  # fmt: skip


def lite_pop_fields(ask: Receive, client_id: str, now_ms: int) -> dict[str, str]:
    """Return the fields of POP_LITE_MESSAGE, for the lite topics that this client subscribes to."""
    return {
        "clientId": client_id, "consumerGroup": ask.group, "topic": ask.topic, "maxMsgNum": str(ask.count),
        "invisibleTime": str(ask.invisible_ms), "pollTime": str(ask.wait_ms), "bornTime": str(now_ms),
        "attemptId": ask.attempt_id,
    }  # fmt: skip


async def _quiet(work: Coroutine[Any, Any, None]) -> None:
    """What fails here comes again after its invisible time."""
    try:
        await work
    except LightMQError:
        return
