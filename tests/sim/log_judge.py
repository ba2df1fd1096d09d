"""An independent reader of the log files: nothing but struct and a checksum, so that it can judge the store."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path

from remoting.native.checksum import crc32c


@dataclass
class Seen:
    """One record as found in a file."""

    position: int
    kind: int
    flags: int
    dispatch: list[tuple[int, int]]
    body: bytes
    end: int
    epoch: int = 0
    sequence: int = 0
    meta: bytes = b""
    count: int = 1


def read_log(directory: Path) -> list[Seen]:
    """Return the valid records from the first file on, up to the first invalid byte; fillers left out."""
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
            epoch, position = struct.unpack_from("<IQ", data, at + 12)
            body_len, body_off, flags = struct.unpack_from("<III", data, at + 40)
            count, n = struct.unpack_from("<IH", data, at + 52)
            assert position == base + at, (position, base + at)
            pairs = [struct.unpack_from("<I4xQ", data, at + 80 + 16 * i) for i in range(n)]
            if magic & 0xFF != 4:
                body = data[at + body_off : at + body_off + body_len]
                (sequence,) = struct.unpack_from("<Q", data, at + 72)
                meta = data[at + 80 + 16 * n : at + body_off].rstrip(b"\0")
                found.append(
                    Seen(position, magic & 0xFF, flags, pairs, body, position + total, epoch, sequence, meta, count)
                )
            at += total
        expected = base + len(data)
    return found


def check_dense(records: list[Seen]) -> dict[int, int]:
    """Assert that every queue's offsets are dense; return each queue's next offset."""
    ends: dict[int, int] = {}
    for record in records:
        for queue, offset in record.dispatch:
            assert ends.get(queue, offset) == offset, (queue, offset, ends[queue])
            ends[queue] = offset + record.count
    return ends


def read_changes(body: bytes) -> list[tuple[int, bytes, bytes | None]]:
    """Return (kind, key, value or None for a deletion) of a control record's body."""
    (count,) = struct.unpack_from("<I", body)
    at, found = 4, []
    for _ in range(count):
        kind, deleted, key_len, value_len = struct.unpack_from("<HBxII", body, at)
        key = body[at + 12 : at + 12 + key_len]
        at += 12 + key_len + value_len
        found.append((kind, key, None if deleted else body[at - value_len : at]))
    assert at == len(body), (at, len(body))
    return found


def proved_durable(directory: Path) -> int:
    """Return how far the files of a store prove its log durable; of a whole group it is all or nothing."""
    proved = [0]
    for name, key in (("CHECKPOINT", "position"), ("index/MANIFEST", "end_position")):
        if (directory / name).exists():
            text, _, checksum = (directory / name).read_bytes().partition(b"\n")
            proved.append(json.loads(text)[key] if checksum.strip() == b"%08x" % crc32c(text) else 0)
    if (directory / "state/SNAPSHOT").exists():
        data = (directory / "state/SNAPSHOT").read_bytes()
        sound = crc32c(data[:-4]) == struct.unpack("<I", data[-4:])[0]
        proved.append(struct.unpack_from("<8xq", data)[0] if sound else 0)
    proved.append(marked(directory)[0])
    if (directory / "index/tail").exists():
        position, check = struct.unpack_from("<qq", (directory / "index/tail").read_bytes()[:112].ljust(112, b"\0"), 96)
        proved.append(position if check == ~position else 0)
    return group_end(directory, max(proved))


def marked(directory: Path) -> tuple[int, int]:
    """Return (position, epoch) of the readable slot of DURABLE with the highest number."""
    data = (directory / "DURABLE").read_bytes() if (directory / "DURABLE").exists() else b""
    best = (0, 0, 0)
    for at in (0, 4096):
        if len(data) >= at + 40 and crc32c(data[at : at + 36]) == struct.unpack_from("<I", data, at + 36)[0]:
            number, position, _, epoch = struct.unpack_from("<QqqI", data, at + 8)
            best = max(best, (number, position, epoch))
    return best[1:]


def group_end(directory: Path, position: int) -> int:
    """Return the end of the atomic group that contains `position`; index runs may end inside one."""
    inside = False
    for seen in read_log(directory) if (directory / "log").exists() else ():
        if seen.position >= position and not inside:
            break
        inside = bool(seen.flags & 0x10)
        position = max(position, seen.end)
    return position
