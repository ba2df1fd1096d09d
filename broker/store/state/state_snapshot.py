"""A snapshot of the state tables; it only shortens the next start.

    state/SNAPSHOT  magic "LMQSTAT2" | position i64 | entries u64 | queues n u64 | name bytes u64
                    | next free queue id u32, 0: not said | u32 zero | position of the record that said it i64
                    queues: id u32[n] | name_len u32[n] | next_offset i64[n] | position i64[n] | names, in order of ids
                    entries x { u16 kind | u16 zero | u32 key_len | u32 value_len | i64 position | key | value }
                    crc32c u32

Invariant: it holds exactly the state of the records below `position`, and is replaced only after the log is durable up
to there. A snapshot older than the begin of the log is not used: deletions it missed may have expired.
Thread rule: encode, save and load are plain functions; saving blocks and belongs to the index thread.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from broker.store.errors import CorruptIndex
from broker.store.state.name_table import QueueColumns
from broker.store.state.state_tables import FrozenTables, StateTables
from remoting.native.checksum import crc32c
from runtime.files import atomic_write, make_directory

NAME = "SNAPSHOT"
_MAGIC = b"LMQSTAT2"
_HEAD = struct.Struct("<8sqQQQI4xq")
_ENTRY = struct.Struct("<HHIIq")
_PIECE_BYTES = 256 * 1024
_PIECE_ROWS = 64 * 1024


@dataclass(slots=True)
class Snapshot:
    """The tables as of log position `position`, encoded."""

    position: int
    data: memoryview
    entries: int
    queues: QueueColumns


def save_snapshot(directory: Path, position: int, tables: FrozenTables) -> int:
    """Replace the snapshot durably, piece by piece; return its size. Raises OSError."""
    make_directory(directory, mode=0o700, inner=True)
    atomic_write(directory / NAME, _sealed(_pieces(position, tables)), mode=0o600)
    return snapshot_size(directory)


def snapshot_size(directory: Path) -> int:
    """Return the bytes of the snapshot there is, 0 for none."""
    try:
        return (directory / NAME).stat().st_size
    except FileNotFoundError:
        return 0


def _pieces(position: int, tables: FrozenTables) -> Iterator[bytes]:
    queues = tables.queues.columns()
    floor_id, floor_position = queues.floor or (0, 0)
    entries = sum(len(shard) for shards in tables.others.values() for shard in shards)
    name_bytes = int(queues.lengths.sum(dtype=np.int64))
    yield _HEAD.pack(_MAGIC, position, entries, len(queues.ids), name_bytes, floor_id, floor_position)
    for column, kind in zip((queues.ids, queues.lengths, queues.next_offsets, queues.positions), _KINDS, strict=True):
        for at in range(0, len(column), _PIECE_ROWS):  # in pieces: what is copied at once holds up the other threads
            yield column[at : at + _PIECE_ROWS].astype(kind).tobytes()
    yield from queues.names()
    yield from _entries(tables)


def _entries(tables: FrozenTables) -> Iterator[bytes]:
    parts: list[bytes] = []
    size = 0
    for kind_number, shards in tables.others.items():
        for shard in shards:
            for key, (value, said) in shard.items():
                parts += (_ENTRY.pack(kind_number, 0, len(key), len(value), said), key, value)
                size += _ENTRY.size + len(key) + len(value)
                if size > _PIECE_BYTES:
                    yield b"".join(parts)
                    parts, size = [], 0
    yield b"".join(parts)


_KINDS = ("<u4", "<u4", "<i8", "<i8")


def _sealed(pieces: Iterator[bytes]) -> Iterator[bytes]:
    checksum = 0
    for piece in pieces:
        checksum = crc32c(piece, checksum)
        yield piece
    yield struct.pack("<I", checksum)


def load_snapshot(directory: Path) -> Snapshot | None:
    """Return the checked snapshot, None when there is none. Raises CorruptIndex."""
    path = directory / NAME
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b"")
    except FileNotFoundError:
        return None
    if size < _HEAD.size + 4 or struct.unpack("<I", data[-4:])[0] != crc32c(data[:-4]):
        raise CorruptIndex(path, "its checksum does not match")
    magic, position, entries, count, name_bytes, floor_id, floor_position = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptIndex(path, "it is no state snapshot of this version")
    columns, at = [], _HEAD.size
    for kind in _KINDS:
        columns.append(np.frombuffer(data, kind, count, at))
        at += columns[-1].nbytes
    ids, lengths, next_offsets, positions = columns
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    queues = QueueColumns(
        ids, starts, lengths, next_offsets, positions, bytearray(data[at : at + name_bytes]),
        (floor_id, floor_position) if floor_id else None,
    )  # fmt: skip
    return Snapshot(position, data[at + name_bytes : -4], entries, queues)


def restore(snapshot: Snapshot, tables: StateTables) -> None:
    """Put every entry of the snapshot into the empty `tables`; subscribers hear of all but the queues."""
    tables.queues.load(snapshot.queues)
    data, at = snapshot.data, 0
    for _ in range(snapshot.entries):
        kind, _, key_len, value_len, said = _ENTRY.unpack_from(data, at)
        key_at = at + _ENTRY.size
        at = key_at + key_len + value_len
        tables.load(kind, bytes(data[key_at : key_at + key_len]), (bytes(data[key_at + key_len : at]), said))
