"""The vectorised decode agrees, row by row, with the record's own view."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from remoting.protocol.bodies import pull_body
from remoting.protocol.records import image
from remoting.protocol.records.record import FLAG_MQTT, RecordView
from spark_connector.columns.arrow import decode
from spark_connector.options.schema import COLUMN_TYPES
from spark_connector.queues import QueueKey
from tests.unit.spark_connector.toy_broker import encode, make_entry
from tests.unit.spark_connector.twins import twin  # noqa: F401 - every test runs on both twins

ARROW = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "boolean": pa.bool_(),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
SCHEMA = pa.schema([(name, ARROW[type_]) for name, type_ in COLUMN_TYPES.items()])
KEY = QueueKey("t", "broker-t", 3)

text = st.binary(max_size=12) | st.text(max_size=6).map(str.encode)
names = st.sampled_from([b"clientId", b"mqttContentType", b"traceparent", b"Clientid", b"x"]) | text
plain = st.builds(
    image.encode_image,
    flags=st.integers(0, 3),
    queue_index=st.just(0),
    born_ms=st.integers(0, 2**40),
    topic=text,
    keys=text,
    tags=text,
    properties=st.lists(st.tuples(names, text), max_size=4),
    body=st.binary(max_size=40),
)
mqtt = st.builds(
    image.encode_mqtt_image,
    st.sampled_from([b"a/b", b"a/c", "a/é".encode(), b"b"]),
    st.binary(max_size=40),
    st.integers(0, 7),
    st.integers(0, 2**40),
    text,
)


def expected(view: RecordView, offset: int) -> dict[str, Any]:
    """One row, decoded slowly."""

    def words(raw: bytes | None) -> str | None:
        return None if raw is None else raw.decode("utf-8", "replace")

    pairs = view.properties()
    last = dict(pairs)
    over_mqtt = bool(view.flags & FLAG_MQTT)
    return {
        "topic": words(view.topic),
        "mqttTopic": words(view.mqtt_topic),
        "queueId": 3,
        "queueOffset": offset,
        "broker": "broker-t",
        "key": words(view.keys or None),
        "tag": words(view.tags or None),
        "body": bytes(view.body),
        "bornTimestamp": view.born_ms * 1000,
        "storeTimestamp": view.store_ms * 1000,
        "clientId": words(last.get(b"clientId")),
        "qos": view.flags & 3 if over_mqtt else None,
        "retained": bool(view.flags & 4) if over_mqtt else None,
        "contentType": words(last.get(b"mqttContentType")),
        "properties": [(words(key), words(value)) for key, value in pairs],
        "traceparent": words(last.get(b"traceparent")),
    }


def pulled(records: list[bytes], first: int = 5) -> pull_body.PulledRange:
    """Records as they arrive from the broker."""
    result = pull_body.QueueRecords(1, 0, first, first + len(records), 0, 99, records)
    return pull_body.decode_range_pull_reply(pull_body.encode_range_pull_reply(result))


def rows(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    """Batches as rows, times as numbers."""
    found = []
    for batch in batches:
        batch.validate(full=True)
        for name in ("bornTimestamp", "storeTimestamp"):
            at = batch.schema.get_field_index(name)
            batch = batch.set_column(at, name, batch.column(at).cast(pa.int64()))
        found += batch.to_pylist()
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(plain | mqtt, max_size=12))
def test_row_by_row(raw: list[bytes]) -> None:
    entries = image.image_views(b"".join(raw))
    records = [encode(entry, number) for number, entry in enumerate(entries)]
    wanted = [expected(RecordView(one), 5 + number) for number, one in enumerate(records)]
    assert rows(list(decode(pulled(records), KEY, SCHEMA))) == wanted


@settings(max_examples=30, deadline=None)
@given(st.lists(plain | mqtt, max_size=12), st.sets(st.integers(0, 11)))
def test_records_with_given_offsets(raw: list[bytes], chosen: set[int]) -> None:
    """What a filter leaves: fewer records, each at its offset."""
    entries = image.image_views(b"".join(raw))
    records = {number: encode(entry, number) for number, entry in enumerate(entries) if number in chosen}
    sparse = pulled(list(records.values()))
    sparse.offsets = memoryview(b"".join(number.to_bytes(4, "little") for number in records))
    wanted = [expected(RecordView(one), 5 + number) for number, one in records.items()]
    assert rows(list(decode(sparse, KEY, SCHEMA))) == wanted


def test_other_names_of_columns() -> None:
    schema = pa.schema([("brokerName", pa.string()), ("tags", pa.string())])
    (batch,) = decode(pulled([encode(make_entry("a", b"x", mqtt=False))]), KEY, schema)
    assert batch.to_pylist() == [{"brokerName": "broker-t", "tags": "t"}]


def test_projection_keeps_the_order_asked() -> None:
    schema = pa.schema([("body", pa.binary()), ("queueOffset", pa.int64())])
    (batch,) = decode(pulled([encode(make_entry("a", b"x"))]), KEY, schema)
    assert batch.schema == schema
    assert batch.to_pylist() == [{"body": b"x", "queueOffset": 5}]


def test_a_key_of_kafkas_columns_is_what_was_sent() -> None:
    """Kafka's jobs have keys that are not text: numbers, Avro."""
    keys = [b"\xff\x00\xfe", b"", b"k"]
    raw = [
        image.encode_image(flags=0, queue_index=0, born_ms=1, topic=b"t", keys=key, tags=b"", properties=[], body=b"x")
        for key in keys
    ]
    blobs = [encode(entry) for entry in image.image_views(b"".join(raw))]
    (batch,) = decode(pulled(blobs), KEY, pa.schema([("key", pa.binary())]))
    assert batch.to_pylist() == [{"key": b"\xff\x00\xfe"}, {"key": None}, {"key": b"k"}]
