"""Small files of metadata beside the log, which say how it is laid out and how far it was durable.

    CHECKPOINT  sealed JSON {"clean": ..., "epoch": ..., "position": ...}, replaced at each save
    DURABLE     two slots of 4096 bytes, written in turn:
                magic "LMQDURA1" | number u64 | position i64 | store_ms i64 | epoch u32 | crc32c u32 of all before it

Sealed JSON is one line of JSON and the CRC32C of that line in hex. Invariant: a file whose checksum does not match is
never taken for an older or an empty one.

CHECKPOINT: below `position` the log is on the disk. `position` moves only after fdatasync of the log (and, where a run
belongs to it, after the run's fsync and the rename of the MANIFEST); `epoch` is raised and durable before the first
append of a start; `clean` means that nothing follows `position`. A failing record below `position` is corruption, above
it a torn tail.

DURABLE records the same in place, so that it can be written every second: one pwrite and one fdatasync of a file that
never changes its size, and a second copy of the epoch. The log was durable up to `position` before it is written; the
slot with the highest number counts, and an interrupted write leaves the other slot; no value ever falls, unless the log
is cut (`lower_mark`). Thread rule: plain values; saving blocks, one thread at a time.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import asdict, dataclass
from pathlib import Path

from broker.store.errors import CorruptIndex
from remoting.native.checksum import crc32c
from runtime.files import atomic_replace


def sealed_json(value: object) -> bytes:
    """Return `value` as one line of JSON followed by a line with its checksum."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return b"%s\n%08x\n" % (text, crc32c(text))


def open_sealed_json(path: Path) -> dict[str, object] | None:
    """Return the JSON object of a sealed file, None when there is no file. Raises CorruptIndex."""
    try:
        text, _, checksum = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    if checksum.strip() != b"%08x" % crc32c(text):
        raise CorruptIndex(path, "its checksum does not match")
    value = json.loads(text)
    assert isinstance(value, dict)
    return value


CHECKPOINT_NAME = "CHECKPOINT"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Start number of the store, durable log position, and whether the last shutdown was complete."""

    epoch: int
    position: int
    clean: bool


def save_checkpoint(directory: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint durably. Raises OSError."""
    atomic_replace(directory / CHECKPOINT_NAME, sealed_json(asdict(checkpoint)), mode=0o600)


def load_checkpoint(directory: Path) -> Checkpoint | None:
    """Return the checkpoint, None in a fresh directory. Raises CorruptIndex."""
    value = open_sealed_json(directory / CHECKPOINT_NAME)
    if value is None:
        return None
    try:
        return Checkpoint(int(str(value["epoch"])), int(str(value["position"])), bool(value["clean"]))
    except (KeyError, ValueError) as error:
        raise CorruptIndex(directory / CHECKPOINT_NAME, f"it lacks {error}") from error


MARK_NAME = "DURABLE"
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
        self._path = directory / MARK_NAME
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
    path = directory / MARK_NAME
    number = _read(path)[0] + 1
    slots = _slot(number, mark).ljust(SLOT_BYTES, b"\0") + _slot(number + 1, mark).ljust(SLOT_BYTES, b"\0")
    atomic_replace(path, slots, mode=0o600)


def load_mark(directory: Path) -> Mark | None:
    """Return the last mark in `directory`, None when there is no file. Raises CorruptIndex."""
    path = directory / MARK_NAME
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
