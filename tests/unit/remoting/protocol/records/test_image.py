"""Record images: they are the record except for what the broker adds; malformed ones are refused by number."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.errors import LocalMisuse, RemoteViolation
from remoting.protocol.records.image import (
    QUEUE_INDEX_ANY,
    check_image,
    client_id_of,
    encode_batch_image,
    encode_image,
    encode_mqtt_image,
    hide,
    image_views,
    iter_images,
    packet_id_of,
    show,
    stamp,
    wanted_queue,
)
from remoting.protocol.records.names import parent_topic
from remoting.protocol.records.record import (
    FLAG_MQTT,
    FLAG_RETAIN,
    FLAG_STAGED,
    HEADER_SIZE,
    MESSAGE,
    RecordView,
    body_codec,
    body_format,
    check_record,
    encode_record,
    header_of,
    tag_hash,
)

SMALL = st.binary(max_size=40)
QUEUE_IMAGE = st.fixed_dictionaries(
    {
        "flags": st.integers(0, 3),
        "queue_index": st.integers(0, 0xFFFF),
        "born_ms": st.integers(-(2**63), 2**63 - 1),
        "topic": SMALL,
        "keys": SMALL,
        "tags": SMALL,
        "properties": st.lists(st.tuples(SMALL, SMALL), max_size=20),
        "body": st.binary(max_size=200),
    }
)


@given(wanted=st.lists(QUEUE_IMAGE, max_size=6))
def test_images_back_to_back_are_read_one_by_one(wanted):
    images = image_views(b"".join([encode_image(**one) for one in wanted]))
    assert len(images) == len(wanted)
    for image, one in zip(images, wanted, strict=True):
        assert (image.flags, wanted_queue(image), image.born_ms, packet_id_of(image)) == (
            one["flags"], one["queue_index"], one["born_ms"], 0,
        )  # fmt: skip
        assert (image.topic, image.keys, image.tags, image.body) == (
            one["topic"], one["keys"], one["tags"], one["body"],
        )  # fmt: skip
        assert (image.properties(), image.mqtt_topic) == (one["properties"], None)


@given(
    one=QUEUE_IMAGE,
    dispatch=st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**63)), max_size=5),
)
def test_stamped_it_is_the_record_of_the_same_message(one, dispatch):
    (image,) = image_views(encode_image(**one))
    found = stamp(image, epoch=7, position=64, store_ms=9, dispatch=dispatch)
    wanted = encode_record(
        magic_type=MESSAGE, epoch=7, position=64, born_ms=one["born_ms"], store_ms=9, flags=one["flags"], count=1,
        dispatch=dispatch, counts=header_of(image).counts, tag_hash=tag_hash(one["tags"]), producer_seq=0,
        meta=bytes(image.meta), body=one["body"],
    )  # fmt: skip
    assert found == wanted
    assert check_record(found, 0, 64) == len(found)
    assert found[HEADER_SIZE + 16 * len(dispatch) :] == image.raw[HEADER_SIZE:], "the tail is the same bytes"


@given(
    topic=st.binary(min_size=1, max_size=60),
    payload=st.binary(max_size=100),
    client_id=st.binary(max_size=30),
    kind=st.sampled_from((bytes, bytearray, memoryview)),
)
def test_mqtt_images_carry_topic_and_client(topic, payload, client_id, kind):
    raw = encode_mqtt_image(topic, kind(payload), 1 | FLAG_RETAIN, 123, client_id)
    (image,) = image_views(raw)
    assert (image.flags, wanted_queue(image)) == (1 | FLAG_RETAIN | FLAG_MQTT, QUEUE_INDEX_ANY)
    assert (image.topic, image.mqtt_topic, image.body) == (parent_topic(topic), topic, payload)
    assert image.properties() == [(b"originMqttTopic", topic), (b"clientId", client_id)]
    by_hand = encode_image(
        flags=image.flags, born_ms=123, topic=parent_topic(topic), properties=image.properties(), body=payload
    )
    assert by_hand == raw
    more = encode_mqtt_image(topic, payload, 1, 5, client_id, properties=[(b"k", b"v")])
    assert image_views(more)[0].properties() == [*image.properties(), (b"k", b"v")]


GOOD = encode_mqtt_image(b"plant/7/temp", b"21.5", 1, 123, b"dev-1")
QUEUE = encode_image(flags=0, born_ms=1, topic=b"orders", body=b"b")
BATCHED = encode_batch_image(topic=b"metrics", queue_index=3, born_ms=5, body=b"packed", count=9, codec=2)


def bent(offset: int, form: str, value: int, image: bytes = GOOD) -> bytes:
    """One good image and one with a changed field."""
    changed = bytearray(image)
    struct.pack_into(form, changed, offset, value)
    return GOOD + bytes(changed)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (GOOD + b"x", "image 1 is cut short"),
        (GOOD[:-1], "image 0 is cut short"),
        (GOOD + GOOD[:32], "image 1 is cut short"),
        (bent(0, "<I", 0), "image 1 .*sizes contradict"),
        (bent(0, "<I", len(GOOD) + 8), "image 1 .*sizes contradict"),
        (bent(0, "<I", len(GOOD) - 1), "image 1.*sizes contradict"),
        (bent(40, "<I", 40), "image 1.*sizes contradict"),
        (bent(56, "<H", 1), "image 1.*sizes contradict"),
        (bent(58, "<H", 3), "image 1.*sizes contradict"),
        (bent(4, "<B", 3), "image 1: type"),
        (bent(4, "<I", 0), "image 1: type"),
        (bent(12, "<I", 0x10000), "only the broker can say"),
        (bent(16, "<Q", 8), "only the broker can say"),
        (bent(32, "<Q", 8), "only the broker can say"),
        (bent(68, "<I", 8), "only the broker can say"),
        (bent(72, "<Q", 8), "only the broker can say"),
        (bent(48, "<I", FLAG_MQTT | 0x20), "image 1: flags 0x28"),
        (bent(48, "<I", 0x10, QUEUE), "image 1: flags 0x10"),
        (bent(48, "<I", 0x111, BATCHED), "image 1: flags 0x111"),
        (bent(52, "<I", 2), "image 1: 2 messages, but it is no batch"),
        (bent(52, "<I", 0, BATCHED), "image 1: a batch of 0 messages"),
        (bent(52, "<I", 65_537, BATCHED), "image 1: a batch of 65537 messages"),
        (bent(80, "<H", 14), "image 1: property lengths"),
        (bent(88 + 5 + 3, "<B", 0), "image 1: the first property"),
        (bent(8, "<I", 1), "no QoS 2 publish"),
        (encode_image(flags=FLAG_MQTT, born_ms=0, topic=b"t", properties=[(b"k", b"v")], body=b""), "first property"),
        (encode_image(flags=FLAG_MQTT, born_ms=0, topic=b"t", body=b""), "first property"),
    ],
)
def test_malformed_images_are_named(body, reason):
    with pytest.raises(RemoteViolation, match=reason):
        image_views(body)


@given(raw=st.binary(max_size=300), damage=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=5))
def test_arbitrary_bytes_only_violate(raw, damage):
    body = bytearray(GOOD + BATCHED)
    for at, value in damage:
        body[at % len(body)] = value
    for one in (raw, bytes(body)):
        with contextlib.suppress(RemoteViolation):
            image_views(one)


def test_parts_too_long_are_our_callers_fault():
    with pytest.raises(LocalMisuse):
        encode_mqtt_image(b"t" * 65_530, b"", 0, 0, b"c")
    with pytest.raises(LocalMisuse):
        encode_image(flags=0, born_ms=0, topic=b"t" * 65_536, body=b"")


def test_a_batch_is_one_image_of_many_messages() -> None:
    packed = encode_batch_image(topic=b"metrics", queue_index=3, born_ms=5, body=b"packed", count=65_536, codec=2)
    image = check_image(packed, 0, 0)
    assert (image.type, image.count, wanted_queue(image)) == (2, 65_536, 3)
    assert (body_format(image.flags), body_codec(image.flags)) == (1, 2)
    assert (image.topic, image.body, image.born_ms, image.mqtt_topic) == (b"metrics", b"packed", 5, None)
    record = stamp(image, epoch=1, position=0, store_ms=2, dispatch=[(1, 5)])
    assert RecordView(record).dispatch() == [(1, 5)]
    for count in (0, 65_537):
        with pytest.raises(LocalMisuse, match="a batch of"):
            encode_batch_image(topic=b"t", queue_index=0, born_ms=0, body=b"", count=count, codec=0)


def test_only_the_body_of_a_batch_says_more_than_its_topic() -> None:
    for wrong in ({"keys": b"k"}, {"tags": b"g"}, {"properties": [(b"a", b"b")]}):
        changed = bytearray(encode_image(flags=0, born_ms=0, topic=b"t", body=b"b", **wrong))  # type: ignore[arg-type]
        changed[4], changed[49] = 2, 1
        with pytest.raises(RemoteViolation, match="in its body alone"):
            image_views(changed)


def test_a_qos_2_publish_carries_its_packet_id_and_whose_it_is() -> None:
    (image,) = image_views(encode_mqtt_image(b"a/b", b"x", 2, 5, b"dev-1", 65_535))
    assert (packet_id_of(image), image.count, client_id_of(image), image.mqtt_topic) == (65_535, 1, b"dev-1", b"a/b")
    (plain,) = image_views(encode_mqtt_image(b"a/b", b"x", 2, 5, b"dev-1"))
    assert (packet_id_of(plain), plain.count) == (0, 1)
    assert [one.mqtt_topic for one in iter_images(image.raw)] == [b"a/b"]


IMAGES = [
    (encode_mqtt_image(b"a/b", b"x", 5, 7, b"c"), 0, 0x0D),
    (encode_image(flags=2 | 9 << 16, queue_index=3, born_ms=7, topic=b"t", keys=b"k", tags=b"tag", body=b"yy"), 1, 2),
    (encode_batch_image(topic=b"t", queue_index=5, born_ms=7, body=b"packed", count=9, codec=2), 2, 0x21),
]


@pytest.mark.parametrize(("image", "kind", "low_flags"), IMAGES)
def test_what_is_shown_is_what_was_hidden(image: bytes, kind: int, low_flags: int) -> None:
    view = check_image(image, 0, 0)
    hidden = RecordView(hide(view, own=1 << 20))
    assert (hidden.flags & 0xFF, hidden.flags >> 8) == (FLAG_STAGED, view.flags >> 8)
    assert header_of(hidden).producer_seq == header_of(view).epoch | kind << 16 | low_flags << 24 | 1 << 52
    record = stamp(hidden, epoch=4, position=64, store_ms=9, dispatch=[(8, 1)])
    assert show(RecordView(record)) == image
