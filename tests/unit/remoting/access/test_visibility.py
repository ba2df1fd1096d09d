"""A message is judged by where it becomes visible, before it is stored as much as when it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.access import visibility
from remoting.protocol.records.image import check_image, encode_image, hide
from remoting.protocol.records.names import light_queue_name, parent_topic
from remoting.protocol.records.record import FLAG_MQTT, MQTT_TOPIC_KEY, RecordView

LIGHT = b"%LMQ%plant%2Fsecret%2Fk"


@pytest.mark.parametrize(
    ("topic", "properties", "resources"),
    [
        ("plant", {}, ["plant"]),
        ("plant", {b"originMqttTopic": b"plant/secret/k"}, ["plant/secret/k"]),
        ("plant", {b"originMqttTopic": b"plant/secret/k", b"delay-ms": b"500"}, ["plant/secret/k"]),
        ("other", {b"originMqttTopic": b"plant/secret/k"}, ["other"]),  # refused later; no MQTT client would get it
        ("%RETRY%g", {b"originMqttTopic": b"plant/secret/k"}, ["%RETRY%g"]),
        ("agents", {b"__LITE_TOPIC": b"secret/x"}, ["agents/secret/x"]),
        ("agents", {b"__LITE_TOPIC": b"a", b"originMqttTopic": b"agents/b"}, ["agents/a"]),
        ("plant", {b"INNER_MULTI_DISPATCH": LIGHT + b",%LMQ%a"}, ["plant", "plant/secret/k", "a"]),
        ("plant", {b"REAL_TOPIC": b"other", b"TIMER_DELAY_MS": b"5"}, ["plant"]),
    ],
)
def test_what_a_producer_sends(topic: str, properties: dict[bytes, bytes], resources: list[str]) -> None:
    assert visibility.of_send(topic, properties) == resources


@pytest.mark.parametrize(
    ("flags", "topic", "properties", "resources"),
    [
        (FLAG_MQTT, b"plant", [(MQTT_TOPIC_KEY, b"plant/7")], ["plant/7"]),
        (0, b"plant", [(MQTT_TOPIC_KEY, b"plant/7")], ["plant"]),
        (0, b"plant", [(b"INNER_MULTI_DISPATCH", LIGHT)], ["plant", "plant/secret/k"]),
        (0, b"plant", [(b"INNER_MULTI_DISPATCH", b"%LMQ%a"), (b"INNER_MULTI_DISPATCH", LIGHT)],
         ["plant", "a", "plant/secret/k"]),
    ],
)  # fmt: skip
def test_what_is_stored_and_what_waits(flags, topic, properties, resources) -> None:
    image = check_image(encode_image(flags=flags, born_ms=1, topic=topic, properties=properties, body=b"x"), 0, 0)
    assert visibility.of_image(image) == resources
    assert visibility.of_image(RecordView(hide(image))) == resources


_topics = st.sampled_from(["plant", "agents", "%RETRY%g"])
_properties = st.fixed_dictionaries(
    {},
    optional={
        MQTT_TOPIC_KEY: st.sampled_from([b"plant/a", b"agents/b/c"]),
        b"INNER_MULTI_DISPATCH": st.sampled_from([LIGHT, LIGHT + b"," + light_queue_name(b"x/+")]),
        b"own": st.just(b"v"),
    },
)


@given(_topics, _properties)
def test_a_request_is_judged_as_its_image(topic: str, properties: dict[bytes, bytes]) -> None:
    mqtt = properties.get(MQTT_TOPIC_KEY)
    is_mqtt = mqtt is not None and parent_topic(mqtt) == topic.encode()
    pairs = sorted(properties.items(), key=lambda pair: pair[0] != MQTT_TOPIC_KEY)
    image = encode_image(flags=FLAG_MQTT if is_mqtt else 0, born_ms=1, topic=topic.encode(), properties=pairs, body=b"")
    assert visibility.of_image(RecordView(image)) == visibility.of_send(topic, properties)
    assert visibility.names_queues(image) or not visibility.of_light_queues(image)
