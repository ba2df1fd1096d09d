"""Calls of producers through a real port to a real broker: routes, sends, transactions, and who may do what.

They pass `grpc_proxy.app`, `grpc_proxy.service`, `grpc_proxy.routes`, `grpc_proxy.sending`, `grpc_proxy.metrics` and
`grpc_proxy.link`.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import grpc
import pytest

from grpc_proxy.access import KEPT_NS
from grpc_proxy.config import GrpcConfig, GrpcLimitsConfig
from grpc_proxy.mapping.values import ms_of, timestamp
from grpc_proxy.stubs import definition as d
from grpc_proxy.stubs import service as s
from remoting.protocol.errors import LocalMisuse
from tests.support.certificates import HAVE_OPENSSL, Authority
from tests.unit.grpc_proxy.conftest import ENDPOINTS, GROUP, TOPIC, ProxyBench, by, message

Code, Type = d.Code, d.MessageType


async def test_a_route_leads_back_to_where_the_client_reaches_the_proxy(proxied):
    found = await proxied.call("QueryRoute", s.QueryRouteRequest(topic=TOPIC, endpoints=ENDPOINTS))
    assert (found.status.code, len(found.message_queues)) == (Code.OK, 4)
    assert found.message_queues[0].broker.endpoints == ENDPOINTS
    missing = s.QueryRouteRequest(topic=d.Resource(name="nothing"), endpoints=ENDPOINTS)
    assert (await proxied.call("QueryRoute", missing)).status.code == Code.TOPIC_NOT_FOUND
    asked = s.QueryAssignmentRequest(topic=TOPIC, group=GROUP, endpoints=ENDPOINTS)
    (assigned,) = (await proxied.call("QueryAssignment", asked)).assignments
    assert assigned.message_queue.id == -1


async def test_messages_are_stored_and_each_has_its_result(proxied):
    found = await proxied.send(message(message_id="01"), message(message_id="02"))
    assert found.status.code == Code.OK
    assert [entry.message_id for entry in found.entries] == ["01", "02"]
    got = await proxied.messages()
    assert {one.system_properties.message_id for one in got} == {"01", "02"}


async def test_messages_of_a_request_are_one_batch_in_one_queue(proxied):
    found = await proxied.send(*[message(b"%d" % number, tag="t", keys=["k"]) for number in range(32)])
    assert [entry.offset for entry in found.entries] == list(range(32))
    got = await proxied.messages(batch_size=32)
    assert [one.body for one in got] == [b"%d" % number for number in range(32)]
    assert len({one.system_properties.queue_id for one in got}) == 1
    assert {(one.system_properties.tag, *one.system_properties.keys) for one in got} == {("t", "k")}


async def test_a_message_that_the_broker_rejects_does_not_keep_others_of_its_batch_from_being_stored(proxied):
    wrong = message(b"wrong")
    wrong.user_properties["originMqttTopic"] = "elsewhere/7"
    found = await proxied.send(message(b"a"), wrong, message(b"b"))
    assert found.status.code == Code.MULTIPLE_RESULTS
    assert [entry.status.code for entry in found.entries] == [Code.OK, Code.BAD_REQUEST, Code.OK]
    assert sorted([one.body for one in await proxied.messages()]) == [b"a", b"b"]


async def test_a_batch_that_may_not_be_written_is_refused_message_by_message(proxied):
    proxied.broker.broker.topics.table.ensure("closed", 1, permission=4)
    given = message()
    given.topic.name = "closed"
    found = await proxied.send(given, given)
    assert [entry.status.code for entry in found.entries] == [Code.FORBIDDEN, Code.FORBIDDEN]
    assert proxied.counted("rocketmq_grpc_refused_total") == {"forbidden": 2}


async def test_a_message_group_stays_in_one_queue_and_in_order(proxied):
    grouped = [message(b"%d" % number, message_group="g", message_type=Type.FIFO) for number in range(8)]
    found = await proxied.send(*grouped)
    assert [entry.offset for entry in found.entries] == list(range(8))
    got = await proxied.messages()
    assert [one.body for one in got] == [b"%d" % number for number in range(8)]
    assert len({one.system_properties.queue_id for one in got}) == 1


async def test_a_delayed_message_can_be_recalled_once(proxied):
    due_ms = proxied.clock.now_ms() + 60_000
    delayed = message(delivery_timestamp=timestamp(due_ms), message_type=Type.DELAY)
    (entry,) = (await proxied.send(delayed)).entries
    assert (await proxied.receive())[0].status.code == Code.MESSAGE_NOT_FOUND
    request = s.RecallMessageRequest(topic=TOPIC, recall_handle=entry.recall_handle)
    assert (await proxied.call("RecallMessage", request)).message_id == "0102"
    request.recall_handle = "forged"
    assert (await proxied.call("RecallMessage", request)).status.code == Code.BAD_REQUEST
    assert (await proxied.call("RecallMessage", s.RecallMessageRequest(topic=TOPIC))).status.code == Code.BAD_REQUEST
    beyond = message(delivery_timestamp=timestamp(due_ms + 400 * 86_400_000), message_type=Type.DELAY)
    assert (await proxied.send(beyond)).status.code == Code.ILLEGAL_DELIVERY_TIME


@pytest.mark.parametrize(("resolution", "visible"), [("COMMIT", 1), ("ROLLBACK", 0)])
async def test_a_transaction_is_decided_by_its_id(proxied, resolution, visible):
    (entry,) = (await proxied.send(message(message_type=Type.TRANSACTION))).entries
    assert (await proxied.receive())[0].status.code == Code.MESSAGE_NOT_FOUND
    wanted = d.TransactionResolution.Value(resolution)
    request = s.EndTransactionRequest(
        topic=TOPIC, message_id=entry.message_id, transaction_id=entry.transaction_id, resolution=wanted
    )
    assert (await proxied.call("EndTransaction", request)).status.code == Code.OK
    assert len(await proxied.receive()) == (3 if visible else 1)
    other = d.TransactionResolution.ROLLBACK if visible else d.TransactionResolution.COMMIT
    request.resolution = other
    assert (await proxied.call("EndTransaction", request)).status.code == Code.PRECONDITION_FAILED
    request.transaction_id = "FFFF-FFFF"
    assert (await proxied.call("EndTransaction", request)).status.code != Code.OK


async def test_requests_that_mix_are_rejected_as_a_whole(proxied):
    grouped = message(message_group="g", message_type=Type.FIFO)
    transaction = message(message_type=Type.TRANSACTION)
    for mixed in ((message(), grouped), (transaction, transaction), ()):
        assert (await proxied.send(*mixed)).status.code == Code.BAD_REQUEST
    too_many = await proxied.send(*[message()] * 1_025)
    assert too_many.status.code == Code.BAD_REQUEST
    assert (await proxied.receive())[0].status.code == Code.MESSAGE_NOT_FOUND


async def test_a_topic_of_one_type_takes_no_other(proxied):
    proxied.broker.broker.topics.table.ensure("first", 1)
    config = proxied.broker.broker.topics.table.require("first")
    config.attributes["message.type"] = "FIFO"
    given = message()
    given.topic.name = "first"
    assert (await proxied.send(given)).status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


async def test_messages_of_higher_priority_come_first(proxied):
    """In a topic that takes them; another one refuses them."""
    ranked = [message(b"%d" % priority, priority=priority, message_type=Type.PRIORITY) for priority in (0, 2, 1)]
    assert (await proxied.send(ranked[0])).status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    table = proxied.broker.broker.topics.table
    table.ensure("ranked", 4)
    table.require("ranked").attributes["message.type"] = "PRIORITY"
    for one in ranked:
        one.topic.name = "ranked"
        assert (await proxied.send(one)).status.code == Code.OK
    got = await proxied.messages(message_queue={"topic": {"name": "ranked"}, "id": -1})
    assert [one.body for one in got] == [b"2", b"1", b"0"]


@pytest.mark.skipif(not HAVE_OPENSSL, reason="makes its certificates with openssl")
async def test_a_port_with_a_certificate_takes_tls_only(tmp_path: Path):
    authority = Authority(tmp_path / "authority")
    server, known = authority.issue(), authority.issue("client", "")
    bench = ProxyBench(
        tmp_path / "data", tls_certificate=server.certificate, tls_key=server.key, tls_client_ca=authority.certificate
    )
    await bench.start()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await bench.send(message())
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    await bench.channel.close()
    credentials = grpc.ssl_channel_credentials(
        authority.certificate.read_bytes(), known.key.read_bytes(), known.certificate.read_bytes()
    )
    bench.channel = grpc.aio.secure_channel(f"localhost:{bench.app.port}", credentials)
    assert (await bench.send(message())).status.code == Code.OK
    await bench.stop()


@pytest.mark.skipif(not HAVE_OPENSSL, reason="makes its certificates with openssl")
async def test_certificates_are_read_again_when_they_change(tmp_path: Path):
    """A connection that is open keeps the one that it began with."""
    authority = Authority(tmp_path / "authority")
    first, second = authority.issue(), authority.issue()
    bench = ProxyBench(tmp_path / "data", tls_certificate=first.certificate, tls_key=first.key)
    await bench.start()
    context = authority.trusting()

    async def shown() -> bytes:
        _reader, writer = await asyncio.open_connection("127.0.0.1", bench.app.port, ssl=context)
        found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return found

    await bench.channel.close()
    credentials = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
    bench.channel = grpc.aio.secure_channel(f"localhost:{bench.app.port}", credentials)
    assert (await bench.send(message())).status.code == Code.OK
    before = await shown()
    shutil.copy(second.key, first.key)
    shutil.copy(second.certificate, first.certificate)
    async with asyncio.timeout(30):
        while await shown() == before:
            await asyncio.sleep(0.1)
    assert (await bench.send(message())).status.code == Code.OK
    await bench.stop()


async def test_files_that_are_missing_are_named(tmp_path: Path):
    bench = ProxyBench(tmp_path / "data", tls_certificate=tmp_path / "none.pem", tls_key=tmp_path / "none.key")
    with pytest.raises(LocalMisuse, match=r"none\.key: No such file"):
        await bench.start()
    bench.broker.store.close()


@pytest.mark.parametrize(
    "name", ["QueryRoute", "SendMessage", "AckMessage", "Heartbeat", "EndTransaction", "SyncLiteSubscription"]
)
async def test_malformed_bytes_get_a_status_and_are_counted(proxied, name):
    found = await proxied.call(name, b"\xff\xff\xff\xff")
    assert found.status.code == Code.BAD_REQUEST
    assert proxied.counted("rocketmq_grpc_refused_total") == {"bad_request": 1}


async def test_calls_without_a_client_id_are_refused(proxied):
    assert (await proxied.call("Heartbeat", b"", metadata=())).status.code == Code.CLIENT_ID_REQUIRED


async def test_a_request_that_is_too_large_ends_alone(tmp_path: Path):
    limits = GrpcLimitsConfig(request_bytes_max=65_536)
    bench = ProxyBench(tmp_path / "data", limits=limits)
    await bench.start()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await bench.send(message(b"x" * 70_000))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await bench.send(message())).status.code == Code.OK
    await bench.stop()


async def test_a_client_has_the_rights_of_the_key_that_it_proves(tmp_path: Path):
    bench = ProxyBench(tmp_path / "data", broker_options={"access_keys": ("ann:a", "bob:b")})
    bench.broker.config.__dict__.get("access_list")
    allowed = {("ann", "publish", "orders"), ("ann", "locate", "orders"), ("bob", "locate", "orders")}
    bench.broker.judge_by(lambda identity, action, resource: (identity, action, resource) in allowed)
    await bench.start()
    assert (await bench.send(message(), metadata=by("ann", "a"))).status.code == Code.OK
    assert (await bench.send(message(), metadata=by("bob", "b"))).status.code == Code.FORBIDDEN
    assert (await bench.send(message())).status.code == Code.FORBIDDEN
    await bench.stop()


async def test_a_wrong_signature_is_not_served(tmp_path: Path):
    listed = tmp_path / "rules"
    listed.write_text("user ann\ntopic readwrite #\n")
    bench = ProxyBench(tmp_path / "data", broker_options={"access_keys": ("ann:a",), "access_list": listed})
    await bench.start()
    assert (await bench.send(message(), metadata=by("ann", "a"))).status.code == Code.OK
    bench.clock.advance_ms(KEPT_NS // 1_000_000)
    for _ in range(2):
        refused = await bench.send(message(), metadata=by("ann", "wrong"))
        assert refused.status.code == Code.UNAUTHORIZED
    assert bench.counted("rocketmq_grpc_refused_total") == {"unauthorized": 2}
    await bench.stop()


async def test_a_broker_that_is_away_is_waited_for_and_then_named(tmp_path: Path):
    bench = ProxyBench(tmp_path / "data", request_timeout_ms=200)
    await bench.start()
    bench.broker_connection.peer.close("gone")
    await asyncio.sleep(0)
    found = await bench.send(message())
    assert found.status.code in (Code.PROXY_TIMEOUT, Code.HA_NOT_AVAILABLE)
    assert not bench.app.ready
    await bench.stop()


@pytest.mark.parametrize(
    "wrong",
    [
        {"tls_certificate": Path("c")}, {"tls_client_ca": Path("c")}, {"invisible_ms_default": 1_000},
    ],
)  # fmt: skip
def test_settings_that_contradict_each_other_are_refused(wrong):
    with pytest.raises(ValueError, match=r"tls_|invisible_ms_default"):
        GrpcConfig(**wrong)
    assert ms_of(timestamp(1_500)) == 1_500
