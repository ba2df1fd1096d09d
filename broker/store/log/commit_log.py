"""The one physical log: files back to back, written at `end`, readable anywhere below it.

    log/<20-digit base>   one file, named by the position of its first byte: records back to back, a filler record to
                          the end | zeros that were never written; base of the next = base + size
    log/.next             the next file, prepared in the background

Invariant: a file has its full size from birth and is never shortened while it may be mapped; bytes are written with
pwrite only, so that a full disk is an error code and does not kill the process. Bytes below `end` are whole records;
`end` moves only after every byte below it was handed to the kernel, and `sync` returns a position only after every byte
below it is on the disk. Thread rule: `write`, `drop_before` on the loop thread; `sync` on the flusher and the index
thread; `prepare_next` on the index thread; views on any thread.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from broker.store.errors import CorruptLog, StoreFailed
from remoting.native import core as native
from remoting.native.contracts import EntryBlock, Progress
from runtime.faults import FaultPoints
from runtime.files import fsync_dir, make_directory

_NAME = re.compile(r"\d{20}")
_ZERO_CHUNK = bytes(64 * 1024)
"""The pieces a file is zeroed in: the page cache keeps them as they were written, and a small write into a piece of a
megabyte costs twice as much (decision 0011)."""
FILE_MODE = 0o600


class Segment:
    """An open log file of `size` bytes that starts at position `base`."""

    __slots__ = ("_map", "base", "descriptor", "end", "path", "size", "view")

    def __init__(self, path: Path, base: int | None = None) -> None:
        self.path = path
        self.base = int(path.name) if base is None else base
        self.descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._open_map(os.fstat(self.descriptor).st_size)

    def _open_map(self, size: int) -> None:
        self.size = size
        self.end = self.base + size
        self._map = mmap.mmap(self.descriptor, size, access=mmap.ACCESS_READ) if size else None
        self.view = memoryview(b"") if self._map is None else memoryview(self._map)

    def lengthen(self, size: int) -> None:
        """Give a file that was cut its size back, in zeros; views of it stay what they were. Raises OSError.

        The space is reserved: on a full disk of memory (tmpfs) reading a hole through the map would end the process.
        """
        assert size > self.size, (size, self.size)
        os.posix_fallocate(self.descriptor, self.size, size - self.size)
        self._open_map(size)

    def write(self, position: int, data: bytes | memoryview) -> None:
        """Write all of `data` at `position`. Raises OSError; part of it may then have been written."""
        at = position - self.base
        assert 0 <= at <= self.size - len(data), (self.base, position, len(data))
        written = os.pwrite(self.descriptor, data, at)
        while written < len(data):  # a short write means that the disk is filling up
            written += os.pwrite(self.descriptor, memoryview(data)[written:], at + written)

    def zero(self, start: int, end: int) -> bool:
        """Write zeros over every block of [start, end) that holds anything; return whether there was any."""
        found = False
        for first, last in self._data_ranges(start - self.base, end - self.base):
            for at in range(first, last, len(_ZERO_CHUNK)):
                stop = min(at + len(_ZERO_CHUNK), last)
                if os.pread(self.descriptor, stop - at, at) != _ZERO_CHUNK[: stop - at]:
                    os.pwrite(self.descriptor, memoryview(_ZERO_CHUNK)[: stop - at], at)
                    found = True
        return found

    def _data_ranges(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of the file that are not holes; a file system without holes answers with one part."""
        at = start
        while at < end:
            try:
                at = os.lseek(self.descriptor, at, os.SEEK_DATA)
                hole = os.lseek(self.descriptor, at, os.SEEK_HOLE)
            except OSError as error:
                if error.errno != errno.ENXIO:  # a file system that does not know holes
                    yield at, end
                return  # ENXIO: nothing but holes to the end
            if at < end:
                yield at, min(hole, end)
            at = hole

    def sync(self) -> None:
        """Make everything written durable. Raises OSError."""
        os.fdatasync(self.descriptor)

    def release_pages(self) -> None:
        """Take the pages read so far out of this process's memory; the page cache keeps them, views stay valid."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Give the descriptor back; views that are still held keep the mapping alive."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            self.view = memoryview(b"")

    def drop(self) -> None:
        """Delete the file; readers that hold views of it keep them."""
        self.path.unlink(missing_ok=True)
        self.close()


def segment_path(directory: Path, base: int) -> Path:
    """Return the file of the segment that starts at `base`."""
    return directory / f"{base:020d}"


def list_segments(directory: Path) -> list[Path]:
    """Return the log files in order of their positions; anything else in the directory is left alone."""
    return sorted(path for path in directory.iterdir() if _NAME.fullmatch(path.name))


def next_file_bytes(log_bytes: int, first: int, most: int) -> int:
    """Return the size of the file behind `log_bytes` of other files: they double the log until they have their size."""
    return min(max(first, log_bytes), most)


def allocate(path: Path, size: int, *, zeroed: bool, wanted: Callable[[], bool] = lambda: True) -> None:
    """Make `path` a file of `size` zero bytes whose space is reserved, durably. Raises OSError and leaves nothing then.

    `zeroed` really writes the zeros: later flushes then change no metadata (half the time of one flush). That takes
    its time; once the file is no longer `wanted` it ends early, with a file that is not durable.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    try:
        os.posix_fallocate(descriptor, 0, size)
        for at in range(0, size if zeroed else 0, len(_ZERO_CHUNK)):
            if not wanted():
                return
            os.pwrite(descriptor, memoryview(_ZERO_CHUNK)[: min(len(_ZERO_CHUNK), size - at)], at)
        os.fsync(descriptor)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


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
        fsync_dir(
            directory
        )  # the process that renamed the newest file may have been killed before its name was durable
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

    @property
    def files_bytes(self) -> int:
        """What the log's files take, with the next one, which is prepared while the last one is written."""
        return self.capacity_end - self.begin + self._next_size()

    def grow_to(self, size: int) -> None:
        """Let further files be at most this large."""
        self._first_size, self._segment_size = min(self._first_size, size), size

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
        """Remove what a failed write left: a stale record after a shorter new one would become part of the log."""
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
        """Release mapped pages that reads have loaded; see Segment.release_pages."""
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
        """Zero everything from `end` on, durably, and continue writing there; return whether anything was there."""
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
        """Drop every file and start again at `position` with an empty one, durably."""
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


@dataclass(slots=True)
class TakenGroup:
    """The records in [first_position, end_position); see `contracts.Encoded`."""

    first_position: int
    end_position: int
    entries: EntryBlock
    keyed: bool = True
    pieces: list[tuple[int, bytes]] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    retained: list[tuple[int, int, int]] = field(default_factory=list)
    controls: list[int] = field(default_factory=list)

    def forget_bytes(self) -> None:
        """Nothing to drop: the bytes were written before they came here."""


def taken_groups(first: int, end: int, blocks: Sequence[EntryBlock]) -> list[TakenGroup]:
    """Return what is confirmed together once `end` is; one group at least, because state may have no entries."""
    return [TakenGroup(first, end, block) for block in blocks or [native.core.make_block([], [], [], [], [], [])]]


def whole_groups(log: CommitLog, start: int, blocks: Sequence[tuple[EntryBlock, int]]) -> list[TakenGroup]:
    """Return the blocks with the log positions they are confirmed at, the last one at the end of the log.

    Each block comes with the position up to which it covers the log from `start` on, which may be within a group.
    """
    ends, seen = [], Progress(start, start, 0, 0, 0, group_open=False)
    for _, end in blocks:
        while seen.position < end and (segment := log.segment_at(seen.position)) is not None:
            before = seen.position
            seen = native.core.scan(segment.view, segment.base, min(end, segment.end) - segment.base, seen)
            if seen.position == before:  # damage: the ends of groups are unknown here
                seen = Progress(end, end, seen.epoch, 0, 0, group_open=False)
        ends.append(log.end if seen.group_open else end)
    groups, following = [], log.end
    for (block, _), end in zip(reversed(blocks), reversed(ends), strict=True):
        following = min(end, following)
        groups.append(TakenGroup(start, following, block))
    groups.reverse()
    if not groups or groups[-1].end_position < log.end:
        groups += taken_groups(start, log.end, [])
    return groups if log.end > start else []
