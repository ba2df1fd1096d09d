"""The pure twin of the read side: `contracts` in plain Python, struct and numpy.

Invariant: accepts and refuses exactly what the compiled twin does. Thread rule: pure functions over buffers the caller
keeps alive.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from remoting.native.contracts import RETAINED_MASK, RETAINED_VALUE, Column, Progress
from remoting.native.reference.blocks import EntryBlock
from remoting.protocol.errors import CorruptRecord
from remoting.protocol.records.record import BATCH, CONTROL, FILLER, FLAG_GROUP_OPEN, HEADER, HEADER_SIZE, check_record

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
    """Gather what a replay needs of the records in [position, end); see `contracts.Core.collect`."""
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


def survey(view: memoryview, base: int, position: int, end: int) -> tuple[int, tuple[Column, ...], list[int]]:
    """Return what a check compares of the sound records in [position, end); see `contracts.Core.survey`."""
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
    table = np.array(heads, np.int64).reshape(-1, 5)
    positions, sizes, tags, counts = (np.repeat(table[:, at], table[:, 0]) for at in range(1, 5))
    pairs = np.array(numbers, np.int64).reshape(-1, 2)
    narrow = (column.astype("<u4") for column in (pairs[:, 0], sizes, tags, counts))
    queues, sizes, tags, counts = narrow
    return records, (queues, pairs[:, 1].copy(), positions, sizes, tags, counts), marks


def follow(
    queues: Column, offsets: Column, positions: Column, counts: Column, following: Column, newest: Column, damage: int
) -> list[tuple[int, int]]:
    """Return the entries whose offset is not their queue's next one; see `contracts.Core.follow`."""
    wrong, expected, last = [], following.tolist(), newest.tolist()
    rows = zip(queues.tolist(), offsets.tolist(), positions.tolist(), counts.tolist(), strict=True)
    for row, (queue, offset, position, count) in enumerate(rows):
        known = expected[queue]
        if offset != known and known >= 0 and (offset < known or last[queue] >= damage):
            wrong.append((row, known))
        expected[queue], last[queue] = offset + count, position
    following[:], newest[:] = expected, last
    return wrong


def hash_spans(data: bytes | bytearray | memoryview, starts: Column, lengths: Column) -> Column:
    """Return the low 32 bits of the hash of each span, as `hash(bytes)` of this process gives it."""
    bounds = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    codes: Column = np.array([hash(bytes(data[start:end])) for start, end in bounds], np.int64)
    return (codes & 0xFFFF_FFFF).astype(np.uint32)


def _dispatch_struct(n: int) -> struct.Struct:
    return _DISPATCHES[n] if n < len(_DISPATCHES) else struct.Struct("<" + "I4xQ" * n)


def first_bad(view: memoryview, base: int, positions: Sequence[int], sizes: Sequence[int]) -> int:
    """Return the index of the first position where no sound record of that size stands, -1 when there is none."""
    try:
        for row, (position, size) in enumerate(zip(positions, sizes, strict=True)):
            at = position - base
            if at < 0 or check_record(view[at : at + size], 0, position) != size:
                return row
    except CorruptRecord:
        return row
    return -1
