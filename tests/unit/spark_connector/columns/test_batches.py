"""Batch records as Arrow columns: the same rows as if every message had been stored alone, from any offset to any."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from remoting.batches import BatchRow
from remoting.batches.unpack import Unpacker
from remoting.protocol.bodies import pull_body
from remoting.protocol.bodies.pull_body import RowFilter
from remoting.protocol.records.record import CODEC_NONE, CODEC_ZSTD, RecordView
from spark_connector.columns import arrow
from spark_connector.columns.arrow import decode
from spark_connector.columns.batches import decode_range
from spark_connector.errors import BrokenRecord
from spark_connector.queues import QueueKey, QueueRange
from tests.support.batches import make_batch_record, make_rows
from tests.support.records import make_mqtt_record, make_record

TEXT = pa.string()
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([
    ("topic", TEXT), ("mqttTopic", TEXT), ("queueId", pa.int32()), ("queueOffset", pa.int64()), ("broker", TEXT),
    ("key", TEXT), ("tag", TEXT), ("body", pa.binary()), ("bornTimestamp", TIME), ("storeTimestamp", TIME),
    ("clientId", TEXT), ("qos", pa.int32()), ("retained", pa.bool_()), ("contentType", TEXT),
    ("properties", pa.map_(TEXT, TEXT)), ("traceparent", TEXT),
])  # fmt: skip
KEY = QueueKey("t", "broker-a", 2)
QUEUE_ID = 7


def pulled(records: list[bytes], first: int, following: int) -> pull_body.PulledRange:
    """One pull of these records."""
    result = pull_body.QueueRecords(QUEUE_ID, 0, first, following, 0, following, records)
    return pull_body.decode_range_pull_reply(pull_body.encode_range_pull_reply(result))


def wanted(end: int) -> QueueRange:
    return QueueRange(KEY, QUEUE_ID, 0, end)


def mixed() -> tuple[list[bytes], list[bytes]]:
    """(records of a queue with offsets 100 to 163, the same messages one by one)."""
    properties = (
        (b"clientId", b"first"),
        (b"mqttContentType", b"json"),
        (b"clientId", b"last"),
        (b"traceparent", b"00"),
    )
    tagged = [BatchRow(b"%d" % n, 5_000 + n, tag=b"g", properties=properties if n % 2 else ()) for n in range(20)]
    at, records = 100, []
    for rows, codec in ((make_rows(10), 1), (make_rows(1), 0), (None, 0), (make_rows(30, first=40), CODEC_ZSTD),
                        (tagged, 1), (None, 0), (None, 0)):  # fmt: skip
        dispatch = [(QUEUE_ID, at), (99, 1_000 + at)]
        if rows is None:
            records.append(make_record(b"alone", keys=b"k", properties=[(b"a", b"1")], dispatch=dispatch))
        else:
            records.append(make_batch_record(rows, codec=codec, dispatch=dispatch, store_ms=at))
        at += len(rows) if rows else 1
    unpacked = Unpacker().messages([RecordView(one) for one in records], QUEUE_ID, 100, at)
    return records, [bytes(view.raw) for _, view in unpacked]


def rows_of(found: list[pa.RecordBatch]) -> list[dict]:
    return pa.Table.from_batches(found, SCHEMA).to_pylist()


def test_every_column_is_that_of_single_records() -> None:
    records, singles = mixed()
    end = 100 + len(singles)
    expected = rows_of(list(decode(pulled(singles, 100, end), KEY, SCHEMA)))
    found = list(decode_range(pulled(records, 100, end), wanted(end), SCHEMA))
    for batch in found:
        batch.validate(full=True)
        assert batch.schema == SCHEMA
    assert rows_of(found) == expected
    assert {row["clientId"] for row in expected} == {None, "last"}


def test_from_within_a_batch_to_within_another() -> None:
    records, singles = mixed()
    expected = rows_of(list(decode(pulled(singles, 100, 163), KEY, SCHEMA)))
    for first in range(100, 111):
        for end in (first, first + 1, 109, 110, 111, 112, 115, 140):
            if end >= first:
                # The records a broker sends for it: from the one with `first` on.
                whole = records if first < 110 else records[1:]
                found = list(decode_range(pulled(whole, first, 164), wanted(end), SCHEMA))
                assert rows_of(found) == expected[first - 100 : end - 100], (first, end)


def test_only_the_requested_columns_are_made() -> None:
    records, _ = mixed()
    few = pa.schema([("queueOffset", pa.int64()), ("body", pa.binary())])
    found = pa.Table.from_batches(list(decode_range(pulled(records, 100, 164), wanted(164), few)))
    assert found.column_names == ["queueOffset", "body"]
    assert found.column("queueOffset").to_pylist() == list(range(100, 164))


def test_small_batches_travel_together_and_large_ones_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    small = [make_batch_record(make_rows(16), dispatch=[(QUEUE_ID, 16 * n)]) for n in range(128)]
    found = list(decode_range(pulled(small, 0, 2048), wanted(2048), SCHEMA))
    assert [batch.num_rows for batch in found] == [1024, 1024]
    assert rows_of(found)[1500]["queueOffset"] == 1500
    monkeypatch.setattr(arrow, "BATCH_ROWS_MAX", 1_000)
    large = [make_batch_record(make_rows(2_500), dispatch=[(QUEUE_ID, 0)])]
    assert [batch.num_rows for batch in decode_range(pulled(large, 0, 2_500), wanted(2_500), SCHEMA)] == [
        1_000, 1_000, 500,
    ]  # fmt: skip


def test_batches_with_other_columns_do_not_mix() -> None:
    with_keys = make_batch_record(make_rows(4), dispatch=[(QUEUE_ID, 0)])
    without = make_batch_record([BatchRow(b"x")] * 3, dispatch=[(QUEUE_ID, 4)])
    found = list(decode_range(pulled([with_keys, without], 0, 7), wanted(7), SCHEMA))
    assert [batch.num_rows for batch in found] == [4, 3]
    assert [row["key"] for row in rows_of(found)[4:]] == [None] * 3


def test_a_filter_of_mqtt_topics_matches_no_batch() -> None:
    single = make_mqtt_record(b"t/a", b"mqtt", dispatch=[(QUEUE_ID, 4)])
    both = [make_batch_record(make_rows(4), dispatch=[(QUEUE_ID, 0)]), single]
    found = rows_of(list(decode_range(pulled(both, 0, 5), wanted(5), SCHEMA, RowFilter(mqtt=("t/+",)))))
    assert [row["body"] for row in found] == [b"mqtt"]


def test_rows_of_batches_are_filtered_here() -> None:
    """What the broker left of a queue: some records, and the batches between them, each at its offset."""
    rows = [BatchRow(b"%d" % n, tag=b"even" if n % 2 == 0 else b"odd") for n in range(10)]
    records = [make_batch_record(rows, dispatch=[(QUEUE_ID, at)]) for at in (0, 20)]
    sparse = pulled(records, 3, 40)
    sparse.offsets = memoryview((0).to_bytes(4, "little") + (17).to_bytes(4, "little"))
    found = rows_of(list(decode_range(sparse, wanted(25), SCHEMA, RowFilter(tags=("even",)))))
    assert [row["queueOffset"] for row in found] == [4, 6, 8, 20, 22, 24]
    assert {row["tag"] for row in found} == {"even"}


def test_without_batches_nothing_changes() -> None:
    single = [make_record(dispatch=[(QUEUE_ID, 3)])]
    assert [row["queueOffset"] for row in rows_of(list(decode_range(pulled(single, 3, 4), wanted(4), SCHEMA)))] == [3]
    assert list(decode_range(pulled([], 3, 3), wanted(9), SCHEMA)) == []


def damaged(records: list[bytes], at: int) -> list[bytes]:
    broken = bytearray(records[0])
    broken[at] ^= 1
    return [bytes(broken), *records[1:]]


@pytest.mark.parametrize(
    ("records", "first", "following", "said"),
    [
        (damaged([make_batch_record(make_rows(4), dispatch=[(QUEUE_ID, 0)])], -9), 0, 4, "offset 0: .*checksum"),
        ([make_batch_record(b"junk", count=4, dispatch=[(QUEUE_ID, 0)])], 0, 4, "offset 0: a compressed body of 4"),
        ([make_batch_record(make_rows(4), dispatch=[(QUEUE_ID, 4)])], 0, 8, "the batch there begins at 4"),
        ([make_batch_record(make_rows(4), dispatch=[(QUEUE_ID, 0)])], 4, 8, "the batch there begins at 0"),
        ([make_batch_record(make_rows(4), dispatch=[(8, 0)])], 0, 4, "begins at None"),
        ([make_batch_record(make_rows(4), dispatch=[(QUEUE_ID, 0)])], 0, 5, "end at offset 4, the pull ends at 5"),
        ([make_batch_record(make_rows(4), dispatch=[(QUEUE_ID, 0)], body_format=3)], 0, 4, "format 3"),
        ([make_batch_record(make_rows(4), count=5, dispatch=[(QUEUE_ID, 0)])], 0, 5, "4 rows, the record says 5"),
    ],
)
def test_what_is_wrong_is_named(records: list[bytes], first: int, following: int, said: str) -> None:
    with pytest.raises(BrokenRecord, match=f"queue t/broker-a/2.*{said}"):
        list(decode_range(pulled(records, first, following), wanted(following), SCHEMA))


def test_a_table_that_points_nowhere_is_the_old_error() -> None:
    sound = pulled([make_batch_record(make_rows(4), codec=CODEC_NONE, dispatch=[(QUEUE_ID, 0)])], 0, 4)
    for start in (4, 1 << 20):
        wrong = msgspec.structs.replace(sound, starts=memoryview(start.to_bytes(4, "little")))
        with pytest.raises(BrokenRecord):
            list(decode_range(wrong, wanted(4), SCHEMA))
