"""Rows as batch entries: every row once, in order, with all its fields; what does not fit a batch is named."""

from __future__ import annotations

import pyarrow as pa
import pytest

from remoting.batches import BatchRow, body
from remoting.protocol.records.image import QUEUE_INDEX_ANY, image_views, wanted_queue
from remoting.protocol.records.record import body_codec
from spark_connector.errors import OptionError
from spark_connector.writing import row_encoder as batch_entries
from spark_connector.writing.row_encoder import EncodedRows, encode_batches

MAP = pa.map_(pa.string(), pa.string())


def rows_of(encoded: EncodedRows, queues: tuple[int, ...] | None = None) -> list[list[BatchRow]]:
    """Rows of each image; the images are checked as a broker does."""
    entries = image_views(encoded.data)
    found = []
    for index, entry in enumerate(entries):
        queue = QUEUE_INDEX_ANY if queues is None else queues[index]
        assert (entry.type, wanted_queue(entry), entry.topic, entry.born_ms) == (2, queue, b"t", 77)
        assert entry.count == encoded.rows(index, index + 1)
        batch = body.decode(entry.body, body_codec(entry.flags), entry.count)
        found.append(body.to_rows(batch, entry.born_ms))
    return found


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_every_row_is_in_one_record(codec: str) -> None:
    columns = {
        "body": pa.array(["a", None, "c", "d", "e"]),
        "key": pa.array([b"k", None, b"", b"x", None], pa.binary()),
        "tag": pa.array([None] * 5, pa.string()),
        "properties": pa.array(
            [[("p", "1"), ("q", None)], None, [], [("originMqttTopic", "a/b"), ("r", "2")], []], MAP
        ),
    }
    encoded = encode_batches(columns, "t", codec, 3, 77)
    assert rows_of(encoded) == [
        [
            BatchRow(b"a", 77, b"k", b"", ((b"p", b"1"), (b"q", b""))),
            BatchRow(b"", 77),
            BatchRow(b"c", 77),
        ],
        [BatchRow(b"d", 77, b"x", b"", ((b"r", b"2"),)), BatchRow(b"e", 77)],
    ]
    assert encoded.rows(0, 2) == 5


def test_slices_are_written_as_what_they_contain() -> None:
    whole = pa.record_batch(
        {
            "body": pa.array([b"%d" % n for n in range(100)]),
            "properties": pa.array([[("n", str(n))] if n % 2 else [] for n in range(100)], MAP),
        }
    ).slice(51, 4)
    encoded = encode_batches({name: whole.column(name) for name in ("body", "properties")}, "t", "lz4", 10, 77)
    assert rows_of(encoded) == [
        [BatchRow(b"%d" % n, 77, properties=((b"n", b"%d" % n),) if n % 2 else ()) for n in range(51, 55)]
    ]


@pytest.mark.parametrize("skip", [0, 1])
def test_columns_that_are_properties_are_behind_those_of_the_map(skip: int) -> None:
    pairs = [[("p", "1"), ("traceparent", "old")], None, [("q", "2")], [("traceparent", "old")]]
    columns = {
        "body": pa.array([b"a", b"b", b"c", b"d"]),
        "properties": pa.array(pairs, MAP),
        "contentType": pa.array([None, "text/50%", "b", None]),
        "traceparent": pa.array(["new", None, "other", None]),
    }
    wanted = [
        ((b"p", b"1"), (b"traceparent", b"new")),
        ((b"mqttContentType", b"text/50%25"),),
        ((b"q", b"2"), (b"mqttContentType", b"b"), (b"traceparent", b"other")),
        (),
    ]
    whole = pa.record_batch(columns).slice(skip)
    (rows,) = rows_of(encode_batches({name: whole.column(name) for name in columns}, "t", "none", 10, 77))
    assert [row.properties for row in rows] == wanted[skip:]
    del columns["properties"]
    (rows,) = rows_of(encode_batches(columns, "t", "none", 10, 77))
    assert [dict(row.properties).get(b"traceparent") for row in rows] == [b"new", None, b"other", None]


def test_columns_without_a_value_are_left_out() -> None:
    columns = {"body": pa.array([b"x"]), "properties": pa.array([[("originMqttTopic", "a")]], MAP)}
    (rows,) = rows_of(encode_batches(columns, "t", "none", 10, 77))
    assert rows == [BatchRow(b"x", 77)]
    nothing = encode_batches({"body": pa.array([], pa.binary())}, "t", "none", 10, 77)
    assert (len(nothing), nothing.rows(0, 0)) == (0, 0)


def test_rows_of_each_queue_make_records_of_their_own() -> None:
    columns = {
        "body": pa.array([b"%d" % n for n in range(6)]),
        "queue": pa.array([3, 0, 3, QUEUE_INDEX_ANY, 0, 3], pa.uint16()),
    }
    encoded = encode_batches(columns, "t", "lz4", 2, 77)
    rows = rows_of(encoded, (0, 3, 3, QUEUE_INDEX_ANY))
    assert [[int(row.body) for row in own] for own in rows] == [[1, 4], [0, 2], [5], [3]]


def test_large_rows_make_smaller_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_entries, "RAW_BYTES_MAX", 1_000)
    encoded = encode_batches({"body": pa.array([bytes(400)] * 7 + [bytes(5_000)])}, "t", "none", 100, 77)
    assert [len(rows) for rows in rows_of(encoded)] == [2, 2, 2, 1, 1]


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("key", pa.array([b"\xff"]), "'key' holds bytes that are not UTF-8"),
        ("tag", pa.array(["t" * 65_536]), "tag of 65536 bytes"),
        ("properties", pa.array([[("a", "b" * 65_535)]], MAP), "properties of 65536 bytes"),
    ],
)
def test_what_does_not_fit_a_message_is_named(column: str, value: pa.Array, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        encode_batches({"body": pa.array([b"x"]), column: value}, "t", "lz4", 10, 77)
