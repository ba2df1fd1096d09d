"""Telemetry streams, heartbeats and terminations: which clients are there, and commands of the server to them.

A client opens one stream, sends its settings on it and gets them back with the server's part. It is registered at the
broker by its settings and by each heartbeat; the broker forgets one that is silent. Commands for a client wait in its
stream's queue; a stream that is not read is ended when the queue is full, and no other stream waits for it.

The broker's question about a half message (CHECK_TRANSACTION_STATE) goes to one producer of the topic, another one each
time; the producer answers with EndTransaction. If none is connected here the question is dropped, and the broker asks
again later. Questions of tools to one client are those of `questions`. A client of lite topics is notified when another
one has taken one of them over.
Invariant: a producer is asked only about messages that it may write, where they will be visible, at the moment of the
question. Loop rule: on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any

import msgspec

from grpc_proxy.brokers import BrokerGroups
from grpc_proxy.config import GrpcConfig
from grpc_proxy.groups import ConsumedGroups, GroupRules
from grpc_proxy.link import BrokerLink
from grpc_proxy.mapping import lite
from grpc_proxy.mapping import settings as mapping
from grpc_proxy.mapping.incoming import incoming, plain_body
from grpc_proxy.mapping.metadata import GrpcCaller
from grpc_proxy.mapping.statuses import CallRejected, Code, reason_name, status, status_of
from grpc_proxy.mapping.transactions import checked_id
from grpc_proxy.mapping.values import group_of, topic_of
from grpc_proxy.metrics import GrpcMetrics
from grpc_proxy.questions import Questions
from grpc_proxy.stubs import definition, service
from remoting.access import visibility
from remoting.protocol.errors import LightMQError, Refused, RemoteViolation
from remoting.protocol.frames.codes import RequestCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records.stored_message import decode_stored

_encode = msgspec.json.encode
CLIENT_QUESTIONS = {
    RequestCode.GET_CONSUMER_RUNNING_INFO: "print_thread_stack_trace",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "verify_message",
}
CLIENT_ANSWERS = ("thread_stack_trace", "verify_message_result")
SLOW, STOPPING = "slow_reader", "stopping"
"""Why a stream is ended by the proxy."""


CommandWriter = Callable[[bytes], Awaitable[None]]
"""Sends one serialized command on a stream; returns when there is room for the next."""


class Stream:
    """One telemetry stream, with the commands that wait for it."""

    def __init__(self, caller: GrpcCaller, commands_max: int) -> None:
        self.caller = caller
        self.settings: Any = None
        """As the client last sent them; None before."""
        self.topics: frozenset[str] = frozenset()
        """Topics of a producer that it may write to."""
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Resolved with the reason when the proxy ends it."""
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(commands_max)

    def put(self, **command: Any) -> None:
        """Have a command sent; at too many that wait, the stream ends."""
        try:
            self._waiting.put_nowait(service.TelemetryCommand(**command).SerializeToString())
        except asyncio.QueueFull:
            self.end(SLOW)

    def end(self, reason: str) -> None:
        """End the stream, for a reason that is counted."""
        if not self.ended.done():
            self.ended.set_result(reason)

    async def write_all(self, write: CommandWriter) -> None:
        """Send what waits, until cancelled."""
        while True:
            await write(await self._waiting.get())


class GrpcClients:
    """The clients of this proxy."""

    def __init__(self, brokers: BrokerGroups, groups: ConsumedGroups, config: GrpcConfig, metrics: GrpcMetrics) -> None:
        self._brokers = brokers
        self._groups = groups
        self._config = config
        self._metrics = metrics
        self._streams: dict[str, Stream] = {}
        self._open: set[Stream] = set()
        self._asked = 0
        self._asking: set[asyncio.Future[None]] = set()
        """Questions whose producer is looked for."""
        self._questions = Questions(self._streams)
        brokers.on_push(self._pushed)

    def __len__(self) -> int:
        return len(self._streams)

    def is_here(self, client_id: str) -> bool:
        """Whether a client has a stream with its settings."""
        return client_id in self._streams

    async def telemetry(self, caller: GrpcCaller, received: AsyncIterator[bytes], write: CommandWriter) -> str:
        """Serve one stream to its end; returns why the proxy ended it, or nothing."""
        stream = Stream(caller, self._config.limits.commands_max)
        tasks: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self._read(stream, received)),
            asyncio.ensure_future(stream.write_all(write)),
        ]
        self._open.add(stream)
        try:
            await asyncio.wait([*tasks, stream.ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._open.discard(stream)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._forget(stream)
        if not stream.ended.done():
            return ""
        self._metrics.ended_streams.child(stream.ended.result()).value += 1
        return stream.ended.result()

    def stop(self) -> None:
        """End every stream; its client opens another one, at another proxy."""
        for stream in self._open:
            stream.end(STOPPING)

    async def heartbeat(self, caller: GrpcCaller, request: Any) -> Any:
        """Keep a client registered; one without a stream here is known by its group alone."""
        stream = self._streams.get(caller.client_id)
        if stream is not None:
            await self._register(stream)
        elif request.client_type != definition.ClientType.PRODUCER:
            await self._consumer(caller, group_of(request.group), definition.Subscription())
        return service.HeartbeatResponse(status=status())

    async def terminate(self, caller: GrpcCaller, request: Any) -> Any:
        """Forget a client that stops."""
        stream = self._streams.pop(caller.client_id, None)
        groups = [("producerGroup", topic) for topic in (stream.topics if stream is not None else ())]
        if request.HasField("group"):
            groups.append(("consumerGroup", group_of(request.group)))
        if stream is not None and stream.settings.client_type in mapping.LITE_CONSUMERS:
            await self._leave_lite_topics(stream)
        for field, group in groups:
            fields = {"clientID": caller.client_id, field: group}
            await self._brokers.everywhere(caller, RequestCode.UNREGISTER_CLIENT, fields)
        return service.NotifyClientTerminationResponse(status=status())

    async def _read(self, stream: Stream, received: AsyncIterator[bytes]) -> None:
        async for raw in received:
            try:
                command = service.TelemetryCommand.FromString(raw)
            except Exception as error:  # noqa: BLE001 - each implementation of protobuf has errors of its own
                self._refused(stream, CallRejected(Code.BAD_REQUEST, f"the command is malformed: {error}"))
                continue
            kind = command.WhichOneof("command")
            if kind in CLIENT_ANSWERS:
                if not self._questions.answered(stream, kind, command):
                    self._metrics.dropped_commands.child(kind).value += 1
            elif kind == "settings":
                try:
                    await self._settle(stream, command.settings)
                except LightMQError as error:
                    self._refused(stream, error)

    def _refused(self, stream: Stream, error: LightMQError) -> None:
        found = status_of(error)
        self._metrics.refuse(reason_name(found.code))
        stream.put(status=found)

    async def _settle(self, stream: Stream, settings: Any) -> None:
        """Take a client's settings: answer them, then register it."""
        config = self._config
        mapping.check(settings)
        rules = GroupRules()
        if settings.client_type != definition.ClientType.PRODUCER:
            rules = await self._groups.rules(stream.caller, group_of(settings.subscription.group))
            lite.check_group(settings, rules.lite_topic_parent)
        answer = mapping.answered(
            settings,
            fifo=rules.consume_message_orderly,
            deliveries_max=rules.retry_max_times + 1,
            body_bytes_max=config.limits.body_bytes_max,
            batch_max=config.limits.batch_max,
            long_poll_ms_max=config.long_poll_ms_max,
        )
        if settings.client_type in mapping.LITE_CONSUMERS:
            lite.announce(answer, quota=rules.lite_quota, chars_max=config.limits.lite_topic_chars_max)
        known = self._streams.get(stream.caller.client_id)
        if known is None and len(self._streams) >= config.limits.clients_max:
            raise CallRejected(Code.TOO_MANY_REQUESTS, "limits.clients_max is reached: no further client is served")
        stream.settings = settings
        self._streams[stream.caller.client_id] = stream
        stream.put(status=status(), settings=answer)
        await self._register(stream)

    async def _register(self, stream: Stream) -> None:
        caller, settings = stream.caller, stream.settings
        if settings.client_type != definition.ClientType.PRODUCER:
            release = settings.user_agent.version
            await self._consumer(caller, group_of(settings.subscription.group), settings.subscription, release)
            return
        wanted = sorted({topic_of(topic) for topic in settings.publishing.topics})
        allowed = await asyncio.gather(*(self._may_publish(caller, topic) for topic in wanted))
        stream.topics = frozenset(topic for topic, is_allowed in zip(wanted, allowed, strict=True) if is_allowed)
        if stream.topics:
            body = mapping.producer_heartbeat(caller.client_id, stream.topics, settings.user_agent.version)
            await self._brokers.everywhere(caller, RequestCode.HEART_BEAT, {}, _encode(body))

    async def _consumer(self, caller: GrpcCaller, group: str, subscription: Any, release: str = "") -> None:
        body = mapping.consumer_heartbeat(caller.client_id, group, subscription, release)
        await self._brokers.everywhere(caller, RequestCode.HEART_BEAT, {}, _encode(body))

    async def _may_publish(self, caller: GrpcCaller, topic: str) -> bool:
        try:
            await self._brokers.request(caller, RequestCode.CHECK_PUBLISH, {"topic": topic})
        except Refused:
            return False
        return True

    async def _leave_lite_topics(self, stream: Stream) -> None:
        """Have the broker forget the subscriptions of a client that stops."""
        caller, group = stream.caller, group_of(stream.settings.subscription.group)
        parent = (await self._groups.rules(caller, group)).lite_topic_parent
        if parent:
            body = _encode(lite.removal(caller.client_id, group, parent))
            await self._brokers.everywhere(caller, RequestCode.LITE_SUBSCRIPTION_CTL, {}, body)

    def _forget(self, stream: Stream) -> None:
        if self._streams.get(stream.caller.client_id) is stream:
            del self._streams[stream.caller.client_id]
        self._questions.left(stream)

    def _pushed(self, link: BrokerLink, command: Command) -> None:
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            asking = asyncio.ensure_future(self._ask_producer(link.name, command))
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)
        elif command.code == RequestCode.NOTIFY_UNSUBSCRIBE_LITE:
            self._notify_unsubscribed(command)
        elif command.code in CLIENT_QUESTIONS and not self._questions.ask(command, link.responder()):
            self._metrics.dropped_commands.child(CLIENT_QUESTIONS[command.code]).value += 1

    def _notify_unsubscribed(self, command: Command) -> None:
        """Tell a client that another one has a lite topic now."""
        stream = self._streams.get(command.fields.get("clientId", ""))
        if stream is None:
            self._metrics.dropped_commands.child("notify_unsubscribe_lite").value += 1
            return
        stream.put(notify_unsubscribe_lite_command={"lite_topic": command.fields.get("liteTopic", "")})

    async def _ask_producer(self, broker: str, command: Command) -> None:
        try:
            await self._ask_one(broker, command)
        except (RemoteViolation, KeyError, ValueError):
            self._metrics.dropped_commands.child("malformed").value += 1
        except LightMQError:  # the broker that knows the rights is away, and asks again
            self._metrics.dropped_commands.child("recover_orphaned_transaction").value += 1

    async def _ask_one(self, broker: str, command: Command) -> None:
        """Put a question about a half message on the stream of one of the topic's producers that may write it."""
        fields = command.fields
        topic = fields["topic"]
        stored, _total = decode_stored(command.body)
        resources = visibility.of_send(topic, {bytes(key): bytes(value) for key, value in stored.properties})
        stream = await self._producer(topic, resources)
        if stream is None:
            self._metrics.dropped_commands.child("recover_orphaned_transaction").value += 1
            return
        named = next(one for one in stream.settings.publishing.topics if topic_of(one) == topic)
        message = incoming(stored, plain_body(stored)[0], topic, named.resource_namespace)
        message.system_properties.message_type = definition.MessageType.TRANSACTION
        orphan = {
            "message": message,
            "transaction_id": checked_id(fields["tranStateTableOffset"], fields["commitLogOffset"], broker),
        }
        stream.put(recover_orphaned_transaction_command=orphan)

    async def _producer(self, topic: str, resources: Collection[str]) -> Stream | None:
        """The next of the topic's producers that may write to all of these."""
        producers = [stream for _id, stream in sorted(self._streams.items()) if topic in stream.topics]
        self._asked += 1
        first = self._asked % max(1, len(producers))
        for stream in producers[first:] + producers[:first]:
            allowed = [await self._may_publish(stream.caller, resource) for resource in resources]
            if all(allowed) and self._streams.get(stream.caller.client_id) is stream:
                return stream
        return None
