"""FILTERED_PULL (9009): records of one queue that pass a filter, with the offset of each. Little-endian.

    request   u32 queue id, i64 offset, i64 end_offset (exclusive), u32 max_bytes, msgpack RowFilter
      reply   u32 status, i64 first, next, min, max, u32 count, u32 blob_len, count x u32 record start,
              count x u32 (offset - first), pad to 8, blob

`next` is behind the last record that was looked at, wanted or not: a reply may be empty and yet go on. Invariant: no
record that passes the filter is left out between `first` and `next`; batches, which are packed as a whole, are among
the records unless topics are asked for, of which they have none. Thread rule: pure functions; decoded blobs are views
of the body.
"""

from __future__ import annotations

import struct
from typing import Annotated

import msgspec
from msgspec import Meta

from remoting.protocol.bodies import packed
from remoting.protocol.bodies.pull_body import Buffer, PulledRange
from remoting.protocol.errors import RemoteViolation

NAMES_MAX = 10_000
"""Topic filters, tags or keys of one filter; more are refused as malformed."""

_WANT = struct.Struct("<IqqI")
_RESULT = struct.Struct("<IqqqqII")
_ALIGNMENT = 8

Names = Annotated[tuple[str, ...], Meta(max_length=NAMES_MAX)]


class RowFilter(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is wanted: everything that is set must be true of a message; of several names one is enough.

    `born_from_ms` is inclusive, `born_until_ms` exclusive; `sql` is an expression as in `remoting.filtering.sql92`.
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
    """What a FILTERED_PULL asks; `row_filter` stands as it came, because it names the same judge each time."""

    queue_id: int
    offset: int
    end_offset: int
    max_bytes: int
    row_filter: bytes


def encode_filtered_pull(queue_id: int, offset: int, end_offset: int, max_bytes: int, row_filter: bytes) -> bytes:
    """Return a FILTERED_PULL body; `row_filter` is an encoded RowFilter."""
    return _WANT.pack(queue_id, offset, end_offset, max_bytes) + row_filter


def decode_filtered_pull(body: Buffer) -> FilteredWant:
    """Return what a FILTERED_PULL asks; the filter is decoded by `decode_row_filter`."""
    if len(body) < _WANT.size:
        raise RemoteViolation(f"filtered-pull of {len(body)} bytes, its head has {_WANT.size}")
    queue_id, offset, end_offset, max_bytes = _WANT.unpack_from(body)
    return FilteredWant(queue_id, offset, end_offset, max_bytes, bytes(body[_WANT.size :]))


def encode_row_filter(row_filter: RowFilter) -> bytes:
    """Return the msgpack form of a filter."""
    return packed.encode(row_filter)


def decode_row_filter(body: bytes) -> RowFilter:
    """Return the filter of a request."""
    return packed.decode(RowFilter, body)


def encode_filtered_reply(pulled: PulledRange) -> bytes:
    """Return a FILTERED_PULL reply; `pulled.offsets` says each record's offset above `first_offset`."""
    assert pulled.offsets is not None
    head = _RESULT.pack(
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
    if len(view) < _RESULT.size:
        raise RemoteViolation(f"filtered-pull reply of {len(view)} bytes has no head")
    status, first, following, lowest, end, count, blob_len = _RESULT.unpack_from(view)
    starts_end = _RESULT.size + 4 * count
    offsets_end = starts_end + 4 * count
    blob_at = offsets_end + -offsets_end % _ALIGNMENT
    if blob_at + blob_len != len(view):
        raise RemoteViolation(
            f"filtered-pull reply of {len(view)} bytes does not hold {count} records of {blob_len} bytes"
        )
    starts, offsets = view[_RESULT.size : starts_end], view[starts_end:offsets_end]
    return PulledRange(status, first, following, lowest, end, count, starts, view[blob_at:], offsets)
