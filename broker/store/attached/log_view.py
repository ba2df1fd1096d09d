"""The log's segments as another process sees them: mapped read-only when they are needed.

Segments appear (the writer makes one when the last is full) and go (retention deletes the oldest); they never change
their place and never get shorter, so a mapping stays right for ever. Invariant: at most `SEGMENTS_MAX` are mapped, and
none whose file the writer has deleted longer than until the next `let_go`: its space would not come back. Thread rule:
one thread; the views may travel.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections import OrderedDict
from pathlib import Path

from broker.store.log.segment import list_segments, segment_path

SEGMENTS_MAX = 64
"""Mapped at once; the one used longest ago goes first."""


class MappedSegment:
    """One segment, mapped read-only; what a reader needs of `segment.Segment`."""

    __slots__ = ("base", "end", "map", "path", "size", "view")

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.path = path
        self.base = int(path.name)
        self.size = len(self.map)
        self.end = self.base + self.size
        self.view = memoryview(self.map)

    def has_grown(self) -> bool:
        """Whether the file is longer than what is mapped: the newest one may be lengthened by a start."""
        try:
            return self.path.stat().st_size > self.size
        except FileNotFoundError:
            return False


class LogView:
    """Positions of one log directory -> mapped bytes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._bases: list[int] = []
        self._mapped: OrderedDict[int, MappedSegment] = OrderedDict()

    def begin(self) -> int:
        """Position of the oldest byte that is there now; 0 when there is none."""
        self._list_segments()
        return self._bases[0] if self._bases else 0

    def segment_at(self, position: int) -> MappedSegment | None:
        """Return the segment that holds `position`, None when it was deleted or does not exist yet."""
        found = self._known(position)
        if found is None:
            self._list_segments()
            found = self._known(position)
        return found

    def view(self, position: int, size: int) -> memoryview | None:
        """Return `size` bytes at `position`, None when they are not in one segment."""
        segment = self.segment_at(position)
        if segment is None or position + size > segment.end:
            return None
        at = position - segment.base
        return segment.view[at : at + size]

    def _known(self, position: int) -> MappedSegment | None:
        at = bisect_right(self._bases, position) - 1
        if at < 0:
            return None
        base = self._bases[at]
        segment = self._mapped.get(base)
        if segment is None or (position >= segment.end and segment.has_grown()):
            segment = self._map(base)
        else:
            self._mapped.move_to_end(base)
        return segment if segment is not None and position < segment.end else None

    def _map(self, base: int) -> MappedSegment | None:
        try:
            segment = MappedSegment(segment_path(self.directory, base))
        except (FileNotFoundError, ValueError):  # deleted meanwhile, or made and not yet as long as it will be
            return None
        self._mapped[base] = segment
        self._mapped.move_to_end(base)
        if len(self._mapped) > SEGMENTS_MAX:
            self._mapped.popitem(last=False)
        return segment

    def _list_segments(self) -> None:
        try:
            self._bases = [int(path.name) for path in list_segments(self.directory)]
        except FileNotFoundError:
            self._bases = []

    def let_go(self) -> None:
        """Unmap what has been deleted, and take the pages that were read out of this process's memory."""
        self._list_segments()
        there = set(self._bases)
        for base in [base for base in self._mapped if base not in there]:
            del self._mapped[base]
        for segment in self._mapped.values():
            segment.map.madvise(mmap.MADV_DONTNEED)
