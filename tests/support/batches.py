"""Batch records for tests."""

from __future__ import annotations

from collections.abc import Sequence

from remoting.batches import BatchRow, body
from remoting.protocol.records.record import (
    BATCH,
    CODEC_LZ4,
    FLAG_CODEC_SHIFT,
    FLAG_FORMAT_SHIFT,
    FORMAT_ARROW,
    encode_record,
)


def make_rows(count: int, *, first: int = 0, born_ms: int = 1_000) -> list[BatchRow]:
    """Rows that differ in every field: every third without key, every second with a tag, 0 to 2 properties."""
    return [
        BatchRow(
            b"body %d" % n,
            born_ms + n,
            b"" if n % 3 == 0 else b"key-%d" % n,
            b"even" if n % 2 == 0 else b"",
            tuple((b"name%d" % at, b"value %d" % n) for at in range(n % 3)),
        )
        for n in range(first, first + count)
    ]


def make_batch_record(
    rows: Sequence[BatchRow] | bytes,
    *,
    codec: int = CODEC_LZ4,
    count: int | None = None,
    topic: bytes = b"t",
    position: int = 0,
    epoch: int = 1,
    store_ms: int = 2,
    dispatch: Sequence[tuple[int, int]] = ((1, 0),),
    flags: int = 0,
    body_format: int = FORMAT_ARROW,
) -> bytes:
    """One batch record; `rows` may be an encoded body, then with its `count`."""
    packed = rows if isinstance(rows, bytes) else body.encode(body.from_rows(rows), codec)
    return encode_record(
        magic_type=BATCH, epoch=epoch, position=position, born_ms=1, store_ms=store_ms,
        flags=flags | body_format << FLAG_FORMAT_SHIFT | codec << FLAG_CODEC_SHIFT,
        count=len(rows) if count is None else count, dispatch=list(dispatch), tag_hash=0, producer_seq=0, body=packed,
        counts=(0, len(topic), 0, 0, 0), meta=topic,
    )  # fmt: skip
