"""The MQTT topic of a sent message, compressed bodies, and requests in both forms."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.rocketmq import mqtt_messages
from broker.rocketmq.mqtt_messages import (
    answer_of,
    mqtt_image,
    mqtt_topic_of,
    plain_body,
    response_image,
)
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.image import check_image
from remoting.protocol.records.properties import MessageProperties, from_pairs, to_pairs
from remoting.protocol.records.record import FLAG_MQTT
from remoting.protocol.records.rocketmq_form import request_pairs

ANSWERS = mqtt_messages.reply_topic("DefaultCluster")
REQUEST = {b"originMqttTopic": b"plant/7/ask", b"REPLY_TO_CLIENT": b"10.0.0.1@12#9", b"CORRELATION_ID": b"c-1"}


@pytest.mark.parametrize(
    ("topic", "wanted"),
    [("plant", b"plant/7/ask"), ("%RETRY%readers", None), ("%DLQ%readers", None), ("%RETRY%readers+plant", None)],
)
def test_only_a_topic_below_the_one_sent_to_makes_an_mqtt_message(topic: str, wanted: bytes | None) -> None:
    assert mqtt_topic_of(topic, REQUEST, batch=False) == wanted
    assert mqtt_topic_of(topic, {}, batch=False) is None


@pytest.mark.parametrize("batch", [False, True])
def test_the_mqtt_topic_of_another_topic_is_refused_instead_of_reaching_nobody(batch: bool) -> None:
    with pytest.raises(Refused, match="the topic of plant/7/ask is plant, not other") as refused:
        mqtt_topic_of("other", REQUEST, batch=batch)
    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize(
    ("properties", "batch", "reason"),
    [
        ({b"originMqttTopic": b"plant/+"}, False, "originMqttTopic"),
        ({}, True, "one by one"),
        ({b"DELAY": b"3"}, False, "delay-ms"),
        ({b"TRAN_MSG": b"true"}, False, "transaction"),
        ({b"qosLevel": b"3"}, False, "qosLevel"),
    ],
)
def test_what_mqtt_messages_do_not_have_is_refused(properties, batch, reason) -> None:
    with pytest.raises(Refused, match=reason):
        mqtt_topic_of("plant", REQUEST | properties, batch=batch)


def test_an_mqtt_image_has_the_topic_first_and_the_address_of_its_answer() -> None:
    properties = REQUEST | {b"TAGS": b"t", b"KEYS": b"k", b"qosLevel": b"2", b"own": b"v"}
    image = check_image(mqtt_image(b"plant/7/ask", properties, b"?", 5, ANSWERS), 0, 0)
    assert (image.topic, image.mqtt_topic, image.flags) == (b"plant", b"plant/7/ask", FLAG_MQTT | 2)
    assert (image.tags, image.keys, image.body, image.born_ms) == (b"t", b"k", b"?", 5)
    found = from_pairs(image.properties())
    assert found is not None
    assert found.response_topic == b"DefaultCluster_REPLY_TOPIC/10.0.0.1@12%239"
    assert (found.correlation_data, found.user) == (b"c-1", [(b"own", b"v")])
    assert request_pairs(image.properties()) == [], "a RocketMQ client's request stays as it is"


def test_a_body_compressed_by_the_producer_is_stored_plain() -> None:
    packed = zlib.compress(b"a" * 5_000)
    assert plain_body(0, packed, 10) is packed
    assert plain_body(0x1, packed, 5_000) == plain_body(0x301, packed, 5_000) == b"a" * 5_000
    for flag, body, limit in ((0x1, packed, 4_999), (0x1, packed[:-1], 5_000), (0x101, packed, 5_000), (1, b"x", 9)):
        with pytest.raises(Refused):
            plain_body(flag, body, limit)


@given(st.text(min_size=1).filter(lambda text: "\x01" not in text and "\x02" not in text), st.binary(min_size=1))
def test_an_answer_names_the_client_and_the_request(client_id: str, correlation: bytes) -> None:
    request = REQUEST | {b"REPLY_TO_CLIENT": client_id.encode(), b"CORRELATION_ID": correlation}
    found = from_pairs(check_image(mqtt_image(b"plant/7/ask", request, b"", 0, ANSWERS), 0, 0).properties())
    assert found is not None
    assert found.response_topic is not None
    pairs = to_pairs(MessageProperties(correlation_data=correlation))
    if is_utf8(correlation) and b"\x01" not in correlation and b"\x02" not in correlation:
        answer = answer_of(found.response_topic, ANSWERS, pairs)
        assert answer.client_id == client_id
        assert answer.properties[b"CORRELATION_ID"] == correlation
    else:
        with pytest.raises(Refused):
            answer_of(found.response_topic, ANSWERS, pairs)


def is_utf8(value: bytes) -> bool:
    """Whether a RocketMQ client's text can be these bytes."""
    return value.decode("utf-8", "replace").encode() == value


@pytest.mark.parametrize("topic", [b"other/client", ANSWERS.encode()])
def test_other_messages_are_no_answers(topic: bytes) -> None:
    correlated = to_pairs(MessageProperties(correlation_data=b"c"))
    for there, pairs in ((topic, correlated), (ANSWERS.encode() + b"/client", [])):
        with pytest.raises(Refused) as refused:
            answer_of(there, ANSWERS, pairs)
        assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL


@given(st.binary(min_size=1), st.none() | st.binary(min_size=1), st.none() | st.integers(0, 2**32 - 1))
def test_a_request_of_an_mqtt_client_is_answered_on_its_response_topic(target, correlation, expiry_s) -> None:
    asked = MessageProperties(response_topic=target, correlation_data=correlation, expiry_s=expiry_s)
    shown = dict(request_pairs(to_pairs(asked)))
    try:
        topic, raw = response_image({**shown, b"own": b"v", b"mqttExpiry": b"9"}, b"!", 7)
    except Refused:
        return  # no topic that may be published to
    found = check_image(raw, 0, 0)
    assert (topic, found.mqtt_topic, found.flags, found.body) == (target, target, FLAG_MQTT | 1, b"!")
    answer = from_pairs(found.properties())
    assert answer is not None
    assert (answer.correlation_data, answer.expiry_s) == (correlation, None)
    assert answer.user == [(b"own", b"v"), (b"mqttExpiry", b"9")]


@pytest.mark.parametrize(
    ("sender", "correlation"),
    [(b"mqtt:", b"-"), (b"mqtt:a/#", b"-"), (b"mqtt:$SYS/x", b"-"), (b"mqtt:a", b"?")],
)
def test_an_answer_to_no_request_is_refused(sender: bytes, correlation: bytes) -> None:
    with pytest.raises(Refused):
        response_image({b"REPLY_TO_CLIENT": sender, b"CORRELATION_ID": correlation}, b"", 0)


def test_properties_that_do_not_fit_are_refused() -> None:
    own = {b"CORRELATION_ID": b"A" * 70_000}
    with pytest.raises(Refused, match="longer than its field"):
        response_image(own | {b"REPLY_TO_CLIENT": b"mqtt:a"}, b"", 0)
    with pytest.raises(Refused, match="longer than its field"):
        mqtt_image(b"a/b", own | {b"REPLY_TO_CLIENT": b"client"}, b"", 0, ANSWERS)
