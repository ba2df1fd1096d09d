"""An independent reader of the log files: nothing but struct and a checksum, so that it can judge the store."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c


@dataclass
class Seen:
    """One record as found in a file."""

    position: int
    kind: int
    flags: int
    dispatch: list[tuple[int, int]]
    body: bytes
    end: int


def read_log(directory: Path) -> list[Seen]:
    """Return the valid records from the first file on, up to the first byte that is none; fillers left out."""
    found: list[Seen] = []
    expected = None
    for path in sorted(p for p in (directory / "log").iterdir() if p.name.isdigit()):
        data, base = path.read_bytes(), int(path.name)
        if expected is not None and base != expected:
            break
        at = 0
        while at + 80 <= len(data):
            total, magic, checksum = struct.unpack_from("<III", data, at)
            if magic >> 8 != 0x4C4D51 or not 80 <= total <= len(data) - at:
                return found
            if crc32c(data[at + 12 : at + total], crc32c(data[at + 4 : at + 8])) != checksum:
                return found
            (position,) = struct.unpack_from("<Q", data, at + 16)
            body_len, body_off, flags = struct.unpack_from("<III", data, at + 40)
            (n,) = struct.unpack_from("<H", data, at + 56)
            assert position == base + at, (position, base + at)
            pairs = [struct.unpack_from("<I4xQ", data, at + 80 + 16 * i) for i in range(n)]
            if magic & 0xFF != 4:
                body = data[at + body_off : at + body_off + body_len]
                found.append(Seen(position, magic & 0xFF, flags, pairs, body, position + total))
            at += total
        expected = base + len(data)
    return found


def check_dense(records: list[Seen]) -> dict[int, int]:
    """Assert that every queue's offsets are dense; return each queue's next offset."""
    ends: dict[int, int] = {}
    for record in records:
        for queue, offset in record.dispatch:
            assert ends.get(queue, offset) == offset, (queue, offset, ends[queue])
            ends[queue] = offset + 1
    return ends
