"""Reads the whole log again, piece by piece, so that damage is found before somebody needs what it took.

A clean start looks at nothing below its checkpoint, and old messages may not be read for days. One pass begins when
the log is opened, so that a restart never skips any of it, and the next ones a day after the end of the one before. A
writer reads `bytes_per_second` at most; a replica, which serves nobody, as fast as it comes to it.
Invariant: only what is flushed is looked at; each step is one bounded piece in the index thread, and the next begins
when it is done; damage is told once. Thread rule: loop thread; pieces in the index thread.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.store import hot
from broker.store.log.commit_log import CommitLog
from broker.store.log.index_thread import IndexThread
from broker.store.recovery.quarantine import DamagedRange
from broker.store.recovery.salvage import find_next
from remoting.native.contracts import Progress

PIECE_BYTES = 4 * 1024 * 1024
"""Looked at in one step; one record at least."""
BUDGET_MS_MAX = 1_000
"""Time not used for reading that counts for later, so that a long pause is no burst."""
PAUSE_MS = 24 * 3600 * 1000
"""From the end of one pass to the next."""
Piece = tuple[Progress, DamagedRange | None]


class Scrub:
    """The passes over one open log; `found` hears of damage, `failed` of what kept a piece from being read."""

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
        """Whether a pass is under way and may go on at once."""
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

    Return where to go on, and damage at its end.
    """
    cut = min(at.position + PIECE_BYTES, end)
    seen = hot.core.scan(view, base, cut - base, at)
    if seen.position == at.position and cut < end:  # one record is larger than the piece, or damaged
        seen = hot.core.scan(view, base, end - base, at)
    if seen.position > at.position:
        return Progress(seen.position, seen.groups_end, seen.epoch, 0, 0, group_open=seen.group_open), None
    behind = min(find_next(log, at.position, at.epoch) or end, end)
    return _from(behind, at.epoch), DamagedRange(at.position, behind, seen.reason or "no record ends there")


def _from(position: int, epoch: int = 0) -> Progress:
    return Progress(position, position, epoch, 0, 0, group_open=False)
