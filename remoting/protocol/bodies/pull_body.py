"""Bodies of the requests that read queues: MULTI_PULL, RANGE_PULL, RECORDS_AT, FILTERED_PULL and QUEUE_BOUNDS.

Records are sent as stored in the log. Little-endian:

    MULTI_PULL   u32 n, n x {u32 queue id, i64 offset, u32 max_count, u32 max_bytes}
      reply      u32 n, n x {u32 queue id, u32 status, i64 first, next, min, max, u32 count, u32 blob_len}, blobs
    RANGE_PULL   u32 queue id, i64 offset, i64 end_offset (exclusive), u32 max_bytes
      reply      u32 status, i64 first, next, min, max, u32 count, u32 blob_len, count x u32 record start, pad to 8,
                 blob
    RECORDS_AT   u32 n, n x u64 position; reply: records back to back, positions no longer stored left out,
                 ending where it is full
    FILTERED_PULL  u32 queue id, i64 offset, i64 end_offset (exclusive), u32 max_bytes, msgpack RowFilter
      reply      u32 status, i64 first, next, min, max, u32 count, u32 blob_len, count x u32 record start,
                 count x u32 (offset - first), pad to 8, blob

In a filtered reply `next` follows the last record examined, matching or not: a reply may be empty without being the
last. It has every record between `first` and `next` that passes the filter; batches, which are packed as a whole, pass
unless topics are given, of which they have none.

QUEUE_BOUNDS, JSON objects: which queues a topic or MQTT filter covers and how far they reach:

    request {"topics":["machines"],"filter":null,"at_ms":null,"known":{"machines":{"0":12}},"wait_ms":100}
    reply   {"broker":"broker-a","epoch":1,"confirm":123,
             "queues":[{"topic":"machines","queue":0,"id":17,"min":0,"max":99,"at":5}],"light":{"id":3,"min":0,"max":7}|null,
             "readers":"127.0.0.1:10912"|null}

The broker delays the reply up to wait_ms until some max is above the known one; max is the confirmed end (exclusive).
Invariant: record i of a blob of MULTI_PULL or RANGE_PULL has queue offset first + i. Thread rule: plain values, pure
functions; decoded blobs are views of the body.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Annotated

import msgspec
from msgspec import Meta

from remoting.protocol.bodies import packed
from remoting.protocol.bodies.packed import decode_json, encode_json
from remoting.protocol.errors import RemoteViolation

VIEW_FIELD = "view"
"""A request with this field, any value, is for showing messages to people: they do not count as consumed."""
VIEW = {VIEW_FIELD: "true"}
FROM_REPLICA_FIELD = "fromReplica"
"""Field of a request for records that a replica may answer too; its sender knows that a replica may not have all of
them yet. A replica refuses the others, as their sender takes it for the master."""
STATUS_OK = 0
"""`count` may be 0: the offset is at the queue's end."""
STATUS_OFFSET_TOO_SMALL = 1
"""The offset's records were removed; `first_offset` is where reading continued."""
STATUS_NO_SUCH_QUEUE = 2
STATUS_OFFSET_TOO_LARGE = 3
STATUS_DAMAGED = 4
"""The messages at the offset cannot be read, because the log is damaged; reading can continue at `first_offset`."""

Buffer = bytes | bytearray | memoryview

_COUNT = struct.Struct("<I")
_WANT = struct.Struct("<IqII")
_RESULT = struct.Struct("<IIqqqqII")
_RANGE = struct.Struct("<IqqI")
_RANGE_RESULT = struct.Struct("<IqqqqII")


class QueueWant(msgspec.Struct, gc=False):
    """One queue of a MULTI_PULL: records from `offset` up to either limit, but at least one."""

    queue_id: int
    offset: int
    max_count: int
    max_bytes: int


class QueueRecords(msgspec.Struct):
    """A broker's answer for one queue; offsets are queue offsets, `max_offset` is the confirmed end (exclusive)."""

    queue_id: int
    status: int
    first_offset: int
    next_offset: int
    min_offset: int
    max_offset: int
    records: Sequence[memoryview | bytes] = ()


class PulledQueue(msgspec.Struct):
    """One queue of a decoded MULTI_PULL reply; `blob` is `count` raw records back to back."""

    queue_id: int
    status: int
    first_offset: int
    next_offset: int
    min_offset: int
    max_offset: int
    count: int
    blob: memoryview


class RangeWant(msgspec.Struct, gc=False):
    """A RANGE_PULL: records of one queue in [offset, end_offset), at most `max_bytes`, but at least one."""

    queue_id: int
    offset: int
    end_offset: int
    max_bytes: int


class PulledRange(msgspec.Struct):
    """A decoded RANGE_PULL reply; `starts` is `count` little-endian u32, the start of each record in `blob`.

    Record i has queue offset first + i (a batch advances it by its count), unless `offsets` (u32 above `first_offset`)
    are given.
    """

    status: int
    first_offset: int
    next_offset: int
    min_offset: int
    max_offset: int
    count: int
    starts: memoryview
    blob: memoryview
    offsets: memoryview | None = None


_ALIGNMENT = 8


def _table(body: Buffer, item: struct.Struct, what: str) -> list[tuple[int, ...]]:
    """Return the rows of a body that consists of a u32 count and that many items."""
    if len(body) < 4:
        raise RemoteViolation(f"{what} of {len(body)} bytes has no count")
    (count,) = _COUNT.unpack_from(body)
    if len(body) != 4 + count * item.size:
        raise RemoteViolation(f"{what} of {len(body)} bytes does not hold {count} items of {item.size}")
    return list(item.iter_unpack(memoryview(body)[4:]))


def encode_multi_pull(wants: Sequence[tuple[int, int, int, int]]) -> bytes:
    """Return a MULTI_PULL body of (queue id, offset, max_count, max_bytes)."""
    return b"".join((_COUNT.pack(len(wants)), *[_WANT.pack(*want) for want in wants]))


def decode_multi_pull(body: Buffer) -> list[QueueWant]:
    """Return the request for each queue."""
    return [QueueWant(*row) for row in _table(body, _WANT, "multi-pull")]


def encode_multi_pull_reply(results: Sequence[QueueRecords]) -> bytes:
    """Return a MULTI_PULL reply; the records are copied once, from the views of the log."""
    heads = []
    for result in results:
        records = result.records
        heads.append(
            _RESULT.pack(
                result.queue_id,
                result.status,
                result.first_offset,
                result.next_offset,
                result.min_offset,
                result.max_offset,
                len(records),
                sum(map(len, records)),
            )
        )
    return b"".join((_COUNT.pack(len(results)), *heads, *chain.from_iterable([result.records for result in results])))


def decode_multi_pull_reply(body: Buffer) -> list[PulledQueue]:
    """Return one result per queue, in the order of the request; blobs are views of `body`."""
    view = memoryview(body)
    if len(view) < 4:
        raise RemoteViolation(f"multi-pull reply of {len(view)} bytes has no count")
    (count,) = _COUNT.unpack_from(view)
    at = 4 + count * _RESULT.size
    if at > len(view):
        raise RemoteViolation(f"multi-pull reply of {len(view)} bytes does not hold {count} results")
    pulled = []
    for queue_id, status, first, following, lowest, end, records, blob_len in _RESULT.iter_unpack(view[4:at]):
        if at + blob_len > len(view):
            raise RemoteViolation(f"multi-pull reply: records of queue {queue_id} pass the body's end")
        blob = view[at : at + blob_len]
        pulled.append(PulledQueue(queue_id, status, first, following, lowest, end, records, blob))
        at += blob_len
    if at != len(view):
        raise RemoteViolation(f"multi-pull reply: {len(view) - at} bytes follow the last records")
    return pulled


def encode_range_pull(queue_id: int, offset: int, end_offset: int, max_bytes: int) -> bytes:
    """Return a RANGE_PULL body."""
    return _RANGE.pack(queue_id, offset, end_offset, max_bytes)


def decode_range_pull(body: Buffer) -> RangeWant:
    """Return the request of a RANGE_PULL."""
    if len(body) != _RANGE.size:
        raise RemoteViolation(f"range-pull of {len(body)} bytes, not {_RANGE.size}")
    return RangeWant(*_RANGE.unpack(body))


def encode_range_pull_reply(result: QueueRecords) -> bytes:
    """Return a RANGE_PULL reply of single records, with the start of each."""
    sizes = list(map(len, result.records))
    starts = list(accumulate(sizes, initial=0))
    blob_len = starts.pop()
    table = struct.pack(f"<{len(starts)}I", *starts)
    return _range_reply(result, len(starts), table, blob_len, result.records)


def encode_pulled_range(pulled: PulledRange) -> bytes:
    """Return a RANGE_PULL reply of records that are already contiguous."""
    return _range_reply(pulled, pulled.count, pulled.starts, len(pulled.blob), (pulled.blob,))


def _range_reply(
    result: QueueRecords | PulledRange, count: int, table: Buffer, blob_len: int, pieces: Sequence[Buffer]
) -> bytes:
    """Join head, table and records; the padding aligns the records, so that readers need not copy them."""
    head = _RANGE_RESULT.pack(
        result.status,
        result.first_offset,
        result.next_offset,
        result.min_offset,
        result.max_offset,
        count,
        blob_len,
    )
    return b"".join((head, table, bytes(-(len(head) + len(table)) % _ALIGNMENT), *pieces))


def decode_range_pull_reply(body: Buffer) -> PulledRange:
    """Return a RANGE_PULL reply; `starts` and `blob` are views of `body`."""
    view = memoryview(body)
    if len(view) < _RANGE_RESULT.size:
        raise RemoteViolation(f"range-pull reply of {len(view)} bytes has no head")
    status, first, following, lowest, end, count, blob_len = _RANGE_RESULT.unpack_from(view)
    starts_end = _RANGE_RESULT.size + 4 * count
    blob_at = starts_end + -starts_end % _ALIGNMENT
    if blob_at + blob_len != len(view):
        raise RemoteViolation(
            f"range-pull reply of {len(view)} bytes does not hold {count} starts and {blob_len} bytes"
        )
    starts = view[_RANGE_RESULT.size : starts_end]
    return PulledRange(status, first, following, lowest, end, count, starts, view[blob_at:])


def encode_records_at(positions: Sequence[int]) -> bytes:
    """Return a RECORDS_AT body."""
    return struct.pack(f"<I{len(positions)}Q", len(positions), *positions)


_POSITION = struct.Struct("<Q")


def decode_records_at(body: Buffer) -> list[int]:
    """Return the requested positions."""
    return [position for (position,) in _table(body, _POSITION, "records-at")]


NAMES_MAX = 10_000
"""Topic filters, tags or keys of one filter; more are refused as malformed."""

_FILTERED_WANT = struct.Struct("<IqqI")
_FILTERED_RESULT = struct.Struct("<IqqqqII")

Names = Annotated[tuple[str, ...], Meta(max_length=NAMES_MAX)]


class RowFilter(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message passes when it meets every condition that is set; of several names one is enough.

    `born_from_ms` is inclusive, `born_until_ms` exclusive; `sql` is one of `filtering.expressions`.
    """

    mqtt: Names = ()
    tags: Names = ()
    keys: Names = ()
    sql: Annotated[str, Meta(max_length=8_192)] = ""
    born_from_ms: int | None = None
    born_until_ms: int | None = None

    def __bool__(self) -> bool:
        return self != _EVERYTHING


_EVERYTHING = RowFilter()


class FilteredWant(msgspec.Struct, gc=False):
    """A FILTERED_PULL; `row_filter` stays encoded, because its bytes identify the compiled filter."""

    queue_id: int
    offset: int
    end_offset: int
    max_bytes: int
    row_filter: bytes


def encode_filtered_pull(queue_id: int, offset: int, end_offset: int, max_bytes: int, row_filter: bytes) -> bytes:
    """Return a FILTERED_PULL body; `row_filter` is an encoded RowFilter."""
    return _FILTERED_WANT.pack(queue_id, offset, end_offset, max_bytes) + row_filter


def decode_filtered_pull(body: Buffer) -> FilteredWant:
    """Return the request of a FILTERED_PULL; the filter is decoded by `decode_row_filter`."""
    if len(body) < _FILTERED_WANT.size:
        raise RemoteViolation(f"filtered-pull of {len(body)} bytes, shorter than its head of {_FILTERED_WANT.size}")
    queue_id, offset, end_offset, max_bytes = _FILTERED_WANT.unpack_from(body)
    return FilteredWant(queue_id, offset, end_offset, max_bytes, bytes(body[_FILTERED_WANT.size :]))


def encode_row_filter(row_filter: RowFilter) -> bytes:
    """Return the msgpack form of a filter."""
    return packed.encode(row_filter)


def decode_row_filter(body: bytes) -> RowFilter:
    """Return the filter of a request."""
    return packed.decode(RowFilter, body)


def encode_filtered_reply(pulled: PulledRange) -> bytes:
    """Return a FILTERED_PULL reply; `pulled.offsets` has each record's offset above `first_offset`."""
    assert pulled.offsets is not None
    head = _FILTERED_RESULT.pack(
        pulled.status,
        pulled.first_offset,
        pulled.next_offset,
        pulled.min_offset,
        pulled.max_offset,
        pulled.count,
        len(pulled.blob),
    )
    pad = bytes(-(len(head) + 8 * pulled.count) % _ALIGNMENT)
    return b"".join((head, pulled.starts, pulled.offsets, pad, pulled.blob))


def decode_filtered_reply(body: Buffer) -> PulledRange:
    """Return a FILTERED_PULL reply; tables and blob are views of `body`."""
    view = memoryview(body)
    if len(view) < _FILTERED_RESULT.size:
        raise RemoteViolation(f"filtered-pull reply of {len(view)} bytes has no head")
    status, first, following, lowest, end, count, blob_len = _FILTERED_RESULT.unpack_from(view)
    starts_end = _FILTERED_RESULT.size + 4 * count
    offsets_end = starts_end + 4 * count
    blob_at = offsets_end + -offsets_end % _ALIGNMENT
    if blob_at + blob_len != len(view):
        raise RemoteViolation(
            f"filtered-pull reply of {len(view)} bytes does not hold {count} records of {blob_len} bytes"
        )
    starts, offsets = view[_FILTERED_RESULT.size : starts_end], view[starts_end:offsets_end]
    return PulledRange(status, first, following, lowest, end, count, starts, view[blob_at:], offsets)


WAIT_MS_MAX = 60_000
"""Longest wait a request may specify; more is refused as malformed."""


class QueueBoundsRequest(msgspec.Struct):
    """Request bounds by parent topics or MQTT filter; `at_ms` also requests the first offset stored at or after it."""

    topics: list[str] = []
    filter: str | None = None
    at_ms: int | None = None
    known: dict[str, dict[str, int]] | None = None
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] = 0


class QueueBounds(msgspec.Struct):
    """One parent queue: number in its topic, queue id, first and end offset, and the offset at `at_ms` if requested."""

    topic: str
    queue: int
    id: int
    min: int
    max: int
    at: int | None = None


class LightBounds(msgspec.Struct):
    """The light queue of an exact MQTT topic."""

    id: int
    min: int
    max: int
    at: int | None = None


class QueueBoundsReply(msgspec.Struct):
    """All bounds of one broker at the same moment; `confirm` is its confirm position."""

    broker: str
    epoch: int
    confirm: int
    queues: list[QueueBounds]
    light: LightBounds | None = None
    readers: str | None = None
    """`host:port` of reader processes that answer RANGE_PULL; a client that cannot reach them uses the broker."""
    log: str = ""
    """Which log this is: offsets and queue ids of another one mean nothing here. Empty where the broker does not know,
    as of an earlier release."""


def encode_bounds_request(request: QueueBoundsRequest) -> bytes:
    """Return the JSON body of a request."""
    return encode_json(request)


def decode_bounds_request(body: bytes) -> QueueBoundsRequest:
    """Return the request of a JSON body."""
    return decode_json(QueueBoundsRequest, body)


def encode_bounds_reply(reply: QueueBoundsReply) -> bytes:
    """Return the JSON body of a reply."""
    return encode_json(reply)


def decode_bounds_reply(body: bytes) -> QueueBoundsReply:
    """Return the reply of a JSON body."""
    return decode_json(QueueBoundsReply, body)
