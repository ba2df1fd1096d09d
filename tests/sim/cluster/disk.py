"""A broker's log in memory: a page cache over a platter that knows only what was flushed.

    record  total u16 | queue u16 | epoch u32 | position u32 | queue offset u32 | id u32 | crc u32 | filling

A kill keeps the cache; a power cut keeps, of what was not flushed, some sectors and not others. Recovery reads records
up to the first damaged one, as the store does. The list of epochs is a small file of its own, replaced durably.
"""

from __future__ import annotations

import random
import struct
from bisect import bisect_left, bisect_right
from zlib import crc32

from broker.replication.epochs import Epochs, Extent
from tests.sim.cluster.world import Violation

HEAD = struct.Struct("<HHIIIII")
_CRC_AT = HEAD.size - 4
SECTOR = 16

Record = tuple[int, int, int, int, int]
"""(position, queue, offset in the queue, id, epoch)."""


def encode(queue: int, epoch: int, position: int, offset: int, ident: int, filling: int) -> bytes:
    """Return a record."""
    head = HEAD.pack(HEAD.size + 8 * filling, queue, epoch, position, offset, ident, 0)[:_CRC_AT]
    body = ident.to_bytes(4, "little") * (2 * filling)
    return head + crc32(body, crc32(head)).to_bytes(4, "little") + body


class ModelLog:
    """The log of one broker; `flags` are the planted bugs of its disk."""

    def __init__(
        self, chance: random.Random, flags: frozenset[str], epochs: type[Epochs] = Epochs, *, is_async: bool = False
    ) -> None:
        self.is_async = is_async
        """What is written counts, flushed or not."""
        self._chance = chance
        self._flags = flags
        self._epochs_type = epochs
        self._platter = bytearray()
        self._epoch_file: list[tuple[int, int]] = []
        self._begin_file = 0
        self.floors: dict[int, int] = {}
        """Offsets that queues had reached where the log begins; the store carries them along in its state."""
        self.recover()

    # -- starting -----------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """What a starting process recovers from the platter."""
        self.begin = self._begin_file
        self.cache = bytearray(self._platter)
        self.records: list[Record] = []
        self.starts: list[int] = []
        self.next_offsets = dict(self.floors)
        end, epoch = self.begin, 0
        while (record := self._record_at(end)) is not None and record[4] >= epoch:
            epoch = record[4]
            self._note(record)
            end += HEAD.unpack_from(self.cache, end - 0)[0]
        self.end = self.flushed = end
        self.confirm = self.begin
        """Messages below it are visible; after a restart they are visible again when the master confirms them."""
        self.limit: int | None = self.begin
        self._platter[end:] = b""
        del self.cache[end:]
        self.epochs = self._epochs_type(self._epoch_file)
        if "entries-above-end" not in self._flags:
            self.epochs.truncate(end + 1)
            self._save_epochs()

    def _record_at(self, position: int) -> Record | None:
        if position + HEAD.size > len(self.cache):
            return None
        total, queue, epoch, at, offset, ident, crc = HEAD.unpack_from(self.cache, position)
        if at != position or total < HEAD.size or position + total > len(self.cache):
            return None
        body = bytes(self.cache[position + HEAD.size : position + total])
        if crc32(body, crc32(bytes(self.cache[position : position + _CRC_AT]))) != crc:
            return None
        return position, queue, offset, ident, epoch

    def _note(self, record: Record) -> None:
        self.starts.append(record[0])
        self.records.append(record)
        self.next_offsets[record[1]] = record[2] + 1

    @property
    def kept(self) -> int:
        """Everything below it is as durable as configured."""
        return self.end if self.is_async else self.flushed

    # -- writing ------------------------------------------------------------------------------------------------------

    def extent(self) -> Extent:
        """What the other side needs to know."""
        return Extent(self.begin, self.end, self.epochs)

    def begin_epoch(self, epoch: int) -> None:
        """Become the log of a master."""
        if "reused-epoch" in self._flags and epoch == self.epochs.last:
            return
        self.epochs.add(epoch, self.end)
        self._save_epochs()

    def _save_epochs(self) -> None:
        if "epoch-after-bytes" not in self._flags:
            self._epoch_file = list(self.epochs)

    def append(self, queue: int, ident: int, epoch: int) -> tuple[int, int, int]:
        """Append a message; return its offset in the queue, where it stands, and the log's end."""
        start, offset = self.end, self.next_offsets.get(queue, 0)
        data = encode(queue, epoch, self.end, offset, ident, self._chance.randrange(4))
        self._note((self.end, queue, offset, ident, epoch))
        self.cache += data
        self.end += len(data)
        return offset, start, self.end

    def raw(self, position: int, bytes_max: int, master_epoch: int) -> tuple[int, bytes]:
        """Return (epoch, bytes) from `position` on: whole records of one epoch."""
        epoch, _ = self.epochs.at(position) or (0, 0)
        limit = min(self.end, self.epochs.end_of(epoch, self.end) or self.end)
        at = bisect_left(self.starts, position + bytes_max)
        end = self.starts[at] if at < len(self.starts) else self.end
        data = bytes(self.cache[position : min(end, limit)])
        if "header-epoch" in self._flags:
            epoch = master_epoch
        return epoch, data

    def append_raw(self, position: int, epoch: int, start: int, data: bytes) -> None:
        """Append bytes of the master's log."""
        assert position == self.end, (position, self.end)
        if epoch != self.epochs.last:
            self.epochs.add(epoch, start)
            self._save_epochs()
        self.cache += data
        while self.end < len(self.cache):
            record = self._record_at(self.end)
            assert record is not None, self.end
            if record[4] != epoch:
                raise Violation("the epoch list says who wrote what", f"{record} sent as bytes of epoch {epoch}")
            self._note(record)
            self.end += HEAD.unpack_from(self.cache, self.end)[0]

    def truncate(self, position: int) -> None:
        """Truncate, durably; what is below may still be unflushed."""
        assert position <= self.end, (position, self.end)
        keep = bisect_left(self.starts, position)
        del self.starts[keep:], self.records[keep:], self.cache[position:]
        self.next_offsets = self.floors | {queue: offset + 1 for _, queue, offset, _, _ in self.records}
        self.end = position
        self.flushed = min(self.flushed, position)
        self.confirm = min(self.confirm, position)
        self.epochs.truncate(position)
        if "soft-truncation" not in self._flags:
            del self._platter[position:]
        self._epoch_file = list(self.epochs)

    def reset(self, position: int, floors: dict[int, int]) -> None:
        """Drop everything and begin at `position`, durably."""
        self.epochs.clear()
        self.floors = dict(floors)
        self.records, self.starts, self.next_offsets = [], [], dict(floors)
        self.cache, self._platter = bytearray(position), bytearray(position)
        self.begin = self.end = self.flushed = self.confirm = self._begin_file = position
        self._epoch_file = []

    def expire(self, position: int) -> None:
        """Retention: drop everything before a record."""
        keep = bisect_right(self.starts, position) - 1
        if keep <= 0:
            return
        self.begin = self._begin_file = self.starts[keep]
        self.floors = self.floors | {queue: offset + 1 for _, queue, offset, _, _ in self.records[:keep]}
        del self.starts[:keep], self.records[:keep]
        covering = self.epochs.at(self.begin) or (0, 0)
        self.epochs = self._epochs_type(entry for entry in self.epochs if entry >= covering)
        self._save_epochs()

    # -- the disk -----------------------------------------------------------------------------------------------------

    def flush(self, end: int) -> None:
        """The platter has everything below `end` now, unless the log was truncated in the meantime."""
        end = min(end, self.end)
        self._platter[self.flushed : end] = self.cache[self.flushed : end]
        self.flushed = max(self.flushed, end)
        if "epoch-after-bytes" not in self._flags or self._chance.random() < 0.2:
            self._epoch_file = list(self.epochs)
        self.settle()

    def confirm_no_more(self) -> None:
        """The role has ended: what is not confirmed may be lost."""
        self.limit = self.confirm

    def settle(self) -> None:
        """Show what is kept and below the limit."""
        shown = self.kept if self.limit is None else min(self.kept, self.limit)
        if shown > self.confirm:
            at = bisect_right(self.starts, shown)
            whole = self.end if at == len(self.starts) and shown >= self.end else self.starts[at - 1] if at else 0
            self.confirm = max(self.confirm, whole)

    def kill(self) -> None:
        """The process ends, the machine does not: what was written is there."""
        self._platter[:] = self.cache
        if "epoch-after-bytes" in self._flags and self._chance.random() < 0.5:
            self._epoch_file = list(self.epochs)

    def power_cut(self, mood: str = "") -> None:
        """Of what was not flushed, some sectors are on the platter, others are unchanged."""
        mood = mood or self._chance.choice(("keep", "lose", "mixed"))
        if mood == "lose":
            return
        for at in range(self.flushed // SECTOR * SECTOR, len(self.cache), SECTOR):
            if mood == "keep" or self._chance.random() < 0.6:
                first, last = max(at, self.flushed), min(at + SECTOR, len(self.cache))
                if len(self._platter) < first:
                    self._platter += bytes(first - len(self._platter))
                self._platter[first:last] = self.cache[first:last]

    def may_rot(self) -> list[int]:
        """Where a disk may forget something."""
        return self.starts

    def heal(self) -> None:
        """No accident is to come any more."""

    def wipe(self) -> None:
        """A new disk takes its place."""
        self._platter, self._epoch_file, self._begin_file, self.floors = bytearray(), [], 0, {}

    def seen(self, position: int, end: int) -> bytes:
        """What readers see."""
        return bytes(self.cache[position:end])

    def held(self, position: int, end: int) -> bytes:
        """What counts: on the platter, or in the cache where what is written counts and the machine runs."""
        return bytes(self.cache[position:end]) if self.is_async else self.durable(position, end)

    def durable(self, position: int, end: int) -> bytes:
        """What the platter has."""
        return bytes(self._platter[position:end])
