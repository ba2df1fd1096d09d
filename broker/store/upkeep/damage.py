"""Damage of an open log: searched for before the lost data is needed, and skipped by reads that meet it.

A clean start reads nothing below its checkpoint, and old messages may not be read for days. So one pass over the
whole log begins when it is opened, and the next ones a day after the end of the one before. A writer reads
`bytes_per_second` at most; a replica, which serves no readers, without that limit. Invariant of a pass: only what is
flushed is read; each step is one bounded piece in the index thread; damage is reported once. One more piece is read
where a replica begins to copy a master's log: it may come again because it has refused what stands there.

Invariant of reading: a reader is never stuck and never led past messages in silence: it gets the messages in front of
the damage, then one refusal that names queue, offsets, file and position and the offset behind, then the messages
behind. Damage seen for the first time is noted in QUARANTINE, logged as an event and counted.
Thread rule: loop thread; pieces are read and the file is written by the index thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from broker.store.errors import CorruptLog, StoreError, UnreadableOffsets
from broker.store.index.absence import Absence, Found
from broker.store.index.reader import RangeResult, Reader, ReadResult, SequenceResult
from broker.store.log.commit_log import CommitLog
from broker.store.log.index_thread import IndexThread
from broker.store.placed import Placed
from broker.store.recovery.log_end import DamagedRange, damage_in, find_next, save_quarantine
from broker.store.recovery.opening import Opened
from broker.store.state.state_kinds import StateChange
from remoting.native import core as native
from remoting.native.contracts import Progress
from remoting.native.vectors import nonzero, within

PIECE_BYTES = 4 * 1024 * 1024
"""Looked at in one step; one record at least."""
BUDGET_MS_MAX = 1_000
"""Time not used for reading that counts for later, so that a long pause is no burst."""
PAUSE_MS = 24 * 3600 * 1000
"""From the end of one pass to the next."""
Piece = tuple[Progress, DamagedRange | None]


class Scrub:
    """The passes over one open log; `found` is called with damage, `failed` with the error of a read."""

    def __init__(
        self,
        log: CommitLog,
        thread: IndexThread,
        found: Callable[[DamagedRange], object],
        failed: Callable[[Exception], None],
        bytes_per_second: int | None = None,
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._budget = 0
        self._budget_ms: int | None = None
        self._log = log
        self._thread = thread
        self._found = found
        self._failed = failed
        self._at: Progress | None = _from(log.begin)
        self._ended_ms = 0
        self._is_busy = False
        self.passes_total = 0
        self.bytes_total = 0
        self.found_total = 0
        """Damaged stretches that passes have met."""
        self.completed_ms = 0
        """When the last whole pass ended; 0 before the first."""

    @property
    def working(self) -> bool:
        """Whether a pass is in progress and may continue immediately."""
        return self._at is not None and (self._bytes_per_second is None or self._budget > 0)

    @property
    def position(self) -> int:
        """Where the pass is; the end of the log between two passes."""
        return self._log.end if self._at is None else self._at.position

    def metrics(self) -> dict[str, int]:
        """How far it is and what it has found."""
        return {
            "scrub_position": self.position,
            "scrubbed_bytes_total": self.bytes_total,
            "scrub_passes_total": self.passes_total,
            "scrub_completed_ms": self.completed_ms,
            "scrub_damaged_ranges_total": self.found_total,
        }

    def step(self, now_ms: int, flushed: int) -> None:
        """Look at the next piece below `flushed`, unless the last one is still being read or it is too early."""
        self._earn(now_ms)
        if self._is_busy or (self._at is not None and not self.working):
            return
        if self._at is None:
            if abs(now_ms - self._ended_ms) < PAUSE_MS:
                return
            self._at = _from(self._log.begin)
        if self._at.position < self._log.begin:  # what has expired meanwhile
            self._at = _from(self._log.begin)
        at, segment = self._at, self._log.segment_at(self._at.position)
        if segment is None or at.position >= flushed:
            self._at, self._ended_ms = None, now_ms
            self.passes_total += 1
            self.completed_ms = now_ms
            return
        self._is_busy = True
        view, base, end = segment.view, segment.base, min(flushed, segment.end)  # the file may be dropped meanwhile
        self._thread.submit(lambda: read_piece(self._log, view, base, at, end), self._read)

    def _earn(self, now_ms: int) -> None:
        """Let the time that has passed pay for bytes."""
        rate = self._bytes_per_second
        if rate is None:
            return
        if self._budget_ms is not None:
            passed_ms = min(max(0, now_ms - self._budget_ms), BUDGET_MS_MAX)
            self._budget = min(self._budget + rate * passed_ms // 1000, rate * BUDGET_MS_MAX // 1000)
        self._budget_ms = now_ms

    def _read(self, piece: Piece | None, error: Exception | None) -> None:
        self._is_busy = False
        if error is not None or piece is None or self._at is None:
            self._failed(error or AssertionError("a piece without a result"))
            return
        seen, damage = piece
        self.bytes_total += seen.position - self._at.position
        self._budget -= seen.position - self._at.position
        self._at = seen
        if damage is not None:
            self.found_total += 1
            self._found(damage)


def read_piece(log: CommitLog, view: memoryview, base: int, at: Progress, end: int) -> Piece:
    """Check records of the file `view` that begins at `base`, from `at` on and below `end`, about a piece of them.

    Return where to continue, and damage at its end.
    """
    cut = min(at.position + PIECE_BYTES, end)
    seen = native.core.scan(view, base, cut - base, at)
    if seen.position == at.position and cut < end:  # one record is larger than the piece, or damaged
        seen = native.core.scan(view, base, end - base, at)
    if seen.position > at.position:
        return Progress(seen.position, seen.groups_end, seen.epoch, 0, 0, group_open=seen.group_open), None
    behind = min(find_next(log, at.position, at.epoch) or end, end)
    return _from(behind, at.epoch), DamagedRange(at.position, behind, seen.reason or "no record ends there")


def first_damage(log: CommitLog, view: memoryview, base: int, position: int, end: int) -> DamagedRange | None:
    """Return the first damage in about a piece of the file from a record at `position` on and below `end`, or None."""
    at, damage, stop = _from(position), None, min(position + PIECE_BYTES, end)
    while damage is None and at.position < stop:
        at, damage = read_piece(log, view, base, at, end)
    return damage


def _from(position: int, epoch: int = 0) -> Progress:
    return Progress(position, position, epoch, 0, 0, group_open=False)


LOOK_ENTRIES_MAX = 65_536
"""Entries examined for the end of one damaged range; a longer one is reported in pieces."""
_CHUNK_ENTRIES = 256
Result = TypeVar("Result")
Say = Callable[[Placed, Sequence[StateChange]], int]
"""Appends; returns where the log ends then."""
Kept = Callable[[Exception | None], None]


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
        self._mending, self._mended = opened.mending, tuple(opened.quarantine)
        """What the damage took that the opening knows of, and that damage; more may be found before it is appended."""
        self.reads_total = 0
        """Reads that met damage."""
        self._is_examining = False

    def known(self) -> Sequence[DamagedRange]:
        """Return the damaged ranges of the log, as far as it has not expired."""
        if len(self.quarantine):
            self.quarantine.drop_before(self._log.begin)  # the file is replaced with the next range, or at a start
        return tuple(self.quarantine)

    def metrics(self) -> dict[str, int]:
        """Return what there is and how often it was met."""
        self.known()
        return {
            "quarantined_ranges": len(self.quarantine),
            "quarantined_bytes": self.quarantine.size_bytes,
            "damaged_reads_total": self.reads_total,
        }

    def settle(self, say: Say, kept: Callable[[int, Kept], object]) -> None:
        """Let `say` append what the damage that the opening found took, if there is any, and note it once that is kept.

        `kept` calls back when everything below a position is. Where any of it fails, the next start does it.
        """
        mending, self._mending = self._mending, []
        if not mending:
            return
        try:
            kept(say(Placed(), mending), self._settled)
        except (OSError, StoreError) as error:
            self._not_settled(error)

    def _settled(self, error: Exception | None) -> None:
        if error is not None:
            self._not_settled(error)
            return
        self.quarantine.settle(self._mended)
        self._save()

    def _not_settled(self, error: Exception) -> None:
        self._events.error("log_damage_not_settled", error=str(error))

    def read(self, queue: int, offset: int, max_count: int, max_bytes: int, end_offset: int | None) -> ReadResult:
        """Do what `Reader.read` does, up to damage. Raises UnreadableOffsets when it begins at `offset` itself."""

        def read(end: int | None) -> ReadResult:
            return self._reader.read(queue, offset, max_count, max_bytes, end)

        try:
            return read(end_offset)
        except CorruptLog as error:
            return self._around(queue, *self._reader.clipped(queue, offset, end_offset), read, error)

    def record(self, queue: int, offset: int) -> Found:
        """Return the confirmed record that holds `offset`, which is within the bounds of `queue`; or that it is
        damaged, which is noted."""
        try:
            return self._reader.read(queue, offset, 1, 1, None).records[0]
        except CorruptLog as error:
            self.reads_total += 1
            size = int(self._index.read(queue, offset, 1).sizes[0])
            if size:  # a hole stands for damage that is known
                self.unreadable(error, size)
            return Absence.DAMAGED

    def sequences(self, queue: int, offset: int, max_count: int) -> SequenceResult:
        """Do what `Reader.sequences` does, up to damage. Raises UnreadableOffsets when it begins at `offset`."""

        def read(end: int | None) -> SequenceResult:
            return self._reader.sequences(queue, offset, max_count, end)

        try:
            return read(None)
        except CorruptLog as error:
            return self._around(queue, *self._reader.clipped(queue, offset, None), read, error)

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
        """Read again up to the damage in `error`; `end` is the confirmed end of the queue."""
        first, following = self._extent(queue, offset, end, error)
        if first > offset:
            return read(first)
        self.reads_total += 1
        raise UnreadableOffsets(error, queue, offset, following) from error

    def _refuse_known(self, queue: int, offset: int, count: int) -> None:
        """Raise CorruptLog when there is known damage among the next `count` messages: no checksum was checked."""
        if not len(self.quarantine):
            return
        entries = self._index.read(queue, offset, count)
        known = list(self.quarantine)
        hits = [
            (rows[0], each) for each in known if len(rows := nonzero(within(entries.positions, each.start, each.end)))
        ]
        if hits:
            row, damage = min(hits, key=lambda hit: hit[0])
            position = entries.positions[row]
            raise CorruptLog(self._path(position), position, damage.reason)

    def scrubbed(self, damage: DamagedRange) -> None:
        """Take note of damage that a pass over the log has found."""
        if self._quarantine(damage):
            self._events.error(
                "log_damage_found", file=str(self._path(damage.start)), position=damage.start,
                bytes=damage.end - damage.start, reason=damage.reason, remedy=self._remedy,
            )  # fmt: skip

    def examine(self, position: int) -> None:
        """Read a piece of the log from a record on, in the index thread: one at a time, and none with known damage."""
        segment, end = self._log.segment_at(position), self._log.end
        if segment is None or position >= end or self._is_examining:
            return
        end = min(segment.end, end)
        if any(position <= each.start < min(end, position + PIECE_BYTES) for each in self.quarantine):
            return
        self._is_examining = True
        self._thread.submit(
            lambda: first_damage(self._log, segment.view, segment.base, position, end), self._found_first
        )

    def _found_first(self, damage: DamagedRange | None, error: Exception | None) -> None:
        self._is_examining = False
        if error is not None:
            self._failed(error)
        elif damage is not None:
            self.scrubbed(damage)

    @property
    def _remedy(self) -> str:
        return f"lightmq store verify {self._directory} lists all damage; see docs/howto/damaged-store.md"

    def unreadable(self, error: CorruptLog, size: int) -> None:
        """Take note of a record of `size` bytes that cannot be read; the index thread finds how far the damage goes."""
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
        """Add a range that is not known yet and have it saved; return whether it was added."""
        if not self.quarantine.add(damage):
            return False
        self._save()
        return True

    def _save(self) -> None:
        known = list(self.quarantine)
        self._thread.submit(lambda: save_quarantine(self._directory, known), self._saved)

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
            size and segment is not None and native.core.first_bad(segment.view, segment.base, [position], [size]) < 0
        )

    def _error_at(self, position: int, error: CorruptLog) -> CorruptLog:
        return error if error.position == position else CorruptLog(self._path(position), position, error.reason)

    def _path(self, position: int) -> Path:
        segment = self._log.segment_at(position)
        return segment.path if segment is not None else self._log.directory
