"""How far the log is durable, noted in place so that it can be noted every second.

    DURABLE  two slots of 4096 bytes, written in turn:
             magic "LMQDURA1" | number u64 | position i64 | store_ms i64 | epoch u32 | crc32c u32 of all before it

The checkpoint is a file that is replaced: names, two fsyncs. This is one pwrite and one fdatasync of a file that never
changes its size, and the second copy of what must not be lost: the epoch. Invariant: the log was durable up to
`position` before it is noted; the slot with the highest number is the last word, and a write that was cut short leaves
the other slot; none of the three values ever falls, unless the log is cut (`lower_mark`). Thread rule: `save` blocks,
one thread at a time.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from broker.store.errors import CorruptIndex
from remoting.native.checksum import crc32c
from runtime.files import atomic_replace

NAME = "DURABLE"
SLOT_BYTES = 4096
_MAGIC = b"LMQDURA1"
_SLOT = struct.Struct("<8sQqqI")
_SUM = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Mark:
    """Start number of the store, durable log position, and the store time of the newest record below it."""

    epoch: int = 0
    position: int = 0
    store_ms: int = 0


class DurableMark:
    """The mark in the data directory `directory`."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._number, self._mark = _read(self._path)

    def save(self, mark: Mark) -> None:
        """Note `mark`, or what was noted before where that is higher. Raises OSError."""
        former = self._mark
        self._mark = mark = Mark(
            max(mark.epoch, former.epoch), max(mark.position, former.position), max(mark.store_ms, former.store_ms)
        )
        if mark == former:
            return
        self._number += 1
        slot = _slot(self._number, mark)
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            atomic_replace(self._path, slot.ljust(SLOT_BYTES, b"\0") * 2, mode=0o600)
            return
        try:
            os.pwrite(descriptor, slot, self._number % 2 * SLOT_BYTES)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)


def lower_mark(directory: Path, mark: Mark) -> None:
    """Replace both slots durably, whatever they held: the log was cut. Raises OSError."""
    path = directory / NAME
    number = _read(path)[0] + 1
    slots = _slot(number, mark).ljust(SLOT_BYTES, b"\0") + _slot(number + 1, mark).ljust(SLOT_BYTES, b"\0")
    atomic_replace(path, slots, mode=0o600)


def load_mark(directory: Path) -> Mark | None:
    """Return the last mark in `directory`, None when there is no file. Raises CorruptIndex."""
    path = directory / NAME
    if not path.exists():
        return None
    number, mark = _read(path)
    if not number:
        raise CorruptIndex(path, "neither of its slots can be read")
    return mark


def _slot(number: int, mark: Mark) -> bytes:
    data = _SLOT.pack(_MAGIC, number, mark.position, mark.store_ms, mark.epoch)
    return data + _SUM.pack(crc32c(data))


def _read(path: Path) -> tuple[int, Mark]:
    """Return the highest number and its mark; 0 when no slot can be read."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return 0, Mark()
    found = (0, Mark())
    for at in (0, SLOT_BYTES):
        slot = data[at : at + _SLOT.size + _SUM.size]
        if len(slot) < _SLOT.size + _SUM.size or _SUM.unpack_from(slot, _SLOT.size)[0] != crc32c(slot[: _SLOT.size]):
            continue
        magic, number, position, store_ms, epoch = _SLOT.unpack_from(slot)
        if magic == _MAGIC and number > found[0]:
            found = (number, Mark(epoch, position, store_ms))
    return found
