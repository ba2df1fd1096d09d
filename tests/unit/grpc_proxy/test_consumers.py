"""Calls of consumers through a real port to a real broker: ownership, renewal, what clients leave unread.

They pass `grpc_proxy.receiving`; clients that come and go, `grpc_proxy.clients`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from broker.groups.groups import GroupConfig
from grpc_proxy.clients import GrpcClients
from grpc_proxy.config import GrpcConfig, GrpcLimitsConfig
from grpc_proxy.groups import ConsumedGroups
from grpc_proxy.mapping.incoming import ReceiptHandle, parse_handle
from grpc_proxy.mapping.metadata import GrpcCaller
from grpc_proxy.metrics import GrpcMetrics
from grpc_proxy.renewal import Renewal
from grpc_proxy.service import NAME
from grpc_proxy.stubs import definition as d
from grpc_proxy.stubs import service as s
from remoting.protocol.errors import Refused
from remoting.protocol.frames.commands import Command
from remoting.transport.failures import ConnectionLost
from runtime.metrics import Registry
from tests.support.clock import ManualClock
from tests.unit.grpc_proxy.conftest import ENDPOINTS, GROUP, METADATA, TOPIC, ProxyBench, by, message

Code = d.Code


async def test_a_message_is_done_once_it_is_acknowledged(proxied):
    await proxied.send(message())
    (got,) = await proxied.messages()
    handle = got.system_properties.receipt_handle
    assert (await proxied.acknowledge(handle)).status.code == Code.OK
    again = await proxied.acknowledge(handle)
    assert (again.status.code, again.entries[0].status.code) == (Code.INVALID_RECEIPT_HANDLE,) * 2
    await proxied.revive(40_000)
    assert (await proxied.receive())[0].status.code == Code.MESSAGE_NOT_FOUND


async def test_a_message_comes_again_after_its_time(proxied):
    await proxied.send(message())
    (first,) = await proxied.messages()
    await proxied.revive(40_000)
    (second,) = await proxied.messages()
    assert (first.system_properties.delivery_attempt, second.system_properties.delivery_attempt) == (1, 2)
    assert second.topic.name == "orders"
    assert (await proxied.acknowledge(first.system_properties.receipt_handle)).status.code != Code.OK
    assert (await proxied.acknowledge(second.system_properties.receipt_handle)).status.code == Code.OK


async def test_a_changed_time_gives_a_new_handle(proxied):
    await proxied.send(message())
    (got,) = await proxied.messages()
    old = got.system_properties.receipt_handle
    request = s.ChangeInvisibleDurationRequest(
        group=GROUP, topic=TOPIC, receipt_handle=old, message_id="m", invisible_duration={"seconds": 90}
    )
    proxied.clock.advance_ms(1)
    changed = await proxied.call("ChangeInvisibleDuration", request)
    assert (changed.status.code, changed.receipt_handle != old) == (Code.OK, True)
    await proxied.revive(40_000)
    assert (await proxied.acknowledge(old)).status.code == Code.INVALID_RECEIPT_HANDLE
    assert (await proxied.acknowledge(changed.receipt_handle)).status.code == Code.OK
    for wrong in ({"seconds": -1}, {"seconds": 13 * 3_600}):
        request.invisible_duration.seconds = wrong["seconds"]
        assert (await proxied.call("ChangeInvisibleDuration", request)).status.code == Code.ILLEGAL_INVISIBLE_TIME


async def test_forged_and_foreign_handles_change_nothing(proxied):
    await proxied.send(message())
    (got,) = await proxied.messages()
    handle = parse_handle(got.system_properties.receipt_handle)
    forged = [
        ReceiptHandle(handle.pop_ms + 1, handle.invisible_ms, False, handle.broker, handle.queue_index, 0, 0),
        ReceiptHandle(handle.pop_ms, handle.invisible_ms, False, "other", handle.queue_index, 0, 0),
        ReceiptHandle(handle.pop_ms, handle.invisible_ms, False, handle.broker, 99, 0, 0),
        ReceiptHandle(handle.pop_ms, handle.invisible_ms, False, handle.broker, handle.queue_index, 999, 0),
    ]
    found = await proxied.acknowledge(*map(str, forged), "nonsense", str(handle))
    codes = [entry.status.code for entry in found.entries]
    assert codes == [Code.INVALID_RECEIPT_HANDLE] * 5 + [Code.OK]
    assert found.status.code == Code.MULTIPLE_RESULTS
    foreign = s.AckMessageRequest(
        group={"name": "others"}, topic=TOPIC, entries=[{"message_id": "m", "receipt_handle": str(handle)}]
    )
    assert (await proxied.call("AckMessage", foreign)).status.code == Code.INVALID_RECEIPT_HANDLE
    assert (await proxied.acknowledge()).status.code == Code.BAD_REQUEST


async def test_a_dead_letter_leaves_the_topic(proxied):
    await proxied.send(message(b"poison"))
    (got,) = await proxied.messages()
    request = s.ForwardMessageToDeadLetterQueueRequest(
        group=GROUP, topic=TOPIC, receipt_handle=got.system_properties.receipt_handle, message_id="m",
        delivery_attempt=1, max_delivery_attempts=16,
    )  # fmt: skip
    assert (await proxied.call("ForwardMessageToDeadLetterQueue", request)).status.code == Code.OK
    assert (await proxied.call("ForwardMessageToDeadLetterQueue", request)).status.code == Code.INVALID_RECEIPT_HANDLE
    await proxied.revive(100_000)
    assert (await proxied.receive())[0].status.code == Code.MESSAGE_NOT_FOUND
    (dead,) = await proxied.messages(
        group={"name": "undertaker"}, message_queue={"topic": {"name": "%DLQ%billing"}, "id": -1}
    )
    assert dead.body == b"poison"


async def test_a_receive_waits_for_the_first_message(proxied):
    waiting = asyncio.ensure_future(proxied.messages(long_polling_timeout={"seconds": 15}))
    while not proxied.broker.broker.reading.long_polls:
        await asyncio.sleep(0)
    await proxied.send(message())
    assert [one.body for one in await waiting] == [b"hello"]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"invisible_duration": {"seconds": 1}}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"invisible_duration": {"seconds": 86_400}}, Code.ILLEGAL_INVISIBLE_TIME),
        ({"filter_expression": {"type": d.FilterType.SQL, "expression": "a >"}}, Code.ILLEGAL_FILTER_EXPRESSION),
        ({"group": {}}, Code.ILLEGAL_CONSUMER_GROUP),
        ({"message_queue": {"topic": {"name": "nothing"}}}, Code.TOPIC_NOT_FOUND),
    ],
)
async def test_a_receive_that_cannot_be_served_gets_the_code(proxied, asked, code):
    (answer,) = await proxied.receive(**asked)
    assert Code.Name(answer.status.code) == Code.Name(code)


def orderly(proxied: ProxyBench) -> None:
    """The group consumes in order."""
    groups = proxied.broker.broker.groups.groups
    groups.put(GroupConfig(group_name="billing", consume_message_orderly=True, retry_max_times=3))


async def test_a_group_in_order_gets_nothing_behind_a_message_that_it_has(proxied):
    """Its queues are assigned one by one; what is not acknowledged comes again before the rest."""
    orderly(proxied)
    asked = s.QueryAssignmentRequest(topic=TOPIC, group=GROUP, endpoints=ENDPOINTS)
    found = await proxied.call("QueryAssignment", asked)
    assert [one.message_queue.id for one in found.assignments] == [0, 1, 2, 3]
    grouped = [message(b"%d" % number, message_group="g", message_type=d.MessageType.FIFO) for number in range(3)]
    await proxied.send(*grouped)
    (first,) = await proxied.messages(batch_size=1)
    assert (await proxied.receive())[0].status.code == Code.MESSAGE_NOT_FOUND
    await proxied.revive(40_000)
    again = await proxied.messages()
    assert [(one.body, one.system_properties.delivery_attempt) for one in again] == [(b"0", 2), (b"1", 1), (b"2", 1)]
    assert (await proxied.acknowledge(first.system_properties.receipt_handle)).status.code != Code.OK
    handles = [one.system_properties.receipt_handle for one in again]
    assert (await proxied.acknowledge(*handles)).status.code == Code.OK


async def test_a_lost_answer_in_order_is_repeated_for_its_attempt(proxied):
    orderly(proxied)
    await proxied.send(message(b"0", message_group="g", message_type=d.MessageType.FIFO))
    (first,) = await proxied.messages(attempt_id="one")
    (again,) = await proxied.messages(attempt_id="one")
    assert (first.body, again.body) == (b"0", b"0")
    assert (await proxied.receive(attempt_id="two"))[0].status.code == Code.MESSAGE_NOT_FOUND


async def test_a_consumer_in_order_is_told_so(proxied):
    orderly(proxied)
    settings = d.Settings(client_type=d.ClientType.PUSH_CONSUMER, subscription={"group": GROUP})
    async with telemetry(proxied, settings) as stream:
        assert stream.answer.settings.subscription.fifo
        assert stream.answer.settings.backoff_policy.max_attempts == 4


async def test_filters_select(proxied):
    await proxied.send(message(b"a", tag="a"), message(b"b", tag="b"))
    chosen = {"type": d.FilterType.TAG, "expression": "b"}
    assert [one.body for one in await proxied.messages(filter_expression=chosen)] == [b"b"]


async def test_what_a_client_that_left_did_not_take_is_given_back(proxied):
    """It left while its receive was waiting: the message that comes then is visible again at once."""
    raw = s.ReceiveMessageRequest(
        group=GROUP, message_queue={"topic": TOPIC, "id": -1}, batch_size=1, invisible_duration={"seconds": 3_600},
        long_polling_timeout={"seconds": 15},
    ).SerializeToString()  # fmt: skip
    call = proxied.channel.unary_stream(f"/{NAME}/ReceiveMessage")(raw, metadata=METADATA)
    while not proxied.broker.broker.reading.long_polls:
        await asyncio.sleep(0)
    call.cancel()
    assert (await proxied.call("Heartbeat", s.HeartbeatRequest(group=GROUP))).status.code == Code.OK
    await proxied.send(message())
    while not proxied.broker.registry.values()["rocketmq_grpc_returned_messages_total"]:
        await asyncio.sleep(0)
    await proxied.app.settled()
    await proxied.revive(1)
    assert [one.body for one in await proxied.messages()] == [b"hello"]


async def test_a_stopping_proxy_ends_what_waits_and_keeps_no_message(proxied):
    """Streams and receives end at once, not at the deadline; what a receive would have got is given back."""
    async with telemetry(proxied, PRODUCER) as stream:
        waiting = asyncio.ensure_future(proxied.receive(long_polling_timeout={"seconds": 15}))
        while not proxied.broker.broker.reading.long_polls:
            await asyncio.sleep(0)
        stopping = asyncio.ensure_future(proxied.app.stop())
        (answer,) = await waiting
        assert answer.status.code == Code.HA_NOT_AVAILABLE
        assert await stream.call.code() == grpc.StatusCode.UNAVAILABLE
        await stopping
    assert proxied.counted("rocketmq_grpc_streams_ended_total") == {"stopping": 1}


class FakeLink:
    """Answers each request with what the test has put there."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.asked: list[dict[str, str]] = []
        self.held: asyncio.Event | None = None

    def require(self, *_: Any) -> FakeLink:
        return self

    async def request(self, _caller: Any, _code: int, fields: dict[str, str]) -> Command:
        self.asked.append(fields)
        if self.held is not None:
            await self.held.wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Command(0, fields={"popTime": str(answer), "invisibleTime": "60000"})


class RenewalBench:
    def __init__(self, **options: Any) -> None:
        self.link, self.clock, self.here = FakeLink(), ManualClock(wall_ms=0), True
        self.registry = Registry()
        config = GrpcConfig(**options)
        metrics = GrpcMetrics(self.registry)
        self.renewal = Renewal(self.link, config, self.clock, metrics, lambda _client: self.here)
        self.handle = ReceiptHandle(0, 60_000, False, "b", 0, 7, 8)
        self.renewal.watch(GrpcCaller("c", "127.0.0.1"), "g", "t", self.handle)

    async def at(self, now_ms: int) -> None:
        """Let it look at this time, and what it began come to an end."""
        self.clock.advance_ms(now_ms - self.clock.now_ms())
        self.renewal.renew_due()
        for _ in range(5):
            await asyncio.sleep(0)

    def counted(self) -> dict[str, int]:
        found = next(each for each in self.registry.metrics() if each.name == "rocketmq_grpc_renewals_total")
        return {labels[0]: int(child.value) for labels, child in found.children.items()}


async def test_the_time_of_a_message_is_extended_after_half_of_it():
    bench = RenewalBench()
    bench.link.answers = [30_000, 60_000]
    await bench.at(29_999)
    assert not bench.link.asked
    await bench.at(30_000)
    await bench.at(59_999)
    await bench.at(60_000)
    assert [fields["extraInfo"].split()[1] for fields in bench.link.asked] == ["0", "30000"]
    assert (await bench.renewal.take(str(bench.handle), bench.handle)).pop_ms == 60_000
    await bench.at(200_000)
    assert (len(bench.link.asked), bench.counted(), len(bench.renewal)) == (2, {"extended": 2}, 0)


async def test_an_acknowledgement_waits_for_an_extension_under_way():
    bench = RenewalBench()
    bench.link.answers, bench.link.held = [30_000], asyncio.Event()
    await bench.at(30_000)
    taking = asyncio.ensure_future(bench.renewal.take(str(bench.handle), bench.handle))
    await asyncio.sleep(0)
    assert not taking.done()
    bench.link.held.set()
    assert (await taking).pop_ms == 30_000


async def test_it_ends_with_the_client_with_the_ownership_and_after_a_while():
    gone, lost, old, away = RenewalBench(), RenewalBench(), RenewalBench(renew_s_max=40), RenewalBench()
    gone.here = False
    await gone.at(30_000)
    lost.link.answers = [Refused(208, "not in flight")]
    await lost.at(30_000)
    old.link.answers = [30_000]
    await old.at(30_000)
    await old.at(60_000)
    away.link.answers = [ConnectionLost("gone"), 31_000]
    await away.at(30_000)
    await away.at(31_000)
    assert [bench.counted() for bench in (gone, lost, old, away)] == [
        {"client_gone": 1}, {"refused": 1}, {"extended": 1, "too_long": 1}, {"unanswered": 1, "extended": 1},
    ]  # fmt: skip
    assert [len(bench.renewal) for bench in (gone, lost, old, away)] == [0, 0, 0, 1]
    await away.renewal.stop()


async def test_beyond_the_limit_a_message_is_not_extended():
    bench = RenewalBench(limits=GrpcLimitsConfig(renewed_max=1))
    bench.renewal.watch(GrpcCaller("c", "h"), "g", "t", ReceiptHandle(1, 60_000, False, "b", 0, 9, 9))
    assert (len(bench.renewal), bench.counted()) == (1, {"beyond_limit": 1})


async def test_a_push_consumers_messages_are_extended_until_it_acknowledges(proxied):
    """With the handle that it got."""
    async with telemetry(proxied, d.Settings(client_type=d.ClientType.PUSH_CONSUMER, subscription={"group": GROUP})):
        await proxied.send(message())
        (got,) = await proxied.messages(auto_renew=True)
        for _ in range(3):
            proxied.clock.advance_ms(31_000)
            proxied.app.renewal.renew_due()
            await proxied.call("Heartbeat", s.HeartbeatRequest(group=GROUP))
            await proxied.revive(0)
        assert (await proxied.receive())[0].status.code == Code.MESSAGE_NOT_FOUND
        handle = got.system_properties.receipt_handle
        assert (await proxied.acknowledge(handle)).status.code == Code.OK


class telemetry:  # noqa: N801 - used as a function
    """A telemetry stream with its settings answered, for a `with` block; `read` returns the next command."""

    def __init__(self, proxied: ProxyBench, settings: Any, client_id: str = "client-1", metadata: Any = None) -> None:
        metadata = metadata or (("x-mq-client-id", client_id),)
        self.call = proxied.channel.stream_stream(f"/{NAME}/Telemetry")(metadata=metadata)
        self.settings = settings

    async def read(self) -> Any:
        return s.TelemetryCommand.FromString(await asyncio.wait_for(self.call.read(), 10))

    async def write(self, **command: Any) -> None:
        await self.call.write(s.TelemetryCommand(**command).SerializeToString())

    async def __aenter__(self):
        await self.write(settings=self.settings)
        self.answer = await self.read()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.call.cancel()


PRODUCER = d.Settings(client_type=d.ClientType.PRODUCER, publishing={"topics": [TOPIC]})


async def test_settings_register_a_client_and_its_end_removes_it(proxied):
    async with telemetry(proxied, PRODUCER) as stream:
        assert stream.answer.status.code == Code.OK
        assert stream.answer.settings.publishing.max_body_size == 4 * 1024 * 1024
        request = s.HeartbeatRequest(client_type=d.ClientType.PRODUCER)
        assert (await proxied.call("Heartbeat", request)).status.code == Code.OK
        known = proxied.broker.broker.groups.clients.producers_of("orders")
        assert [client.client_id for client in known] == ["client-1"]
        assert (await proxied.call("NotifyClientTermination", b"")).status.code == Code.OK
        assert not proxied.broker.broker.groups.clients.producers_of("orders")


async def test_a_consumer_is_a_member_of_its_group_without_a_stream_too(proxied):
    request = s.HeartbeatRequest(group=GROUP, client_type=d.ClientType.SIMPLE_CONSUMER)
    assert (await proxied.call("Heartbeat", request)).status.code == Code.OK
    assert proxied.broker.broker.groups.clients.members("billing") == ["client-1"]
    await proxied.call("NotifyClientTermination", s.NotifyClientTerminationRequest(group=GROUP))
    assert proxied.broker.broker.groups.clients.members("billing") == []


async def test_bad_settings_and_bad_bytes_get_a_status_on_the_stream(proxied):
    async with telemetry(proxied, d.Settings()) as stream:
        assert stream.answer.status.code == Code.UNRECOGNIZED_CLIENT_TYPE
        await stream.call.write(b"\xff\xff\xff")
        assert (await stream.read()).status.code == Code.BAD_REQUEST
        await stream.write(settings=PRODUCER)
        assert (await stream.read()).status.code == Code.OK


async def test_a_producer_is_asked_about_an_orphaned_transaction(proxied):
    async with telemetry(proxied, PRODUCER) as stream:
        request = s.HeartbeatRequest(client_type=d.ClientType.PRODUCER)
        await proxied.call("Heartbeat", request)
        (entry,) = (await proxied.send(message(message_type=d.MessageType.TRANSACTION))).entries
        await proxied.revive(7_000)
        orphan = (await stream.read()).recover_orphaned_transaction_command
        assert (orphan.transaction_id, orphan.message.body) == (entry.transaction_id, b"hello")
        assert orphan.message.topic.name == "orders"
        commit = s.EndTransactionRequest(
            topic=TOPIC, transaction_id=orphan.transaction_id, resolution=d.TransactionResolution.COMMIT,
            source=d.TransactionSource.SOURCE_SERVER_CHECK,
        )  # fmt: skip
        assert (await proxied.call("EndTransaction", commit)).status.code == Code.OK
        assert [one.body for one in await proxied.messages()] == [b"hello"]


async def test_a_producer_is_not_asked_about_what_it_may_no_longer_write(tmp_path):
    """Although it was registered when it could, and another one is here that still may."""
    bench = ProxyBench(tmp_path / "data", broker_options={"access_keys": ("ann:a", "bob:b")})
    denied: set[str] = set()
    bench.broker.judge_by(lambda identity, _action, _resource: identity not in denied)
    await bench.start()
    ann, bob = by("ann", "a", client_id="of-ann"), by("bob", "b", client_id="of-bob")
    async with telemetry(bench, PRODUCER, metadata=ann) as asked, telemetry(bench, PRODUCER, metadata=bob):
        for _ in range(3):
            await bench.send(message(message_type=d.MessageType.TRANSACTION), metadata=ann)
        denied.add("bob")
        await bench.revive(7_000)
        for _ in range(3):
            assert (await asked.read()).recover_orphaned_transaction_command.message.body == b"hello"
    await bench.stop()


def clients_with(proxied: ProxyBench, **limits: int) -> GrpcClients:
    """Clients of the same broker with limits of their own."""
    config, link = GrpcConfig(limits=GrpcLimitsConfig(**limits)), proxied.app.brokers
    return GrpcClients(link, ConsumedGroups(link, proxied.clock), config, GrpcMetrics(Registry()))


async def test_a_stream_that_is_not_read_ends_and_no_other_waits(proxied):
    """Its client floods the proxy with settings and reads no answer."""
    clients, writes = clients_with(proxied, commands_max=3), []
    raw = s.TelemetryCommand(settings=PRODUCER).SerializeToString()

    async def flood():
        while True:
            yield raw
            await asyncio.sleep(0)

    async def stuck(_message: bytes) -> None:
        writes.append(1)
        await asyncio.Event().wait()

    why = await asyncio.wait_for(clients.telemetry(GrpcCaller("c", "127.0.0.1"), flood(), stuck), 10)
    assert (why, writes, len(clients)) == ("slow_reader", [1], 0)


async def test_too_many_clients_are_refused(proxied):
    clients = GrpcClients(
        proxied.app.brokers,
        ConsumedGroups(proxied.app.brokers, proxied.clock),
        GrpcConfig(limits=GrpcLimitsConfig(clients_max=1)),
        GrpcMetrics(Registry()),
    )
    got: asyncio.Queue[Any] = asyncio.Queue()

    async def reading(ended: asyncio.Event):
        yield s.TelemetryCommand(settings=PRODUCER).SerializeToString()
        await ended.wait()

    async def write(raw: bytes) -> None:
        await got.put(s.TelemetryCommand.FromString(raw).status.code)

    ended = asyncio.Event()
    first = asyncio.ensure_future(clients.telemetry(GrpcCaller("a", "127.0.0.1"), reading(ended), write))
    assert await got.get() == Code.OK
    second = asyncio.ensure_future(clients.telemetry(GrpcCaller("b", "127.0.0.1"), reading(ended), write))
    assert await got.get() == Code.TOO_MANY_REQUESTS
    ended.set()
    assert await asyncio.gather(first, second) == ["", ""]
