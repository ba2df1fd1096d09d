"""Reads around damage: what stands before it is served, what lies in it is named, and the reader learns where to go on.

Invariant: a reader is never stuck and never led past messages in silence: it gets the messages in front of the damage,
then one refusal that names queue, offsets, file and position and the offset behind, then the messages behind. Damage
seen for the first time is noted in QUARANTINE, told as an event and counted. Thread rule: loop thread; the file is
written by the index thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from broker.store import hot
from broker.store.errors import CorruptLog, StoreError, UnreadableOffsets
from broker.store.index.reader import Reader
from broker.store.log.index_thread import IndexThread
from broker.store.read_result import RangeResult, ReadResult
from broker.store.recovery.opened import Opened
from broker.store.recovery.quarantine import DamagedRange, save_quarantine
from broker.store.recovery.salvage import damage_in
from broker.store.state.state_log import StateChange
from broker.store.store_message import StoreMessage

LOOK_ENTRIES_MAX = 65_536
"""Entries looked at for the end of one damage; a longer one is told piece by piece."""
_CHUNK_ENTRIES = 256
Result = TypeVar("Result")
Say = Callable[[Sequence[StoreMessage], Sequence[StateChange]], object]


class DamageWatch:
    """The damage of one open store."""

    def __init__(
        self,
        directory: Path,
        opened: Opened,
        reader: Reader,
        thread: IndexThread,
        failed: Callable[[Exception], None],
        events: Any,
    ) -> None:
        self._directory = directory
        self._log = opened.log
        self._index = opened.index
        self._reader = reader
        self._thread = thread
        self._failed = failed
        self._events = events
        self.quarantine = opened.quarantine
        self.reads_total = 0
        """Reads that met damage."""

    def metrics(self) -> dict[str, int]:
        """Return what there is and how often it was met."""
        return {
            "quarantined_ranges": len(self.quarantine),
            "quarantined_bytes": self.quarantine.size_bytes,
            "damaged_reads_total": self.reads_total,
        }

    def settle(self, mending: Sequence[StateChange], say: Say, flush: Callable[[], None]) -> None:
        """Let `say` append what damage took, if there is any, and note it once `flush` has made that durable.

        Where that fails, the next start does it.
        """
        if not mending:
            return
        try:
            say((), mending)
            flush()
            self.quarantine.settle()
            save_quarantine(self._directory, self.quarantine)
        except (OSError, StoreError) as error:
            self._events.error("log_damage_not_settled", error=str(error))

    def read(self, queue: int, offset: int, max_count: int, max_bytes: int, end_offset: int | None) -> ReadResult:
        """Do what `Reader.read` does, up to damage. Raises UnreadableOffsets when it begins at `offset` itself."""

        def read(end: int | None) -> ReadResult:
            return self._reader.read(queue, offset, max_count, max_bytes, end)

        try:
            return read(end_offset)
        except CorruptLog as error:
            return self._around(queue, *self._reader.clipped(queue, offset, end_offset), read, error)

    def read_range(
        self, queue: int, offset: int, max_count: int, max_bytes: int, end_offset: int | None
    ) -> RangeResult:
        """Do what `Reader.read_range` does, up to damage. Raises UnreadableOffsets when it begins at `offset`."""

        def read(end: int | None) -> RangeResult:
            return self._reader.read_range(queue, offset, max_count, max_bytes, end)

        try:
            found = read(end_offset)
            self._refuse_known(queue, found.first_offset, found.next_offset - found.first_offset)
        except CorruptLog as error:
            return self._around(queue, *self._reader.clipped(queue, offset, end_offset), read, error)
        return found

    def _around(self, queue: int, offset: int, end: int, read: Callable[[int], Result], error: CorruptLog) -> Result:
        """Read again up to the damage that `error` told of; `end` is the confirmed end of the queue."""
        first, following = self._extent(queue, offset, end, error)
        if first > offset:
            return read(first)
        self.reads_total += 1
        raise UnreadableOffsets(error, queue, offset, following) from error

    def _refuse_known(self, queue: int, offset: int, count: int) -> None:
        """Raise CorruptLog when there is known damage among the next `count` messages: no checksum was looked at."""
        if not len(self.quarantine):
            return
        entries = self._index.read(queue, offset, count)
        known = list(self.quarantine)
        starts = np.array([each.start for each in known])
        at = starts.searchsorted(entries.positions, side="right") - 1
        ends = np.array([each.end for each in known])
        hit = np.flatnonzero((at >= 0) & (entries.positions < ends[at]))
        if len(hit):
            position = int(entries.positions[hit[0]])
            raise CorruptLog(self._path(position), position, known[int(at[hit[0]])].reason)

    def scrubbed(self, damage: DamagedRange) -> None:
        """Take note of damage that a pass over the log has found."""
        if self._quarantine(damage):
            self._events.error(
                "log_damage_found", file=str(self._path(damage.start)), position=damage.start,
                bytes=damage.end - damage.start, reason=damage.reason, remedy=self._remedy,
            )  # fmt: skip

    @property
    def _remedy(self) -> str:
        return f"lightmq store verify {self._directory} lists all damage; see docs/howto/damaged-store.md"

    def unreadable(self, error: CorruptLog, size: int) -> None:
        """Take note of a record of `size` bytes that cannot be read; the index thread looks how far the damage goes."""
        if not self._quarantine(DamagedRange(error.position, error.position + size, error.reason)):
            return
        self._events.error(
            "log_damage_found", file=str(error.path), position=error.position, bytes=size, reason=error.reason,
            remedy=self._remedy,
        )  # fmt: skip
        segment, end = self._log.segment_at(error.position), self._log.end
        if segment is not None:
            self._thread.submit(lambda: damage_in(self._log, segment, end), self._looked)

    def _looked(self, found: list[DamagedRange], error: Exception | None) -> None:
        if error is not None:
            self._failed(error)
            return
        for each in found:
            if self._quarantine(each):
                self._events.error("log_damage_found", position=each.start, bytes=each.end - each.start)

    def _quarantine(self, damage: DamagedRange) -> bool:
        """Add what is news and have it saved; return whether it is."""
        if not self.quarantine.add(damage):
            return False
        known = list(self.quarantine)
        self._thread.submit(lambda: save_quarantine(self._directory, known), self._saved)
        return True

    def _saved(self, _: Any, error: Exception | None) -> None:
        if error is not None:
            self._failed(error)

    def _extent(self, queue: int, offset: int, end: int, error: CorruptLog) -> tuple[int, int]:
        """Return the first unreadable offset from `offset` on and the first readable one behind it."""
        at, first, looked = offset, -1, 0
        while at < end and looked < LOOK_ENTRIES_MAX:
            entries = self._index.read(queue, at, _CHUNK_ENTRIES)
            if not len(entries):
                break
            looked += len(entries)
            ends = [*entries.offsets[1:].tolist(), entries.end]
            for begin, behind, position, size in zip(
                entries.offsets.tolist(), ends, entries.positions.tolist(), entries.sizes.tolist(), strict=True
            ):
                if self._sound(position, size):
                    if first >= 0:
                        return first, begin
                else:
                    first = max(offset, begin) if first < 0 else first
                    if size:
                        self.unreadable(self._error_at(position, error), size)
                at = behind
        return (first, min(at, end)) if first >= 0 else (offset, min(at, end))

    def _sound(self, position: int, size: int) -> bool:
        segment = self._log.segment_at(position)
        return bool(
            size and segment is not None and hot.core.first_bad(segment.view, segment.base, [position], [size]) < 0
        )

    def _error_at(self, position: int, error: CorruptLog) -> CorruptLog:
        return error if error.position == position else CorruptLog(self._path(position), position, error.reason)

    def _path(self, position: int) -> Path:
        segment = self._log.segment_at(position)
        return segment.path if segment is not None else self._log.directory
