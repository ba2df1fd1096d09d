"""Append bodies: entries round-trip with their meta intact; malformed ones are refused by entry number."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.bodies import append_body as ab
from remoting.protocol.errors import LocalMisuse, RemoteViolation
from remoting.protocol.records.names import parent_topic
from remoting.protocol.records.record import FLAG_MQTT, FLAG_RETAIN, MESSAGE, RecordView, encode_record

SMALL = st.binary(max_size=40)
QUEUE_ENTRY = st.fixed_dictionaries(
    {
        "kind": st.just(ab.KIND_QUEUE),
        "flags": st.integers(0, 255),
        "queue_index": st.integers(0, 0xFFFF),
        "born_ms": st.integers(-(2**63), 2**63 - 1),
        "topic": SMALL,
        "keys": SMALL,
        "tags": SMALL,
        "properties": st.lists(st.tuples(SMALL, SMALL), max_size=20),
        "body": st.binary(max_size=200),
    }
)


def view(entry: ab.AppendEntry) -> RecordView:
    """The record the broker makes of an entry: it copies meta and body as they stand."""
    counts = (entry.n_props, entry.topic_len, entry.keys_len, entry.tags_len, entry.props_len)
    return RecordView(
        encode_record(
            magic_type=MESSAGE, epoch=0, position=0, born_ms=entry.born_ms, store_ms=0, flags=entry.flags, count=1,
            dispatch=(),
            counts=counts, tag_hash=0, producer_seq=0, meta=entry.meta, body=entry.body,
        )
    )  # fmt: skip


@given(wanted=st.lists(QUEUE_ENTRY, max_size=6))
def test_queue_entries_round_trip_into_records(wanted):
    entries = ab.decode_entries(ab.encode_entries([ab.encode_entry(**one) for one in wanted]))
    assert len(entries) == len(wanted)
    for entry, one in zip(entries, wanted, strict=True):
        record = view(entry)
        assert (entry.kind, entry.flags, entry.queue_index, entry.born_ms) == (
            one["kind"], one["flags"], one["queue_index"], one["born_ms"],
        )  # fmt: skip
        assert (entry.topic, entry.tags, entry.body) == (one["topic"], one["tags"], one["body"])
        assert entry.mqtt_topic is None
        assert (record.topic, record.keys, record.tags, record.properties()) == (
            one["topic"], one["keys"], one["tags"], one["properties"],
        )  # fmt: skip


@given(
    topic=st.binary(min_size=1, max_size=60),
    payload=st.binary(max_size=100),
    client_id=st.binary(max_size=30),
    kind=st.sampled_from((bytes, bytearray, memoryview)),
)
def test_mqtt_entries_carry_topic_and_client(topic, payload, client_id, kind):
    raw = ab.encode_mqtt_entry(topic, kind(payload), 1 | FLAG_RETAIN, 123, client_id)
    (entry,) = ab.decode_entries(ab.encode_entries([raw]))
    assert (entry.kind, entry.flags, entry.queue_index) == (
        ab.KIND_MQTT,
        1 | FLAG_RETAIN | FLAG_MQTT,
        ab.QUEUE_INDEX_ANY,
    )
    assert (entry.topic, entry.mqtt_topic, entry.body) == (parent_topic(topic), topic, payload)
    record = view(entry)
    assert record.mqtt_topic == topic
    assert record.properties() == [(b"originMqttTopic", topic), (b"clientId", client_id)]
    by_hand = ab.encode_entry(
        kind=ab.KIND_MQTT, flags=entry.flags, queue_index=ab.QUEUE_INDEX_ANY, born_ms=123, topic=parent_topic(topic),
        properties=record.properties(), body=payload,
    )  # fmt: skip
    assert by_hand == raw


GOOD = ab.encode_mqtt_entry(b"plant/7/temp", b"21.5", 1, 123, b"dev-1")


def bent(offset: int, form: str, value: int) -> bytes:
    """A body of one good and one entry with a changed field."""
    entry = bytearray(GOOD)
    struct.pack_into(form, entry, offset, value)
    return ab.encode_entries([GOOD, bytes(entry)])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "has no count"),
        (b"\x05\0\0\0", "cannot hold 5 entries"),
        (b"\xff\xff\xff\xff" + GOOD, "cannot hold 4294967295 entries"),
        (ab.encode_entries([GOOD]) + b"x", "1 bytes follow"),
        (ab.encode_entries([GOOD])[:-1], "entry 0: sizes contradict"),
        (bent(0, "<I", 0), "entry 1: sizes contradict"),
        (bent(0, "<I", len(GOOD) + 1), "entry 1: sizes contradict"),
        (bent(28, "<I", 5), "entry 1: sizes contradict"),
        (bent(16, "<H", 3), "entry 1: sizes contradict"),
        (bent(4, "<B", 3), "entry 1: kind 3"),
        (bent(32, "<H", 14), "entry 1: property lengths"),
        (bent(40 + 5, "<B", 0), "entry 1: the first property"),
        (ab.encode_entries([GOOD, GOOD[:32]]), "entry 1: sizes contradict"),
        (
            ab.encode_entries(
                [
                    ab.encode_entry(
                        kind=0, flags=0, queue_index=0, born_ms=0, topic=b"t", properties=[(b"k", b"v")], body=b""
                    )
                ]
            ),
            "entry 0: the first property",
        ),
        (
            ab.encode_entries([ab.encode_entry(kind=0, flags=0, queue_index=0, born_ms=0, topic=b"t", body=b"")]),
            "first property",
        ),
    ],
)
def test_malformed_entries_are_named(body, reason):
    with pytest.raises(RemoteViolation, match=reason):
        ab.decode_entries(body)


def test_an_entry_that_ends_in_the_next_ones_header_is_cut_short():
    body = ab.encode_entries([GOOD, bytes(32)])
    with pytest.raises(RemoteViolation):
        ab.decode_entries(body)
    with pytest.raises(RemoteViolation, match="entry 1 is cut short"):
        ab.decode_entries((2).to_bytes(4, "little") + GOOD + GOOD[:20])


@given(raw=st.binary(max_size=300), damage=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=5))
def test_arbitrary_bytes_only_violate(raw, damage):
    body = bytearray(ab.encode_entries([GOOD, GOOD]))
    for at, value in damage:
        body[at % len(body)] = value
    for one in (raw, b"\1\0\0\0" + raw, bytes(body)):
        for decode in (ab.decode_entries, ab.decode_append_reply, ab.decode_unwanted):
            with contextlib.suppress(RemoteViolation):
                decode(one)


def test_parts_too_long_are_our_callers_fault():
    with pytest.raises(LocalMisuse):
        ab.encode_mqtt_entry(b"t" * 65_530, b"", 0, 0, b"c")
    with pytest.raises(LocalMisuse):
        ab.encode_entry(kind=1, flags=0, queue_index=0, born_ms=0, topic=b"t" * 65_536, body=b"")


@given(
    end=st.integers(-(2**63), 2**63 - 1),
    placed=st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(-1, 2**63 - 1))),
)
def test_replies_round_trip(end, placed):
    assert ab.decode_append_reply(ab.encode_append_reply(end, placed)) == (end, placed)


@given(unwanted=st.lists(st.booleans(), max_size=40))
def test_replies_say_what_nobody_has_subscribed_to(unwanted):
    placed = [(1, number) for number in range(len(unwanted))]
    body = ab.encode_append_reply(9, placed, unwanted)
    assert ab.decode_unwanted(body) == {number for number, one in enumerate(unwanted) if one}
    assert ab.decode_append_reply(body) == (9, placed)
    assert ab.decode_unwanted(ab.encode_append_reply(9, placed)) == frozenset()


def test_the_bits_of_a_reply_are_those_of_the_format():
    """docs/formats/private-requests.md: eight in a byte, the lowest first."""
    body = ab.encode_append_reply(0, [(0, 0)] * 9, [True, False, True, *[False] * 5, True])
    assert body[-2:] == b"\x05\x01"
    with pytest.raises(RemoteViolation):
        ab.decode_unwanted(body[:-1])


def test_a_batch_is_one_entry_of_many_messages() -> None:
    packed = ab.encode_batch_entry(topic=b"metrics", queue_index=3, born_ms=5, body=b"packed", count=65_536, codec=2)
    (entry,) = ab.decode_entries(ab.encode_entries([packed]))
    assert (entry.kind, entry.flags, entry.count, entry.queue_index) == (ab.KIND_BATCH, 0x21, 65_536, 3)
    assert (entry.topic, entry.body, entry.born_ms, entry.mqtt_topic) == (b"metrics", b"packed", 5, None)
    for count in (0, 65_537):
        with pytest.raises(LocalMisuse, match="a batch of"):
            ab.encode_batch_entry(topic=b"t", queue_index=0, born_ms=0, body=b"", count=count, codec=0)


def test_only_a_batch_says_a_number_of_messages_and_only_its_body_says_more() -> None:
    def changed(kind: int, more: int, **fields: object) -> bytes:
        entry = bytearray(
            ab.encode_entry(
                kind=1,
                flags=0,
                queue_index=0,
                born_ms=0,
                topic=b"t",
                body=b"b",
                **fields,  # type: ignore[arg-type]
            )
        )
        entry[4] = kind
        entry[26:28] = more.to_bytes(2, "little")
        return ab.encode_entries([bytes(entry)])

    assert ab.decode_entries(changed(2, 1))[0].count == 2
    with pytest.raises(RemoteViolation, match="2 messages, but it is no batch"):
        ab.decode_entries(changed(1, 1))
    mqtt = bytearray(ab.encode_mqtt_entry(b"a/b", b"x", 1, 2, b"client"))
    mqtt[26] = 1
    with pytest.raises(RemoteViolation, match="no QoS 2 publish"):
        ab.decode_entries(ab.encode_entries([bytes(mqtt)]))
    for wrong in ({"keys": b"k"}, {"tags": b"g"}, {"properties": [(b"a", b"b")]}):
        with pytest.raises(RemoteViolation, match="in its body alone"):
            ab.decode_entries(changed(2, 0, **wrong))


def test_a_qos_2_publish_carries_its_packet_id_and_whose_it_is() -> None:
    (entry,) = ab.decode_entries(ab.encode_entries([ab.encode_mqtt_entry(b"a/b", b"x", 2, 5, b"dev-1", 65_535)]))
    assert (entry.packet_id, entry.count, entry.client_id, entry.mqtt_topic) == (65_535, 1, b"dev-1", b"a/b")
    (plain,) = ab.decode_entries(ab.encode_entries([ab.encode_mqtt_entry(b"a/b", b"x", 2, 5, b"dev-1")]))
    assert (plain.packet_id, plain.count) == (0, 1)
