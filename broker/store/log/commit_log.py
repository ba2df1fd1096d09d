"""The one physical log: segments one behind the other, written at `end`, readable anywhere below it.

    log/<20-digit base>   segments; base of one = base + size of the one before
    log/.next             the next segment, prepared in the background

Invariant: bytes below `end` are whole records; `end` moves only after every byte below it was handed to the kernel,
and `sync` returns a position only after every byte below it is on the disk. Thread rule: `write`, `drop_before` from
the loop thread; `sync` from the flusher and the index thread; `prepare_next` from the index thread; views from
anywhere.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from broker.store.errors import CorruptLog, StoreFailed
from broker.store.log.segment import Segment, allocate, list_segments, next_file_bytes, segment_path
from runtime.faults import FaultPoints
from runtime.files import fsync_dir, make_directory

Piece = tuple[Segment, int, bytes | memoryview]
"""A segment, a position in it, and the bytes to write there."""

RESIZED = ".resized"
"""Name of a file that takes the place of one that is too large."""


class CommitLog:
    """The segments of one data directory."""

    def __init__(
        self,
        directory: Path,
        segment_size: int,
        faults: FaultPoints,
        *,
        zeroed: bool,
        lacking: Iterable[int] = (),
        first_size: int | None = None,
    ) -> None:
        """Open what there is; files at the bases `lacking` may be too short and get their size by `fill`.

        A first file has `first_size` bytes, the same as others unless given; later ones grow up to `segment_size`.
        """
        make_directory(directory, mode=0o700, inner=True)
        self.directory = directory
        self.end = 0
        self.durable = 0
        """Everything below it is on the disk; set by recovery."""
        self.growing = True
        """Whether a next file is wanted; not when the log is about to be closed: filling one with zeros takes time."""
        self._first_size = segment_size if first_size is None else first_size
        self._segment_size = segment_size
        self._zeroed = zeroed
        self._faults = faults
        self._next = directory / ".next"
        self._next.unlink(missing_ok=True)
        (directory / RESIZED).unlink(missing_ok=True)
        fsync_dir(directory)  # who renamed the newest file may have been killed before its name was durable
        self._prepared = False
        self._sync_lock = threading.Lock()
        self._sync_error: OSError | None = None
        self.segments = [Segment(path) for path in list_segments(directory)]
        self._bases = [segment.base for segment in self.segments]
        short = set(lacking)
        for before, after in zip(self.segments, self.segments[1:], strict=False):
            if before.end != after.base and before.base not in short:
                raise CorruptLog(after.path, before.end, f"no log file starts there, the next starts at {after.base}")

    @property
    def begin(self) -> int:
        """Position of the oldest byte that is still there."""
        return self._bases[0] if self._bases else 0

    @property
    def capacity_end(self) -> int:
        """Position behind the last byte of the last file."""
        return self.segments[-1].end if self.segments else 0

    def segment_at(self, position: int) -> Segment | None:
        """Return the segment that holds `position`, None when it has expired or is not there yet."""
        at = bisect_right(self._bases, position) - 1
        if at < 0:
            return None
        segment = self.segments[at]
        return segment if position < segment.end else None

    def segment_to_append(self, position: int) -> Segment:
        """Return the segment that holds `position`, made on demand when it would be the next one. Raises OSError."""
        segment = self.segment_at(position)
        if segment is not None:
            return segment
        assert not self.segments or position == self.segments[-1].end, (position, self._bases)
        self._faults.hit("log.allocate")
        path = segment_path(self.directory, position)
        prepared, self._prepared = self._prepared, False
        size = self._next_size()
        if prepared and self._next.stat().st_size == size:
            self._next.rename(path)
        else:
            allocate(path, size, zeroed=False)
        fsync_dir(self.directory)
        segment = Segment(path)
        self.segments.append(segment)
        self._bases.append(position)
        return segment

    def use_size(self, size: int) -> None:
        """Make further files of `size` bytes."""
        self._first_size = self._segment_size = size

    def _next_size(self) -> int:
        return next_file_bytes(self.capacity_end - self.begin, self._first_size, self._segment_size)

    def needs_next(self) -> bool:
        """Whether the segment being written is half full and no next one is prepared."""
        segment = self.segment_at(self.end)
        last = bool(self.segments) and segment is self.segments[-1]
        return last and segment is not None and not self._prepared and self.end - segment.base >= segment.size // 2

    def prepare_next(self) -> None:
        """Reserve (and for synchronous flushing pre-zero) the next segment. Raises OSError."""
        self._faults.hit("log.allocate")
        allocate(self._next, self._next_size(), zeroed=self._zeroed, wanted=lambda: self.growing)
        self._prepared = self.growing

    def write(self, pieces: Sequence[Piece], end: int) -> None:
        """Write `pieces` and move `end`. OSError: nothing of it is in the log; StoreFailed: remains of it are."""
        try:
            for segment, position, data in pieces:
                self._faults.hit("log.write")
                segment.write(position, data)
        except OSError:
            for _, position, data in pieces:
                self.erase(position, len(data))
            raise
        self.end = end

    def erase(self, position: int, size: int) -> None:
        """Remove what a failed write left: a stale whole record behind a shorter new one would come back to life."""
        try:
            self.segment_to_append(position).write(position, bytes(size))
        except OSError as error:
            raise StoreFailed(
                f"{self.directory}: a failed write at {self.end} cannot be taken back: {error}"
            ) from error

    def sync(self) -> int:
        """Make the log durable; return the position below which it is. Raises OSError, and the same again ever after.

        One at a time: a second caller must not take "nothing is left" for "it is on the disk" while the first still
        flushes. After a failed fdatasync the kernel may have dropped the dirty pages, so a second try proves nothing.
        """
        with self._sync_lock:
            if self._sync_error is not None:
                raise self._sync_error
            target, durable = self.end, self.durable
            try:
                for segment in self._between(durable, target):
                    self._faults.hit("log.fsync")
                    segment.sync()
            except OSError as error:
                self._sync_error = error
                raise
            self.durable = target
            return target

    def _between(self, start: int, end: int) -> list[Segment]:
        """Return the files that hold anything of [start, end), oldest first; few, and the newest."""
        found: list[Segment] = []
        for segment in reversed(self.segments.copy()):
            if segment.end <= start:
                break
            if max(segment.base, start) < end:
                found.append(segment)
        return found[::-1]

    def view(self, position: int, size: int) -> memoryview | None:
        """Return `size` bytes at `position`, None when they are not (or no longer) in one segment."""
        segment = self.segment_at(position)
        if segment is None or position + size > segment.end:
            return None
        at = position - segment.base
        return segment.view[at : at + size]

    def drop_newest(self, position: int) -> None:
        """Delete files that begin at or behind `position`, the newest first; the oldest stays unless it is negative.

        For repairs of the log: `end` is ignored.
        """
        while self.segments and self.segments[-1].base >= position and (len(self.segments) > 1 or position < 0):
            self._bases.pop()
            self.segments.pop().drop()
            fsync_dir(self.directory)

    def drop_before(self, position: int) -> int:
        """Delete segments that end at or below `position`, oldest first; return how many bytes went."""
        dropped = 0
        while self.segments and self.segments[0].end <= position and len(self.segments) > 1:
            segment = self.segments.pop(0)
            self._bases.pop(0)
            segment.drop()
            fsync_dir(self.directory)  # one by one: a power cut must not bring an older one back and leave a gap
            dropped += segment.size
        return dropped

    def release_pages(self) -> None:
        """Let go of mapped pages that reads have brought in; see Segment.release_pages."""
        for segment in self.segments:
            segment.release_pages()

    def close(self) -> None:
        """Give all descriptors back."""
        for segment in self.segments:
            segment.close()
        self._next.unlink(missing_ok=True)


class LogRepair:
    """What is done to the files of a log other than writing at its end: by its recovery, and on a replica.

    Everything but `fill` is durable when it returns. The log is at rest but for a replica's `resize_last`.
    """

    def __init__(self, log: CommitLog) -> None:
        self._log = log

    def fill(self, sizes: Mapping[int, int]) -> None:
        """Give the files at these bases their sizes back, in zeros. Raises OSError."""
        for segment in self._log.segments:
            if segment.base in sizes:
                segment.lengthen(sizes[segment.base])

    def cut(self, end: int) -> bool:
        """Zero everything from `end` on, durably, and go on writing there; return whether anything was there."""
        found = False
        for segment in self._log.segments:
            if segment.end > end and segment.zero(max(end, segment.base), segment.end):
                found = True
                segment.sync()
        self._log.end = end
        return found

    def sync_from(self, position: int) -> None:
        """Make the files that hold anything from `position` on durable; used before serving what a scan found."""
        for segment in self._log.segments:
            if segment.end > position:
                segment.sync()

    def truncate(self, position: int) -> None:
        """End the log at `position`, durably: files behind it go, the newest first; the rest of its file is zeroed."""
        self._log.drop_newest(position)
        if self._log.segments and self._log.segments[-1].zero(position, self._log.segments[-1].end):
            self._log.segments[-1].sync()
        self._log.end = self._log.durable = position

    def restart(self, position: int) -> None:
        """Drop every file and begin anew at `position` with an empty one, durably."""
        self._log.drop_newest(-1)
        self._log.end = self._log.durable = position
        self._log.segment_to_append(position)

    def resize_last(self, size: int) -> Segment:
        """Give the file that holds the end another size, durably; no byte below the end is lost. Raises OSError.

        Files behind it, which a power cut has left empty, go first: it is the last one then. A mapped file is never
        shortened: a shorter one takes its place, and views of the old one stay what they were.
        """
        holder = self._log.segment_at(self._log.end)
        if holder is not None:
            self._log.drop_newest(holder.end)
        last = self._log.segments[-1]
        assert last.base + size >= self._log.end, (last.base, size, self._log.end)
        if size > last.size:
            last.lengthen(size)
            last.sync()
            return last
        resized = self._log.directory / RESIZED
        allocate(resized, size, zeroed=False)
        fresh = Segment(resized, last.base)
        try:
            fresh.write(last.base, last.view[: self._log.end - last.base])
            fresh.sync()
            resized.rename(last.path)
            fsync_dir(self._log.directory)
        except OSError:
            fresh.drop()
            raise
        fresh.path = last.path
        self._log.segments[-1] = fresh
        last.close()
        return fresh
