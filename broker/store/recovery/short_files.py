"""Log files that are shorter than they were made, and the newest one when files are to be larger now.

A segment has its full size from birth, so a short one was cut by something else (a copy, a file system check).
Invariant: looking changes nothing; files are filled with zeros (`LogRepair.fill`) only once the start has decided where
the log ends. Thread rule: before the log is opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from broker.store.log.segment import list_segments, next_file_bytes
from broker.store.settings import SEGMENT_SIZE_BYTES_MAX


@dataclass(frozen=True, slots=True)
class ShortFile:
    """A log file of `size` bytes that should have `full_size`."""

    path: Path
    size: int
    full_size: int

    @property
    def base(self) -> int:
        """Log position of its first byte."""
        return int(self.path.name)

    @property
    def cut(self) -> int:
        """Log position of the first missing byte."""
        return self.base + self.size


def find_short_files(directory: Path, first_size: int, segment_size: int, durable: int) -> list[ShortFile]:
    """Return the files that end before the next one begins; the last one should be as large as the log made it.

    That is by `next_file_bytes`, less when older files have expired since; and, up to the largest size a file may have,
    it should hold what was `durable`. A whole missing file is for the log to complain about.
    """
    paths = list_segments(directory) if directory.is_dir() else []
    bases = [int(path.name) for path in paths]
    if not bases:
        return []
    last = bases[-1]
    least = next_file_bytes(last - bases[0], first_size, segment_size)
    wanted = durable + 7 & ~7 if durable - last <= SEGMENT_SIZE_BYTES_MAX else 0
    found = []
    for path, base, end in zip(paths, bases, [*bases[1:], max(last + least, wanted)], strict=True):
        size = path.stat().st_size
        if base + size < end and end - base <= SEGMENT_SIZE_BYTES_MAX:
            found.append(ShortFile(path, size, end - base))
    return found


def durable_cuts(short: list[ShortFile], durable: int) -> list[ShortFile]:
    """Return those of the files that lack bytes below `durable`."""
    return [file for file in short if file.cut < min(durable, file.base + file.full_size)]
