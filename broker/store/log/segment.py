"""One file of the commit log, named by the 20-digit position of its first byte.

    <base>  ... records back to back ... filler record to the end | zeros that were never written

Invariant: the file has its full size from birth and is never shortened while it may be mapped; bytes are written with
pwrite only, so that a full disk is an error code and not a dead process. Thread rule: writes from the loop thread,
`sync` from the flusher or index thread, views from anywhere.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

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
        while written < len(data):  # a short write is how a disk says that it is filling up
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
