"""The reference of the read side: scanning records, collecting their keys, and gathering many of them into a buffer.

Invariants: accepts and refuses exactly what the compiled twin does; `gather` leaves the records back to back in the
order given. Thread rule: pure functions over buffers the caller keeps alive; `KeyChunk.take` runs on the loop thread,
and entries below `count` are never changed again, so that the index thread may read them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from remoting.native.contracts import RETAINED_MASK, RETAINED_VALUE, Progress
from remoting.native.reference.encoder import EntryBlock
from remoting.native.vectors import Column, column, empty, repeat
from remoting.protocol.errors import CorruptRecord
from remoting.protocol.records.names import topic_key
from remoting.protocol.records.properties import KEYS_PER_RECORD_MAX, key_hashes
from remoting.protocol.records.record import (
    BATCH,
    CONTROL,
    FILLER,
    FLAG_GROUP_OPEN,
    FLAG_MQTT,
    FLAG_STAGED,
    HEADER,
    HEADER_SIZE,
    MESSAGE,
    RecordView,
    check_record,
)

_TOTAL = struct.Struct("<I")
_DISPATCHES = tuple(struct.Struct("<" + "I4xQ" * n) for n in range(17))


def scan(view: memoryview, base: int, size: int, progress: Progress) -> Progress:
    """Walk one segment from `progress.position` on; see `contracts.Core.scan`."""
    at, epoch, store_ms, records = progress.position - base, progress.epoch, progress.store_ms, progress.records
    groups_end, group_open, reason = progress.groups_end, progress.group_open, ""
    unpack = HEADER.unpack_from
    window = view[:size]
    try:
        while at < size:
            total = check_record(window, at, base + at)
            head = unpack(window, at)
            if head[3] < epoch:
                raise CorruptRecord(f"its epoch {head[3]} is lower than {epoch} of the record before")
            epoch, store_ms = head[3], head[6]
            at += total
            records += 1
            if head[1] != FILLER:
                group_open = bool(head[9] & FLAG_GROUP_OPEN)
            if not group_open:
                groups_end = base + at
    except CorruptRecord as error:
        reason = error.reason
    return Progress(base + at, groups_end, epoch, store_ms, records, group_open, reason)


def collect(
    view: memoryview, base: int, position: int, end: int, index_from: int, state_from: int, entries_max: int
) -> tuple[int, int, EntryBlock, list[int]]:
    """Return the entries and state changes a replay needs from [position, end); see `contracts.Core.collect`."""
    columns: tuple[list[int], ...] = ([], [], [], [], [], [])
    queues, offsets, positions, sizes, tags, counts = columns
    unpack = HEADER.unpack_from
    records, marks = 0, []
    while position < end:
        head = unpack(view, position - base)
        total, magic, n = head[0], head[1], head[11]
        if magic != FILLER:
            if n and position >= index_from:
                if len(queues) + n > entries_max:
                    break
                numbers = _dispatch_struct(n).unpack_from(view, position - base + HEADER_SIZE)
                queues += numbers[::2]
                offsets += numbers[1::2]
                positions += [position] * n
                sizes += [total] * n
                tags += [head[17]] * n
                counts += [head[10] if magic == BATCH else 1] * n
            records += 1
            if position >= state_from and (magic == CONTROL or head[9] & RETAINED_MASK == RETAINED_VALUE):
                marks.append(position)
        assert total >= HEADER_SIZE, (position, total)
        position += total
    return position, records, EntryBlock(*columns), marks


def record_end(view: memoryview, base: int, position: int, wanted: int, end: int) -> int:
    """Return where the record ends that `wanted` lies in; see `contracts.Core.record_end`."""
    while position < wanted:
        total = _TOTAL.unpack_from(view, position - base)[0] if end - position >= HEADER_SIZE else 0
        if not HEADER_SIZE <= total <= end - position:
            return -1
        position += total
    return position


def survey(view: memoryview, base: int, position: int, end: int) -> tuple[int, tuple[Column, ...], list[int]]:
    """Return the index entries of the sound records in [position, end), for a check; see `contracts.Core.survey`."""
    heads: list[tuple[int, ...]] = []
    numbers: list[int] = []
    marks: list[int] = []
    unpack, records = HEADER.unpack_from, 0
    while position < end:
        head = unpack(view, position - base)
        total, magic, n = head[0], head[1], head[11]
        if magic != FILLER:
            records += 1
            if n:
                numbers += _dispatch_struct(n).unpack_from(view, position - base + HEADER_SIZE)
                heads.append((n, position, total, head[17], head[10] if magic == BATCH else 1))
            if magic == CONTROL or head[9] & RETAINED_MASK == RETAINED_VALUE:
                marks.append(position)
        assert total >= HEADER_SIZE, (position, total)
        position += total
    times = column([head[0] for head in heads], "q")
    positions, sizes, tags, counts = (
        repeat(column([head[at] for head in heads], kind), times) for at, kind in enumerate("qIII", 1)
    )
    return records, (column(numbers[::2], "I"), column(numbers[1::2], "q"), positions, sizes, tags, counts), marks


def follow(
    queues: Column, offsets: Column, positions: Column, counts: Column, following: Column, newest: Column, damage: int
) -> list[tuple[int, int]]:
    """Return the entries whose offset is not their queue's next one; see `contracts.Core.follow`."""
    wrong, expected, last = [], following.tolist(), newest.tolist()
    rows = zip(queues, offsets, positions, counts, strict=True)
    for row, (queue, offset, position, count) in enumerate(rows):
        known = expected[queue]
        if offset != known and known >= 0 and (offset < known or last[queue] >= damage):
            wrong.append((row, known))
        expected[queue], last[queue] = offset + count, position
    following[:], newest[:] = expected, last
    return wrong


def hash_spans(data: bytes | bytearray | memoryview, starts: Column, lengths: Column) -> Column:
    """Return the low 32 bits of the hash of each span, as `hash(bytes)` of this process gives it."""
    bounds = zip(starts, lengths, strict=True)
    return column([hash(bytes(data[start : start + length])) & 0xFFFF_FFFF for start, length in bounds], "I")


def topic_keys(data: bytes | bytearray | memoryview, starts: Column, lengths: Column) -> list[bytes]:
    """Return the keys of the exact light queues among these names, see `topic_key`; a start below 0 is no name."""
    keys = []
    for start, length in zip(starts, lengths, strict=True):
        if start < 0:
            continue
        assert length <= len(data) - start, (start, length)
        key = topic_key(bytes(data[start : start + length]))
        if key is not None:
            keys.append(key)
    return keys


def _dispatch_struct(n: int) -> struct.Struct:
    return _DISPATCHES[n] if n < len(_DISPATCHES) else struct.Struct("<" + "I4xQ" * n)


def first_bad(view: memoryview, base: int, positions: Sequence[int], sizes: Sequence[int]) -> int:
    """Return the index of the first position without a sound record of that size, -1 when all are sound."""
    try:
        for row, (position, size) in enumerate(zip(positions, sizes, strict=True)):
            at = position - base
            if at < 0 or check_record(view[at : at + size], 0, position) != size:
                return row
    except CorruptRecord:
        return row
    return -1


GRAIN = 8
"""Records begin and end at multiples of it."""


def gather(source: memoryview, starts: Column, sizes: Column, out: memoryview) -> None:
    """Fill `out` with the spans of `source`; starts and sizes in bytes, multiples of 8, inside `source`."""
    assert sizes.sum() == len(out), (sizes.sum(), len(out))
    out[:] = b"".join([source[start : start + size] for start, size in zip(starts, sizes, strict=True)])


_KEYED = frozenset({MESSAGE, BATCH})


class KeyChunk:
    """Entries in log order in four columns of one length."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.count = 0
        self._hashes = empty(capacity, "I")
        self._positions = empty(capacity, "q")
        self._sizes = empty(capacity, "I")
        self._seconds = empty(capacity, "I")

    def columns(self) -> tuple[Column, Column, Column, Column]:
        """Return hashes, positions, sizes and store times in seconds of the entries so far."""
        n = self.count
        return self._hashes[:n], self._positions[:n], self._sizes[:n], self._seconds[:n]

    def take(self, view: bytes | memoryview, base: int, position: int, end: int) -> int:
        """Add the keys of the sound records in [position, end); return the first record there was no room for."""
        unpack = HEADER.unpack_from
        while position < end:
            head = unpack(view, position - base)
            shown = head[1] in _KEYED and head[11] and not head[9] & FLAG_STAGED
            if shown and (head[14] or (head[12] and not head[9] & FLAG_MQTT)):
                if self.capacity - self.count < KEYS_PER_RECORD_MAX:
                    return position
                self._put(key_hashes(RecordView(view, position - base)), position, head[0], head[6])
            position += head[0]
        return position

    def _put(self, hashes: list[int], position: int, size: int, store_ms: int) -> None:
        at, end = self.count, self.count + len(hashes)
        self._hashes[at:end] = hashes
        self._positions[at:end] = position
        self._sizes[at:end] = size
        self._seconds[at:end] = store_second(store_ms)
        self.count = end


def store_second(store_ms: int) -> int:
    """Return the store time as kept in the index: whole seconds, from 0 to 2**32 - 1."""
    return min(max(store_ms // 1000, 0), 0xFFFF_FFFF)
