"""Finds the first offset of a queue that was stored at or after a time, with few reads of the log.

Store times never fall along the log. So the first record of each log file says which file the boundary lies in (those
times are remembered), the index alone narrows a queue's offsets to that file, and inside it the guess between two known
times is tried before the middle: about five records are read where halving reads twenty.
Invariant: the answer is exact; the guess only decides which record is looked at next. Records that cannot be read are
passed over. Thread rule: loop thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.store.index.queue_index import QueueIndex
from broker.store.log.commit_log import CommitLog
from remoting.protocol.records.record import HEADER, HEADER_SIZE, MAGIC, MAGIC_MASK

UNREADABLE_MAX = 64
"""Entries behind an unreadable record that are tried in its place; beyond, it counts as stored late enough."""
_EVERYTHING = (0, 2**63 - 1)


def stored_ms(log: CommitLog, position: int) -> int | None:
    """Return when the record at `position` was stored; None when no header of a record stands there."""
    header = log.view(position, HEADER_SIZE)
    if header is None:
        return None
    fields = HEADER.unpack_from(header, 0)
    return int(fields[6]) if fields[1] & MAGIC_MASK == MAGIC and fields[4] == position else None


@dataclass(slots=True)
class _Probe:
    """One look at an entry: its offsets [first, end), and its time where it was needed (None: unreadable)."""

    first: int
    end: int
    early: bool
    ms: int | None = None


class TimeSearch:
    """Searches one store by time."""

    def __init__(self, log: CommitLog, index: QueueIndex) -> None:
        self._log = log
        self._index = index
        self._first_ms: dict[int, int] = {}

    def first_offset(self, queue: int, low: int, high: int, store_ms: int) -> int:
        """Return the first offset in [low, high) stored at or after `store_ms`; `high` when none was."""
        window = self._window(store_ms)
        early: tuple[int, int] | None = None  # (offset, time) of the latest known record before the boundary
        late: tuple[int, int] | None = None
        guess = True
        while low < high:
            middle = (low + high) // 2
            if guess and early is not None and late is not None and late[1] > early[1]:
                share = (store_ms - early[1]) / (late[1] - early[1])
                middle = min(max(low, early[0] + int(share * (late[0] - early[0]))), high - 1)
            guess = not guess
            probe = self._probe(queue, middle, high, window, store_ms)
            if probe.early:
                low = probe.end
                early = (probe.first, probe.ms) if probe.ms is not None else early
            else:
                high = max(low, probe.first)
                late = (probe.first, probe.ms) if probe.ms is not None else late
        return low

    def _probe(self, queue: int, offset: int, high: int, window: tuple[int, int], store_ms: int) -> _Probe:
        """Look at the entry that holds `offset`, or at the next readable one below `high` in its place."""
        first = at = offset
        for _ in range(UNREADABLE_MAX):
            entries = self._index.read(queue, at, 1)
            position, end = int(entries.positions[0]), entries.end
            if at == offset:
                first = int(entries.offsets[0])
            if position < window[0]:
                return _Probe(at, end, early=True)
            if position >= window[1]:
                break
            ms = stored_ms(self._log, position) if entries.sizes[0] else None
            if ms is not None:
                return _Probe(at, end, True, ms) if ms < store_ms else _Probe(first, end, False, ms)
            at = end
            if at >= high:
                break
        return _Probe(first, first + 1, early=False)

    def _window(self, store_ms: int) -> tuple[int, int]:
        """Return the log positions [start, end) between which the boundary lies, by the first record of each file."""
        segments = [segment for segment in self._log.segments if segment.base < self._log.end]
        low, high = 0, len(segments)
        while low < high:
            middle = (low + high) // 2
            ms = self._time_of_file(segments[middle].base)
            if ms is None:
                return _EVERYTHING
            if ms < store_ms:
                low = middle + 1
            else:
                high = middle
        start = segments[low - 1].base if low else 0
        return start, segments[low].base if low < len(segments) else _EVERYTHING[1]

    def _time_of_file(self, base: int) -> int | None:
        known = self._first_ms.get(base)
        if known is not None:
            return known
        found = stored_ms(self._log, base)
        if found is not None:
            if len(self._first_ms) > 2 * len(self._log.segments):
                self._first_ms.clear()  # most of them have expired
            self._first_ms[base] = found
        return found
