"""A snapshot of the state tables; it only shortens the next start.

    state/SNAPSHOT  magic "LMQSTAT1" | position i64 | entries u64
                    entries x { u16 kind | u16 zero | u32 key_len | u32 value_len | i64 position | key | value }
                    crc32c u32

Invariant: it holds exactly the state said by records below `position`, and is replaced only after the log is durable up
to there. A snapshot older than the begin of the log is not used: deletions it missed may have expired.
Thread rule: encode, save and load are plain functions; saving blocks and belongs to the index thread.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from broker.store.errors import CorruptIndex
from broker.store.state_tables import Entry, StateTables
from runtime.files import atomic_replace

NAME = "SNAPSHOT"
_MAGIC = b"LMQSTAT1"
_HEAD = struct.Struct("<8sqQ")
_ENTRY = struct.Struct("<HHIIq")


@dataclass(slots=True)
class Snapshot:
    """The tables as of log position `position`, encoded."""

    position: int
    data: memoryview
    entries: int


def save_snapshot(directory: Path, position: int, tables: Mapping[int, Mapping[bytes, Entry]]) -> None:
    """Replace the snapshot durably. Raises OSError."""
    parts = [b""]
    count = 0
    for kind, table in tables.items():
        for key, (value, said) in table.items():
            parts += (_ENTRY.pack(kind, 0, len(key), len(value), said), key, value)
            count += 1
    parts[0] = _HEAD.pack(_MAGIC, position, count)
    data = b"".join(parts)
    directory.mkdir(mode=0o700, exist_ok=True)
    atomic_replace(directory / NAME, data + struct.pack("<I", crc32c(data)), mode=0o600)


def load_snapshot(directory: Path) -> Snapshot | None:
    """Return the checked snapshot, None when there is none. Raises CorruptIndex."""
    path = directory / NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(data) < _HEAD.size + 4 or struct.unpack("<I", data[-4:])[0] != crc32c(memoryview(data)[:-4]):
        raise CorruptIndex(path, "its checksum does not match")
    magic, position, entries = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptIndex(path, "it is no state snapshot")
    return Snapshot(position, memoryview(data)[_HEAD.size : -4], entries)


def restore(snapshot: Snapshot, tables: StateTables) -> None:
    """Put every entry of the snapshot into `tables`."""
    data, at = snapshot.data, 0
    for _ in range(snapshot.entries):
        kind, _, key_len, value_len, said = _ENTRY.unpack_from(data, at)
        key_at = at + _ENTRY.size
        at = key_at + key_len + value_len
        tables.load(kind, bytes(data[key_at : key_at + key_len]), (bytes(data[key_at + key_len : at]), said))
