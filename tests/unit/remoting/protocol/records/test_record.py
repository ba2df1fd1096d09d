"""Records: encode, view, check and scan agree; any damaged byte and any wrong position is noticed."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.native.checksum import crc32c
from remoting.protocol.errors import CorruptRecord, LocalMisuse
from remoting.protocol.records import record
from remoting.protocol.records.record import (
    RecordView,
    check_record,
    encode_record,
    header_of,
    iter_records,
    publish_fields,
)

U32 = st.integers(0, 2**32 - 1)
SMALL = st.binary(max_size=40)


def flags_of(magic_type: int) -> int:
    """The body format a record of this type must have."""
    return record.FORMAT_ARROW << record.FLAG_FORMAT_SHIFT if magic_type == record.BATCH else 0


def count_of(magic_type: int) -> int:
    """A count it may have."""
    return 0 if magic_type == record.FILLER else 1


@st.composite
def parts(draw):
    """Arguments of encode_record, with the texts and properties they were made of."""
    properties = draw(st.lists(st.tuples(SMALL, SMALL), max_size=20))
    topic, keys, tags = draw(SMALL), draw(SMALL), draw(SMALL)
    raw = b"".join(part for pair in properties for part in pair)
    lengths = struct.pack(f"<{2 * len(properties)}H", *[len(part) for pair in properties for part in pair])
    magic_type = draw(st.sampled_from((record.MESSAGE, record.BATCH, record.CONTROL, record.FILLER)))
    arguments = {
        "magic_type": magic_type,
        "epoch": draw(U32),
        "position": draw(st.integers(0, 2**63)),
        "born_ms": draw(st.integers(-(2**63), 2**63 - 1)),
        "store_ms": draw(st.integers(-(2**63), 2**63 - 1)),
        "flags": draw(U32) & ~record.FLAG_MQTT & ~record.FLAG_FORMAT_MASK | flags_of(magic_type),
        "count": draw(st.integers(1, record.BATCH_COUNT_MAX)) if magic_type == record.BATCH else count_of(magic_type),
        "dispatch": draw(st.lists(st.tuples(U32, st.integers(0, 2**64 - 1)), max_size=20)),
        "counts": (len(properties), len(topic), len(keys), len(tags), len(raw)),
        "tag_hash": draw(U32),
        "producer_seq": draw(st.integers(0, 2**64 - 1)),
        "meta": lengths + topic + keys + tags + raw,
        "body": draw(st.binary(max_size=200)),
    }
    return arguments, (topic, keys, tags, properties)


def message(
    position: int = 0,
    body: bytes = b"21.5",
    epoch: int = 1,
    topic: bytes = b"plant/7/temp",
    magic_type: int = record.MESSAGE,
    second: tuple[bytes, bytes] = (record.CLIENT_ID_KEY, b"dev-1"),
) -> bytes:
    """An MQTT record as the broker writes it."""
    props = [(record.MQTT_TOPIC_KEY, topic), second]
    raw = b"".join(part for pair in props for part in pair)
    lengths = struct.pack("<4H", *[len(part) for pair in props for part in pair])
    return encode_record(
        magic_type=magic_type, epoch=epoch, position=position, born_ms=1_000, store_ms=1_001,
        flags=record.FLAG_MQTT | record.FLAG_RETAIN | 1 | flags_of(magic_type), count=count_of(magic_type),
        dispatch=[(7, 5), (9, 0), (12, 3)],
        counts=(2, 5, 0, 0, len(raw)), tag_hash=0, producer_seq=0, meta=lengths + b"plant" + raw, body=body,
    )  # fmt: skip


@given(given_parts=parts(), before=st.binary(max_size=20))
def test_every_field_comes_back(given_parts, before):
    arguments, (topic, keys, tags, properties) = given_parts
    raw = encode_record(**arguments)
    body_begin = (
        -(-(record.HEADER_SIZE + record.DISPATCH_SIZE * len(arguments["dispatch"]) + len(arguments["meta"])) // 8) * 8
    )
    assert len(raw) == -(-(body_begin + len(arguments["body"])) // 8) * 8
    assert len(raw) % 8 == 0
    buffer = before + raw
    assert check_record(buffer, len(before), arguments["position"]) == len(raw)
    view = RecordView(buffer, len(before))
    assert (view.topic, view.keys, view.tags, view.properties()) == (topic, keys, tags, properties)
    assert view.dispatch() == arguments["dispatch"]
    assert (bytes(view.body), bytes(view.meta), bytes(view.raw)) == (arguments["body"], arguments["meta"], raw)
    for name in ("epoch", "position", "born_ms", "store_ms", "flags", "counts", "tag_hash", "producer_seq"):
        assert getattr(header_of(view), name) == arguments[name], name
    for name in ("position", "born_ms", "store_ms", "flags", "count"):
        assert getattr(view, name) == arguments[name], name
    assert view.type == arguments["magic_type"] & 0xFF
    assert view.mqtt_topic is None
    flags = view.flags | (record.FLAG_PROPERTIES if properties else 0)
    assert publish_fields(buffer, len(before)) == (topic, view.body, flags, view.born_ms, len(raw))


def test_layout_is_the_documented_one():
    raw = message(position=4096)
    head = struct.unpack_from("<IIIIQqqIIIIHHHHHHIQ", raw)
    assert record.HEADER_SIZE == 80
    assert head[:2] == (len(raw), 0x4C4D5101)
    assert head[2] == crc32c(raw[4:8] + raw[12:])
    assert head[3:9] == (1, 4096, 1_000, 1_001, 4, len(raw) - 8)
    assert struct.unpack_from("<IIQ", raw, 80) == (7, 0, 5)
    assert raw[80 + 48 + 8 :].startswith(b"plantoriginMqttTopicplant/7/tempclientIddev-1")


def test_publish_fields_of_an_mqtt_record():
    raw = memoryview(message())
    topic, body, flags, born_ms, total = publish_fields(raw, 0)
    assert (topic, bytes(body), flags & 3, bool(flags & record.FLAG_RETAIN), born_ms, total) == (
        b"plant/7/temp", b"21.5", 1, True, 1_000, len(raw),
    )  # fmt: skip
    assert type(body) is memoryview
    assert RecordView(raw).mqtt_topic == b"plant/7/temp"
    with pytest.raises(CorruptRecord):
        publish_fields(raw[:40], 0)


@pytest.mark.parametrize("key", [b"unit", b"delay-ms", b"clientIdX"])
def test_a_row_of_spark_has_no_client_id_and_its_one_property_is_said(key):
    flags = [publish_fields(message(second=second), 0)[2] for second in ((key, b"v"), (record.CLIENT_ID_KEY, b"c"))]
    assert [flag & record.FLAG_PROPERTIES for flag in flags] == [record.FLAG_PROPERTIES, 0]


@pytest.mark.parametrize("magic", [record.MESSAGE, record.BATCH, record.CONTROL, record.FILLER])
def test_every_single_bit_flip_is_noticed(magic):
    good = message(magic_type=magic, position=64)
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecord):
            check_record(bad, 0, 64)
        with pytest.raises(CorruptRecord):
            check_record(bad, 0, None)


@pytest.mark.parametrize(
    ("raw", "position", "reason"),
    [
        (b"", 0, "too few"),
        (bytes(79), 0, "too few"),
        (bytes(200), 0, "magic 0x00000000"),
        (message(position=8), 0, "says position 8, it stands at 0"),
        (message()[:-8], 0, "passes the"),
        (message(magic_type=record.BATCH)[:52] + bytes(4) + message()[56:], 0, "0 messages with flags .* type 2"),
        (message()[:52] + b"\x02" + message()[53:], 0, "2 messages with flags .* type 1"),
    ],
)
def test_the_first_failing_check_is_named(raw, position, reason):
    with pytest.raises(CorruptRecord, match=reason):
        check_record(raw, 0, position)


def test_a_forged_total_of_zero_does_not_hold_a_scan_up():
    """CRC32C of nothing is zero, so a zero total and a zero checksum would match for ever."""
    forged = bytearray(80)
    struct.pack_into("<II", forged, 0, 0, record.MESSAGE)
    with pytest.raises(CorruptRecord, match="contradict"):
        check_record(forged, 0, 0)


def test_position_may_be_left_out():
    assert check_record(message(position=8), 0, None)


def test_iter_records_walks_a_blob():
    records = [message(body=b"x" * size) for size in range(20)]
    blob = b"".join(records)
    assert [bytes(view.body) for view in iter_records(blob)] == [b"x" * size for size in range(20)]
    assert list(iter_records(b"")) == []
    with pytest.raises(CorruptRecord):
        list(iter_records(blob[:-8]))
    with pytest.raises(CorruptRecord):
        list(iter_records(bytes(200)))


@pytest.mark.parametrize(
    "change",
    [
        {"counts": (2, 6, 0, 0, 40)},
        {"dispatch": [(-1, 0)]},
        {"epoch": 2**32},
        {"dispatch": [(0, 0)] * 70_000},
        {"magic_type": 7},
    ],
)
def test_contradictory_parts_are_our_callers_fault(change):
    arguments = {
        "magic_type": record.MESSAGE, "epoch": 0, "position": 0, "born_ms": 0, "store_ms": 0, "flags": 0, "count": 1,
        "dispatch": [], "counts": (0, 1, 0, 0, 0), "tag_hash": 0, "producer_seq": 0, "meta": b"t", "body": b"",
    }  # fmt: skip
    with pytest.raises(LocalMisuse):
        encode_record(**(arguments | change))


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (b"", 0),
        (b"TagA", 2598919),
        (b"hello world", 1794106052),
        ("größe".encode(), 98762257),
        ("😀".encode(), 1772899),
    ],
)
def test_tag_hash_is_javas(tags, expected):
    assert record.tag_hash(tags) == expected


@given(raw=st.binary(max_size=400), damage=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6))
def test_arbitrary_bytes_are_only_corrupt(raw, damage):
    bent = bytearray(message())
    for at, value in damage:
        bent[at % len(bent)] = value
    for blob in (raw, bytes(bent)):
        for read in (
            lambda blob=blob: check_record(blob, 0, 0),
            lambda blob=blob: publish_fields(blob, 0),
            lambda blob=blob: [
                (v.topic, v.keys, v.tags, v.properties(), v.dispatch(), v.mqtt_topic, v.body, v.meta)
                for v in iter_records(blob)
            ],
        ):
            with contextlib.suppress(CorruptRecord):
                read()
