"""Messages on their way to the broker and back: what is kept, and what is rejected with which code."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from dataclasses import replace

import pytest

from grpc_proxy.config import GrpcLimitsConfig
from grpc_proxy.mapping.incoming import (
    ReceiptHandle,
    deliveries_before,
    handle_of,
    incoming,
    owned,
    parse_handle,
    plain_body,
)
from grpc_proxy.mapping.outgoing import BATCH_BYTES_MAX, OutgoingMessage, batch_request, batches, outgoing
from grpc_proxy.mapping.statuses import CallRejected
from grpc_proxy.mapping.transactions import checked_id, decision_fields, parse_id, transaction_id
from grpc_proxy.mapping.values import duration, ms_of, resource, timestamp, topic_of
from grpc_proxy.stubs import definition as d
from grpc_proxy.stubs import service as s
from remoting.protocol.records.properties import decode_properties
from remoting.protocol.records.rocketmq_form import BatchMessage, decode_batch
from remoting.protocol.records.stored_message import StoredMessage, offset_message_id

Code, Type = d.Code, d.MessageType
LIMITS = GrpcLimitsConfig(body_bytes_max=2_000, properties_max=2, properties_bytes_max=300, message_group_chars_max=8)


def message(body=b"x", users=None, **system):
    given = {"message_id": "0102", **system}
    topic = d.Resource(name="orders", resource_namespace="shop")
    return d.Message(topic=topic, body=body, user_properties=users or {}, system_properties=given)


def parsed(given):
    found = outgoing(given, LIMITS, 5_000)
    return found, dict(decode_properties(found.properties))


def test_a_message_keeps_what_the_broker_knows_by_other_names():
    found, properties = parsed(
        message(
            b"body", {"color": "red"}, tag="a", keys=["k1", "k2"], trace_context="00-1", born_timestamp=timestamp(7)
        )
    )
    assert (found.topic, found.type, found.message_id, found.body) == ("shop%orders", Type.NORMAL, "0102", b"body")
    assert properties == {
        b"color": b"red", b"UNIQ_KEY": b"0102", b"TAGS": b"a", b"KEYS": b"k1 k2", b"TRACE_CONTEXT": b"00-1",
    }  # fmt: skip
    assert found.fields(-1)["e"] == "-1"
    assert (found.fields(2)["f"], found.fields(2)["g"], found.born_ms) == ("0", "7", 7)
    assert parsed(message())[0].born_ms == 5_000


def test_each_type_has_its_properties():
    found, properties = parsed(message(message_group="g", message_type=Type.FIFO))
    assert (found.type, properties[b"__SHARDINGKEY"]) == (Type.FIFO, b"g")
    found, properties = parsed(message(delivery_timestamp=timestamp(123_456)))
    assert (found.type, properties[b"TIMER_DELIVER_MS"]) == (Type.DELAY, b"123456")
    found, properties = parsed(message(priority=3))
    assert (found.type, properties[b"_SYS_MSG_PRIORITY_"]) == (Type.PRIORITY, b"3")
    found, properties = parsed(message(lite_topic="s-7", message_type=Type.LITE))
    assert (found.type, properties[b"__LITE_TOPIC"], found.lite_topic) == (Type.LITE, b"s-7", "s-7")
    found, properties = parsed(
        message(message_type=Type.TRANSACTION, orphaned_transaction_recovery_duration=duration(9_000))
    )
    assert (properties[b"TRAN_MSG"], properties[b"PGROUP"]) == (b"true", b"shop%orders")
    assert (properties[b"CHECK_IMMUNITY_TIME_IN_SECONDS"], found.fields(-1)["f"]) == (b"9", "4")


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (d.Message(system_properties={"message_id": "1"}), Code.ILLEGAL_TOPIC),
        (message(message_id=""), Code.ILLEGAL_MESSAGE_ID),
        (message(b"x" * 2_001), Code.MESSAGE_BODY_TOO_LARGE),
        (message(users={"a": "1", "b": "2", "c": "3"}), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (message(users={"a": "1" * 300}), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (message(users={"KEYS": "1"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(users={"": "1"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(users={"a\x01b": "1"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(users={"a": "1\x02TRAN_MSG\x01true"}), Code.BAD_REQUEST),
        (message(tag="a|b"), Code.ILLEGAL_MESSAGE_TAG),
        (message(tag=" "), Code.ILLEGAL_MESSAGE_TAG),
        (message(keys=["\n"]), Code.ILLEGAL_MESSAGE_KEY),
        (message(message_group=""), Code.ILLEGAL_MESSAGE_GROUP),
        (message(message_group="g" * 9), Code.ILLEGAL_MESSAGE_GROUP),
        (message(delivery_timestamp=timestamp(-5)), Code.ILLEGAL_DELIVERY_TIME),
        (message(delivery_timestamp={"seconds": 2**60}), Code.ILLEGAL_DELIVERY_TIME),
        (message(delivery_timestamp={"seconds": 1, "nanos": -1}), Code.ILLEGAL_DELIVERY_TIME),
        (message(message_group="g", delivery_timestamp=timestamp(9)), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message(message_group="g", message_type=Type.NORMAL), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message(message_type=Type.FIFO), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message(message_group="g", message_type=Type.TRANSACTION), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message(lite_topic=""), Code.ILLEGAL_LITE_TOPIC),
        (message(lite_topic="s/#"), Code.ILLEGAL_LITE_TOPIC),
        (message(lite_topic="l" * 65), Code.ILLEGAL_LITE_TOPIC),
        (message(lite_topic="l", message_group="g"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message(priority=-1), Code.BAD_REQUEST),
        (message(priority=1, message_group="g"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message(users={"_SYS_MSG_PRIORITY_": "9"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(b"no gzip", body_encoding=d.Encoding.GZIP), Code.MESSAGE_CORRUPTED),
        (message(gzip.compress(b"x" * 2_001), body_encoding=d.Encoding.GZIP), Code.MESSAGE_BODY_TOO_LARGE),
        (message(gzip.compress(b"x")[:-4], body_encoding=d.Encoding.GZIP), Code.MESSAGE_CORRUPTED),
        (message(body_digest={"type": d.DigestType.MD5, "checksum": "00"}), Code.MESSAGE_CORRUPTED),
        (message(body_digest={"type": d.DigestType.CRC32, "checksum": "1"}), Code.MESSAGE_CORRUPTED),
    ],
)
def test_what_the_broker_could_misread_is_rejected(given, code):
    with pytest.raises(CallRejected) as caught:
        outgoing(given, LIMITS, 5_000)
    assert Code.Name(caught.value.code) == Code.Name(code)


@pytest.mark.parametrize(
    ("kind", "checksum"),
    [
        (d.DigestType.MD5, hashlib.md5(b"x").hexdigest().upper()),
        (d.DigestType.SHA1, hashlib.sha1(b"x").hexdigest()),
        (d.DigestType.CRC32, f"{zlib.crc32(b'x'):08X}"),
        (d.DigestType.CRC32, str(zlib.crc32(b"x"))),
    ],
)
def test_a_digest_may_be_written_in_each_way(kind, checksum):
    assert parsed(message(body_digest={"type": kind, "checksum": checksum}))[0].body == b"x"


def test_a_compressed_body_is_stored_plain():
    assert parsed(message(gzip.compress(b"y" * 1_000), body_encoding=d.Encoding.GZIP))[0].body == b"y" * 1_000


def stored(body=b"body", topic=b"orders", sys_flag=0, **properties):
    pairs = [(name.encode(), text) for name, text in properties.items()]
    hosts = {"born_host": ("10.0.0.7", 1), "store_host": ("10.0.0.8", 2)}
    return StoredMessage(
        topic, body, 3, 17, 4_096, 1_001, 2_002, **hosts, sys_flag=sys_flag, reconsume_times=1, properties=pairs
    )


def test_a_stored_message_comes_back_with_its_digest_and_handle():
    source = stored(UNIQ_KEY=b"0102", TAGS=b"a", KEYS=b"k1 k2", __SHARDINGKEY=b"g", color=b"red", PGROUP=b"p")
    handle = handle_of(source, "broker-a", 5_000, 60_000)
    found = owned(incoming(source, b"body", "shop%orders", "shop"), handle, 60_000)
    system = found.system_properties
    assert (found.topic.name, found.topic.resource_namespace, found.body) == ("orders", "shop", b"body")
    assert dict(found.user_properties) == {"color": "red"}
    assert (system.message_id, system.tag, list(system.keys), system.message_group) == ("0102", "a", ["k1", "k2"], "g")
    assert (system.message_type, system.delivery_attempt, system.queue_id, system.queue_offset) == (Type.FIFO, 2, 3, 17)
    assert (system.born_host, ms_of(system.born_timestamp), ms_of(system.store_timestamp)) == ("10.0.0.7", 1_001, 2_002)
    assert system.body_digest.checksum == hashlib.md5(b"body").hexdigest().upper()
    assert system.receipt_handle == "17 5000 60000 0 0 broker-a 3 17 4096"
    assert parse_handle(system.receipt_handle) == handle
    assert handle.fields("billing", "orders")["topic"] == "orders"


def test_a_priority_comes_back_as_one():
    found = incoming(stored(_SYS_MSG_PRIORITY_=b"7"), b"", "orders", "")
    assert (found.system_properties.priority, found.system_properties.message_type) == (7, Type.PRIORITY)
    assert not found.user_properties


def test_a_lite_topic_comes_back_as_one():
    found = incoming(stored(__LITE_TOPIC=b"s-7"), b"", "agents", "")
    assert (found.system_properties.lite_topic, found.system_properties.message_type) == ("s-7", Type.LITE)
    assert not found.user_properties


def test_a_message_of_a_retry_topic_names_it_in_its_handle():
    source = stored(topic=b"%RETRY%billing+orders", TIMER_DELIVER_MS=b"99", TRAN_MSG=b"true")
    handle = handle_of(source, "broker-a", 1, 2)
    assert parse_handle(str(handle)) == handle == ReceiptHandle(1, 2, True, "broker-a", 3, 17, 4_096)
    assert handle.fields("billing", "orders")["topic"] == "%RETRY%billing+orders"
    found = incoming(source, b"", "orders", "")
    assert found.system_properties.message_type == Type.TRANSACTION
    assert found.system_properties.message_id == offset_message_id(("10.0.0.8", 2), 4_096)


def test_deliveries_of_messages_in_order():
    assert deliveries_before("0 qo3%17 2;0 qo3%18 1;0 3 0") == {(3, 17): 2, (3, 18): 1}
    assert deliveries_before("") == {}


@pytest.mark.parametrize(
    "text", ["", "x", "1 2 3 0 0 b 4 5", "1 2 3 0 9 b 4 5 6", "1 -2 3 0 0 b 4 5 6", "1 2 3 0 0 b 4 ٣ 6", "9" * 19]
)
def test_a_malformed_handle_is_rejected(text):
    with pytest.raises(CallRejected) as caught:
        parse_handle(text)
    assert caught.value.code == Code.INVALID_RECEIPT_HANDLE


def test_bodies_that_producers_compressed():
    assert plain_body(stored(zlib.compress(b"long"), sys_flag=0x1)) == (b"long", True)
    assert plain_body(stored(zlib.compress(b"long"), sys_flag=0x301)) == (b"long", True)
    assert plain_body(stored(b"lz4 bytes", sys_flag=0x101)) == (b"lz4 bytes", False)
    assert plain_body(stored(b"broken", sys_flag=0x1)) == (b"broken", False)


def test_a_transaction_id_says_where_the_half_message_is():
    made = transaction_id(17, offset_message_id(("10.0.0.8", 2), 0xABCDEF), "broker-a")
    assert made == checked_id("17", str(0xABCDEF), "broker-a") == "11-ABCDEF-broker-a"
    assert parse_id(made) == (17, 0xABCDEF, "broker-a")
    assert parse_id("11-ABCDEF") == (17, 0xABCDEF, "")
    request = s.EndTransactionRequest(
        transaction_id=made, message_id="m", resolution=d.TransactionResolution.ROLLBACK,
        source=d.TransactionSource.SOURCE_SERVER_CHECK,
    )  # fmt: skip
    fields = decision_fields(request, "orders")
    assert (fields["commitOrRollback"], fields["fromTransactionCheck"]) == ("12", "true")
    assert (fields["tranStateTableOffset"], fields["commitLogOffset"]) == ("17", str(0xABCDEF))
    for wrong in ("", "11", "11-XYZ", "11-ABC\n", "-1-2", "1" * 16 + "-1"):
        with pytest.raises(CallRejected) as caught:
            parse_id(wrong)
        assert caught.value.code == Code.INVALID_TRANSACTION_ID
    with pytest.raises(CallRejected, match="neither COMMIT nor ROLLBACK"):
        decision_fields(s.EndTransactionRequest(transaction_id=made), "orders")


def test_names_have_their_namespace_at_the_broker():
    assert topic_of(resource("shop%orders", "shop")) == "shop%orders"
    assert topic_of(resource("orders", "")) == "orders"
    assert resource("shop%orders", "shop").name == "orders"


def test_messages_that_differ_in_no_field_of_the_request_are_one_batch():
    one = OutgoingMessage("orders", d.MessageType.NORMAL, "1", b"a\x01b\x02", b"body", 5)
    grouped = replace(one, type=d.MessageType.FIFO, message_group="g")
    later, delayed = replace(one, born_ms=6), replace(one, type=d.MessageType.DELAY)
    mqtt = replace(one, properties=b"originMqttTopic\x01orders/a\x02")
    large = replace(one, body=bytes(BATCH_BYTES_MAX - 100))
    for apart in (grouped, later, delayed, mqtt, replace(one, properties="é".encode() * 16_384)):
        assert batches([one, one, apart, one]) == [[one, one], [apart], [one]]
    assert batches([grouped, grouped, delayed, delayed]) == [[grouped, grouped], [delayed], [delayed]]
    assert batches([large, one, large, large]) == [[large, one], [large], [large]]
    fields, body = batch_request([one, one], 3)
    assert (fields["e"], fields["i"], fields["m"]) == ("3", "", "true")
    assert decode_batch(body) == [BatchMessage(b"body", [(b"a", b"b")])] * 2
