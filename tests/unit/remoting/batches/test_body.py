"""Bodies of batches: every message survives, and anything but a sound body is refused before it is used."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest

from remoting.batches import BatchRow, body
from remoting.protocol.errors import CorruptRecord, LocalMisuse
from remoting.protocol.records.record import BATCH_COUNT_MAX, CODEC_LZ4, CODEC_NONE, CODEC_ZSTD
from tests.support.batches import make_rows

CODECS = (CODEC_NONE, CODEC_LZ4, CODEC_ZSTD)


def stream(batch: pa.RecordBatch, **options: object) -> bytes:
    """A body without compression, written by Arrow's own writer."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [1, 2, 1000])
def test_every_message_survives(codec: int, count: int) -> None:
    rows = make_rows(count)
    packed = body.encode(body.from_rows(rows), codec)
    batch = body.decode(packed, codec, count)
    assert body.to_rows(batch, 0) == rows
    assert body.to_rows(batch.slice(1, 1), 0) == rows[1:2]


def test_unused_columns_are_left_out() -> None:
    batch = body.from_rows([BatchRow(b"a"), BatchRow(b"")])
    assert batch.schema.names == ["body", "bornTimestamp"]
    only = body.decode(body.encode(batch.select(["body"]), CODEC_NONE), CODEC_NONE, 2)
    assert body.to_rows(only, 77) == [BatchRow(b"a", 77), BatchRow(b"", 77)]


def test_any_arrow_reader_reads_an_unpacked_body_and_any_writer_may_write_one() -> None:
    rows = make_rows(10)
    packed = body.encode(body.from_rows(rows), CODEC_ZSTD)
    (size,) = struct.unpack_from("<Q", packed)
    raw = pa.Codec("zstd").decompress(packed[8:], size)
    with pa.ipc.open_stream(raw) as reader:
        assert body.to_rows(reader.read_next_batch(), 0) == rows
    # With the end mark that Arrow's own writer sets.
    assert body.to_rows(body.decode(stream(body.from_rows(rows)), CODEC_NONE, 10), 0) == rows


def test_a_slice_is_written_as_what_it_contains() -> None:
    rows = make_rows(100)
    piece = body.from_rows(rows).slice(40, 7)
    packed = body.encode(piece, CODEC_NONE)
    assert len(packed) < 2_500
    assert body.to_rows(body.decode(packed, CODEC_NONE, 7), 0) == rows[40:47]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (BatchRow(b"", key=b"\xff"), "key of a message is not UTF-8"),
        (BatchRow(b"", tag=b"\xc3"), "tag of a message is not UTF-8"),
        (BatchRow(b"", properties=((b"a", b"\xff"),)), "property of a message is not UTF-8"),
        (BatchRow(b"", born_ms=-1), "born before 1970"),
        (BatchRow(b"", born_ms=2**62), "too far in the future"),
    ],
)
def test_messages_that_do_not_fit_a_batch_are_refused(row: BatchRow, said: str) -> None:
    with pytest.raises(LocalMisuse, match=said):
        body.from_rows([row])


def test_what_is_no_batch_is_not_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LocalMisuse, match="0 messages"):
        body.encode(body.from_rows([]), CODEC_NONE)
    with pytest.raises(LocalMisuse, match="at least body"):
        body.encode(pa.record_batch([pa.array(["x"])], names=["key"]), CODEC_NONE)
    with pytest.raises(LocalMisuse, match="column body of a batch is binary"):
        body.encode(pa.record_batch([pa.array(["x"])], names=["body"]), CODEC_NONE)
    with pytest.raises(LocalMisuse, match="has nulls"):
        body.encode(pa.record_batch([pa.array([None], pa.binary())], names=["body"]), CODEC_NONE)
    with pytest.raises(LocalMisuse, match="codec 9"):
        body.encode(body.from_rows(make_rows(1)), 9)
    many = pa.record_batch([pa.array([b""] * (BATCH_COUNT_MAX + 1), pa.binary())], names=["body"])
    with pytest.raises(LocalMisuse, match="65537 messages"):
        body.encode(many, CODEC_NONE)
    assert body.decode(body.encode(many.slice(1), CODEC_LZ4), CODEC_LZ4, BATCH_COUNT_MAX).num_rows == BATCH_COUNT_MAX
    monkeypatch.setattr(body, "RAW_BYTES_MAX", 1_000)
    with pytest.raises(LocalMisuse, match="the limit is 1000"):
        body.encode(body.from_rows(make_rows(100)), CODEC_LZ4)


@pytest.mark.parametrize("codec", [CODEC_LZ4, CODEC_ZSTD])
def test_a_decompression_bomb_is_refused_by_its_header(codec: int) -> None:
    packed = body.encode(body.from_rows(make_rows(3)), codec)
    huge = struct.pack("<Q", body.RAW_BYTES_MAX + 1) + packed[8:]
    with pytest.raises(CorruptRecord, match="the limit is"):
        body.decode(huge, codec, 3)
    bomb = pa.Codec("lz4" if codec == CODEC_LZ4 else "zstd").compress(bytes(50_000_000), asbytes=True)
    with pytest.raises(CorruptRecord, match="cannot be unpacked"):
        body.decode(struct.pack("<Q", 1_000) + bomb, codec, 3)
    for other in (-1, 1):
        lie = struct.pack("<Q", struct.unpack_from("<Q", packed)[0] + other) + packed[8:]
        with pytest.raises(CorruptRecord):
            body.decode(lie, codec, 3)
    for cut in (b"", b"1234567", packed[:20]):
        with pytest.raises(CorruptRecord):
            body.decode(cut, codec, 3)
    with pytest.raises(CorruptRecord, match="codec 3"):
        body.decode(packed, 3, 3)


def test_buffers_compressed_one_by_one_are_refused_before_they_are_unpacked() -> None:
    batch = pa.record_batch([pa.array([bytes(100_000)], pa.binary())], names=["body"])
    with pytest.raises(CorruptRecord, match="one by one"):
        body.decode(stream(batch, compression="zstd"), CODEC_NONE, 1)


def test_the_number_of_rows_must_be_the_record_s() -> None:
    packed = body.encode(body.from_rows(make_rows(3)), CODEC_NONE)
    for wrong in (1, 2, 4, 65_536):
        with pytest.raises(CorruptRecord, match=f"3 rows, the record says {wrong}"):
            body.decode(packed, CODEC_NONE, wrong)


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (pa.record_batch([pa.array([b"x"]), pa.array(["extra"])], names=["body", "extra"]), "in this order"),
        (pa.record_batch([pa.array(["k"]), pa.array([b"x"])], names=["key", "body"]), "in this order"),
        (pa.record_batch([pa.array([b"x"]), pa.array([1])], names=["body", "bornTimestamp"]), "column bornTimestamp"),
        (pa.record_batch([pa.array([b"x"], pa.large_binary())], names=["body"]), "column body"),
        (pa.record_batch([pa.array([b"x"]).dictionary_encode()], names=["body"]), "one record batch|column body"),
        (pa.record_batch([pa.array([None], pa.binary())], names=["body"]), "column body of a batch has nulls"),
        (
            pa.record_batch(
                [pa.array([b"x"]), pa.array([[("a", None)]], body.PROPERTIES)], names=["body", "properties"]
            ),
            "no value",
        ),
    ],
)
def test_other_columns_are_refused(batch: pa.RecordBatch, said: str) -> None:
    with pytest.raises(CorruptRecord, match=said):
        body.decode(stream(batch), CODEC_NONE, 1)


def test_text_that_is_not_utf8_and_offsets_that_point_outside_are_found() -> None:
    names = ["body", "key"]
    bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(struct.pack("<2i", 0, 1)), pa.py_buffer(b"\xff")])
    with pytest.raises(CorruptRecord, match="malformed"):
        body.decode(stream(pa.record_batch([pa.array([b"x"]), bad], names=names)), CODEC_NONE, 1)
    sound = body.encode(body.from_rows(make_rows(3)).select(["body"]), CODEC_NONE)
    edges = struct.pack("<4i", 0, 6, 12, 18)
    assert sound.count(edges) == 1
    for wrong in ((0, 6, 12, 1 << 30), (0, 12, 6, 18), (-6, 6, 12, 18)):
        with pytest.raises(CorruptRecord, match="malformed"):
            body.decode(sound.replace(edges, struct.pack("<4i", *wrong)), CODEC_NONE, 3)


def test_more_than_one_batch_and_other_messages_are_refused() -> None:
    batch = body.from_rows(make_rows(2))
    packed = body.encode(batch, CODEC_NONE)
    for wrong in (
        packed + batch.serialize().to_pybytes(),
        packed + b"\x00" * 8,
        packed[:-8],
        batch.schema.serialize().to_pybytes() * 2,
        batch.schema.serialize().to_pybytes(),
        b"",
        b"x" * 100,
    ):
        with pytest.raises(CorruptRecord):
            body.decode(wrong, CODEC_NONE, 2)


def test_spellings_of_a_schema_are_cached_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "SCHEMAS_REMEMBERED_MAX", 2)
    body._known_schemas.clear()
    batch = body.from_rows(make_rows(2)).select(["body"])
    for n in range(5):
        marked = batch.replace_schema_metadata({"n": str(n)})
        assert body.decode(stream(marked), CODEC_NONE, 2).num_rows == 2
        assert len(body._known_schemas) <= 2


def test_a_big_endian_schema_is_refused() -> None:
    packed = bytearray(body.encode(body.from_rows(make_rows(2)).select(["body"]), CODEC_NONE))
    plain = pa.ipc.read_schema(pa.py_buffer(bytes(packed)))
    assert plain.names == ["body"]
    body._known_schemas.clear()
    flipped = _with_endianness(bytes(packed))
    with pytest.raises(CorruptRecord, match="big-endian"):
        body.decode(flipped, CODEC_NONE, 2)


def _with_endianness(packed: bytes) -> bytes:
    """Point the schema table's field for endianness at two bytes that are 1, somewhere in the message."""
    data = bytearray(packed)
    size = struct.unpack_from("<i", data, 4)[0]
    head = 8
    root = head + struct.unpack_from("<I", data, head)[0]
    fields = root - struct.unpack_from("<i", data, root)[0]
    table = root + struct.unpack_from("<H", data, fields + 8)[0]
    table += struct.unpack_from("<I", data, table)[0]
    vtable = table - struct.unpack_from("<i", data, table)[0]
    ones = [at for at in range(table, head + size - 1, 2) if struct.unpack_from("<H", data, at)[0] == 1]
    struct.pack_into("<H", data, vtable + 4, ones[0] - table)
    return bytes(data)


def test_times_are_microseconds_of_the_messages() -> None:
    batch = body.from_rows([BatchRow(b"", 1_700_000_000_123)])
    assert np.asarray(batch.column("bornTimestamp").cast(pa.int64()))[0] == 1_700_000_000_123_000


def test_a_row_needs_only_its_body() -> None:
    assert BatchRow(b"x") == BatchRow(b"x", 0, b"", b"", ())
    assert BatchRow(b"x", key=b"k") != BatchRow(b"x")
