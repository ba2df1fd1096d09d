"""Reads a replica's whole log again, piece by piece, so that damage is found before the replica is needed.

A master's damage is found by whoever reads from it; nobody reads from a replica. One pass begins when the log is
opened, the next ones a day apart. Invariant: only what is flushed is looked at; each step is one bounded piece in the
index thread, and the next begins when it is done; damage is told once. Thread rule: loop thread; pieces in the index
thread.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.store import hot
from broker.store.commit_log import CommitLog
from broker.store.hot.contracts import Progress
from broker.store.index_thread import IndexThread
from broker.store.quarantine import DamagedRange
from broker.store.salvage import find_next
from broker.store.segment import Segment

PIECE_BYTES = 4 * 1024 * 1024
"""Looked at in one step; one record at least."""
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
    ) -> None:
        self._log = log
        self._thread = thread
        self._found = found
        self._failed = failed
        self._at: Progress | None = _from(log.begin)
        self._ended_ms = 0
        self._is_busy = False
        self.passes_total = 0
        self.bytes_total = 0

    @property
    def working(self) -> bool:
        """Whether a pass is under way."""
        return self._at is not None

    def step(self, now_ms: int, flushed: int) -> None:
        """Look at the next piece below `flushed`, unless the last one is still being read."""
        if self._is_busy:
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
            return
        self._is_busy = True
        self._thread.submit(lambda: read_piece(self._log, segment, at, flushed), self._read)

    def _read(self, piece: Piece | None, error: Exception | None) -> None:
        self._is_busy = False
        if error is not None or piece is None or self._at is None:
            self._failed(error or AssertionError("a piece without a result"))
            return
        seen, damage = piece
        self.bytes_total += seen.position - self._at.position
        self._at = seen
        if damage is not None:
            self._found(damage)


def read_piece(log: CommitLog, segment: Segment, at: Progress, end: int) -> Piece:
    """Check records of `segment` from `at` on, about a piece of them; return where to go on, and damage at its end."""
    limit = min(end, segment.end)
    cut = min(at.position + PIECE_BYTES, limit)
    seen = hot.core.scan(segment.view, segment.base, cut - segment.base, at)
    if seen.position == at.position and cut < limit:  # one record is larger than the piece, or damaged
        seen = hot.core.scan(segment.view, segment.base, limit - segment.base, at)
    if seen.position > at.position:
        return Progress(seen.position, seen.groups_end, seen.epoch, 0, 0, group_open=seen.group_open), None
    behind = min(find_next(log, at.position, at.epoch) or limit, limit)
    return _from(behind, at.epoch), DamagedRange(at.position, behind, seen.reason or "no record ends there")


def _from(position: int, epoch: int = 0) -> Progress:
    return Progress(position, position, epoch, 0, 0, group_open=False)
