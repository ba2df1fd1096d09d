"""Log files that are shorter than they were made: filled up with zeros where nothing durable is missing.

A segment has its full size from birth, so a short one was cut by something else (a copy, a file system check).
Invariant: a file that lacks bytes below the durable position is reported and left as it is; otherwise the missing part
can only have held what a torn tail may lose. Thread rule: before the log is opened.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from broker.store.errors import CorruptLog
from broker.store.segment import list_segments
from broker.store.settings import SEGMENT_SIZE_BYTES_MAX


def fill_short_files(directory: Path, segment_size: int, durable: int, events: Any) -> None:
    """Give every file of `directory` its size: up to the next file, the last one `segment_size` bytes at least.

    Raises CorruptLog when bytes below `durable` are gone; OSError.
    """
    paths = list_segments(directory) if directory.is_dir() else []
    bases = [int(path.name) for path in paths]
    ends = [*bases[1:], bases[-1] + segment_size] if bases else []
    for path, base, end in zip(paths, bases, ends, strict=True):
        size = path.stat().st_size
        if base + size >= end or end - base > SEGMENT_SIZE_BYTES_MAX:
            continue  # a whole file that is missing is for the log to complain about
        if base + size < min(durable, end):
            raise CorruptLog(path, base + size, "the file is cut off there")
        os.truncate(path, end - base)
        events.warning("short_log_file_filled", file=path.name, missing_bytes=end - base - size)
