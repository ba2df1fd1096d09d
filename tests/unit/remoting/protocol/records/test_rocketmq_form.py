"""One record as RocketMQ's clients read it, and the image of what they send."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.errors import LocalMisuse
from remoting.protocol.records.image import check_image, wanted_queue
from remoting.protocol.records.properties import MessageProperties, to_pairs
from remoting.protocol.records.record import FLAG_MQTT, RecordView
from remoting.protocol.records.rocketmq_form import NO_HOST, SentFields, request_pairs, sent_image, stored_message
from remoting.protocol.records.stored_message import StoredMessage, decode_stored
from tests.support.records import make_record

ORIGIN = ((b"MSG_REGION", b"DefaultRegion"), (b"TRACE_ON", b"true"), (b"CLUSTER", b"here"))
STORE_HOST = ("10.0.0.1", 10_911)


def record(topic: bytes = b"t", properties: tuple[tuple[bytes, bytes], ...] = (), flags: int = 0x30_0000) -> RecordView:
    return RecordView(
        make_record(
            topic=topic,
            properties=properties,
            flags=flags,
            position=640,
            born_ms=5,
            store_ms=6,
            dispatch=[(1, 2), (7, 4), (9, 0)],
        )
    )


def shown(view: RecordView) -> StoredMessage:
    raw = stored_message(view, 3, 9, STORE_HOST)
    message, total = decode_stored(raw)
    assert total == len(raw)
    return message


@pytest.mark.parametrize("topic", [b"t", b"%RETRY%" + b"g" * 200])
def test_short_and_long_topics(topic) -> None:
    message = shown(record(topic))
    assert (message.topic, message.body) == (topic, b"body")
    assert (message.queue_id, message.queue_offset, message.position) == (3, 9, 640)
    assert (message.born_ms, message.store_ms, message.sys_flag) == (5, 6, 0)
    assert (message.born_host, message.store_host) == (NO_HOST, STORE_HOST)
    raw = stored_message(record(topic), 3, 9, STORE_HOST)
    assert int.from_bytes(raw[8:12], "big") == zlib.crc32(b"body") & 0x7FFFFFFF


def test_hidden_properties_become_fields() -> None:
    pairs = ((b"__rmq.born", b"0a00000200000539"), (b"a", b"1"), (b"__rmq.flag", b"-7"), (b"__rmq.reconsume", b"2"))
    message = shown(record(properties=pairs))
    assert (message.born_host, message.flag, message.reconsume_times) == (("10.0.0.2", 1337), -7, 2)
    assert message.properties == [(b"a", b"1")]


@given(value=st.one_of(st.binary(max_size=40), st.integers(0, 2**70).map(lambda n: b"%d" % n)))
def test_hidden_properties_that_are_malformed_count_as_absent(value) -> None:
    pairs = tuple((b"__rmq." + name, value) for name in (b"flag", b"reconsume", b"born", b"other"))
    assert shown(record(properties=pairs)).properties == []


def test_what_our_record_keeps_elsewhere_is_added() -> None:
    message = shown(record(properties=((b"INNER_MULTI_DISPATCH", b"%LMQ%x,%LMQ%y"),), flags=FLAG_MQTT | 1))
    assert message.properties[1:] == [(b"qosLevel", b"1"), (b"INNER_MULTI_QUEUE_OFFSET", b"4,0")]


def test_no_property_can_inject_another_or_stop_a_consumer() -> None:
    pairs = ((b"evil", b"x\x02TAGS\x01red"), (b"long", b"v" * 40_000), (b"k", b"v"))
    assert shown(record(properties=pairs)).properties == [(b"evil", b"x?TAGS?red"), (b"k", b"v")]


def test_every_message_names_its_origin_once() -> None:
    view = record(properties=((b"CLUSTER", b"elsewhere"), (b"k", b"v")))
    message, _total = decode_stored(stored_message(view, 0, 0, STORE_HOST, ORIGIN))
    assert message.properties == [
        (b"k", b"v"), (b"MSG_REGION", b"DefaultRegion"), (b"TRACE_ON", b"true"), (b"CLUSTER", b"here"),
    ]  # fmt: skip
    message, _total = decode_stored(stored_message(view, 0, 0, STORE_HOST))
    assert message.properties == [(b"CLUSTER", b"elsewhere"), (b"k", b"v")]


@given(st.binary(min_size=1), st.none() | st.binary(min_size=1), st.none() | st.integers(0, 2**32 - 1))
def test_a_request_of_an_mqtt_client_can_be_answered(target, correlation, expiry_s) -> None:
    asked = to_pairs(MessageProperties(response_topic=target, correlation_data=correlation, expiry_s=expiry_s))
    shown = dict(request_pairs(asked))
    assert shown[b"REPLY_TO_CLIENT"].startswith(b"mqtt:")
    assert (shown[b"CORRELATION_ID"] == b"-") == (correlation is None)
    assert int(shown[b"TTL"]) == (3_000 if expiry_s is None else expiry_s * 1_000)
    assert request_pairs([*asked, (b"REPLY_TO_CLIENT", b"c")]) == [], "a RocketMQ client's request stays as it is"
    assert request_pairs([]) == []


def test_tags_and_keys_go_where_the_record_keeps_them() -> None:
    fields = SentFields(b"t", 3, 3, 9, b"0" * 16)
    image = sent_image(fields, 4, {b"TAGS": b"red", b"KEYS": b"k", b"own": b"v"}, b"body")
    message = check_image(image, 0, 0)
    assert (message.tags, message.keys, wanted_queue(message), message.body) == (b"red", b"k", 3, b"body")
    assert message.flags == 3 << 16
    assert bytes(message.meta).endswith(b"ownv__rmq.born" + b"0" * 16 + b"__rmq.flag4")
    with pytest.raises(LocalMisuse):
        sent_image(SentFields(b"t", 0, 0, 1 << 63, b""), 0, {}, b"")
