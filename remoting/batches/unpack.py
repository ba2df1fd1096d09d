"""From a batch record to its messages, each as the record it would be if sent alone.

For readers of single records: RocketMQ clients, the command line, scripts. The records are new bytes of the usual
layout, with their own checksum; their queue offsets are the batch's plus the row. All rows have the same log position,
so theirs includes the row:

    position of a message    bits 0-46 position of its record | bits 47-62 row

Row 0 is the position itself. Needs pyarrow only once there is a batch. Invariant: message i of a batch has offset
base + i in every queue; none is left out or repeated. Thread rule: one thread at a time.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from remoting.batches import BatchRow
from remoting.protocol.errors import CorruptRecord, LightMQError, LocalMisuse
from remoting.protocol.records.record import (
    BATCH,
    FLAG_CODEC_MASK,
    FLAG_FORMAT_MASK,
    FLAG_GROUP_OPEN,
    FORMAT_ARROW,
    MESSAGE,
    RecordView,
    body_codec,
    body_format,
    encode_record,
    header_of,
    tag_hash,
)

if TYPE_CHECKING:
    from types import ModuleType

ROW_SHIFT = 47
"""Log positions are below 128 TiB; the bits above them are the row."""
DECODED_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of unpacked batches cached for readers in small steps; the oldest is dropped first."""
BATCH_TYPE = BATCH & 0xFF
_POSITION_MASK = (1 << ROW_SHIFT) - 1
_NOT_KEPT = FLAG_FORMAT_MASK | FLAG_CODEC_MASK | FLAG_GROUP_OPEN


class ArrowMissing(LightMQError):
    """A batch has to be unpacked, but pyarrow is not installed."""


def row_position(position: int, row: int) -> int:
    """Return the position of one message of the record at `position`."""
    assert 0 <= position <= _POSITION_MASK, position
    return position | row << ROW_SHIFT


def split_position(position: int) -> tuple[int, int]:
    """Return (position of the record, row in it) of a message's position."""
    return position & _POSITION_MASK, position >> ROW_SHIFT


def is_batch(view: RecordView) -> bool:
    """True for a record of several messages (or of one, written as a batch)."""
    return view.type == BATCH_TYPE


def base_of(view: RecordView, queue_id: int) -> int:
    """Return the offset of the record's first message in a queue; CorruptRecord when it is not in that queue."""
    for known, offset in view.dispatch():
        if known == queue_id:
            return offset
    raise CorruptRecord(f"the record at {view.position} is not in queue {queue_id}")


def arrow_body() -> ModuleType:
    """Return the module that reads and writes bodies. ArrowMissing names what to install."""
    try:
        from remoting.batches import body
    except ImportError as error:
        raise ArrowMissing(f"batches need pyarrow; install it with: pip install 'pyarrow>=18' ({error})") from error
    return body


class Unpacker:
    """Unpacks batches and caches the last ones."""

    def __init__(self, decoded_bytes_max: int = DECODED_BYTES_MAX) -> None:
        self._decoded_bytes_max = decoded_bytes_max
        self._decoded: OrderedDict[tuple[int, int, int], Any] = OrderedDict()
        self._decoded_bytes = 0

    def rows(self, view: RecordView, start: int, stop: int) -> list[BatchRow]:
        """Return messages `start` to `stop` of a batch; CorruptRecord or ArrowMissing when they cannot be read."""
        body = arrow_body()
        batch = self._batch(view, body)
        found: list[BatchRow] = body.to_rows(batch.slice(start, max(0, stop - start)), view.born_ms)
        return found

    def records(self, view: RecordView, start: int, stop: int) -> list[RecordView]:
        """Return the same messages as records of one message each."""
        return [single_record(view, start + at, row) for at, row in enumerate(self.rows(view, start, stop))]

    def message(self, view: RecordView, row: int) -> RecordView | None:
        """Return one message of any record, None for a row it does not have."""
        if row >= view.count:
            return None
        return self.records(view, row, row + 1)[0] if is_batch(view) else view

    def messages(
        self, records: Iterable[RecordView], queue_id: int, begin: int, end: int
    ) -> Iterator[tuple[int, RecordView]]:
        """Yield (offset, message) in [begin, end) of records adjacent in a queue; the first one contains `begin`."""
        at = begin
        for view in records:
            if not is_batch(view):
                if at < end:
                    yield at, view
                at += 1
                continue
            base = base_of(view, queue_id)
            if not base <= at < base + view.count:
                raise CorruptRecord(f"the batch at {view.position} begins at offset {base}, not {at}")
            if at < end:
                yield from enumerate(self.records(view, at - base, min(end - base, view.count)), at)
            at = base + view.count

    def _batch(self, view: RecordView, body: ModuleType) -> Any:
        key = (header_of(view).epoch, view.position, view.total)
        batch = self._decoded.pop(key, None)
        if batch is None:
            if body_format(view.flags) != FORMAT_ARROW:
                raise CorruptRecord(f"the batch at {view.position} has a body of format {body_format(view.flags)}")
            batch = body.decode(view.body, body_codec(view.flags), view.count)
            self._decoded_bytes += batch.nbytes
        self._decoded[key] = batch
        while self._decoded_bytes > self._decoded_bytes_max and len(self._decoded) > 1:
            self._decoded_bytes -= self._decoded.popitem(last=False)[1].nbytes
        return batch


def single_record(view: RecordView, row: int, message: BatchRow) -> RecordView:
    """Return one message of a batch as a single record."""
    header, parts = header_of(view), list(chain.from_iterable(message.properties))
    texts = b"".join(parts)
    try:
        lengths = struct.pack(f"<{len(parts)}H", *map(len, parts))
        return RecordView(
            encode_record(
                magic_type=MESSAGE,
                epoch=header.epoch,
                position=row_position(view.position, row),
                born_ms=message.born_ms,
                store_ms=view.store_ms,
                flags=view.flags & ~_NOT_KEPT,
                count=1,
                dispatch=[(queue_id, offset + row) for queue_id, offset in view.dispatch()],
                counts=(len(message.properties), len(view.topic), len(message.key), len(message.tag), len(texts)),
                tag_hash=tag_hash(message.tag) if message.tag else 0,
                producer_seq=header.producer_seq,
                meta=b"".join((lengths, view.topic, message.key, message.tag, texts)),
                body=message.body,
            )
        )
    except (struct.error, LocalMisuse) as error:
        raise CorruptRecord(f"message {row} of the batch at {view.position} does not fit a record: {error}") from error
