"""What a torn tail held, kept aside before it is zeroed.

    quarantine/torn-<20-digit position>-<10-digit epoch that found it>   the bytes from that log position on

Nobody was promised these bytes; they are kept for whoever looks for a cause. Invariant: bounded in number and size, and
never a reason not to start. Thread rule: before the log is served.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from broker.store.log.commit_log import CommitLog

DIRECTORY = "quarantine"
TORN_FILES_MAX = 4
"""Torn tails kept; the oldest goes when there is one more."""
TORN_BYTES_MAX = 1024 * 1024
"""Most bytes kept of one torn tail, from its beginning."""


def keep_torn_tail(log: CommitLog, directory: Path, position: int, epoch: int, events: Any) -> None:
    """Keep what stands from `position` on in the data directory's folder, unless it is nothing but zeros."""
    data = _bytes_from(log, position).rstrip(b"\0")
    if not data:
        return
    folder = directory / DIRECTORY
    path = folder / f"torn-{position:020d}-{epoch:010d}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(data)
        kept = sorted(folder.glob("torn-*"), key=lambda each: each.name.rpartition("-")[2])
        for old in kept[:-TORN_FILES_MAX]:
            old.unlink()
    except OSError as error:
        events.warning("torn_tail_not_kept", position=position, error=str(error))
        with suppress(OSError):
            path.unlink()


def _bytes_from(log: CommitLog, position: int) -> bytes:
    parts, left = [], TORN_BYTES_MAX
    while left > 0 and (segment := log.segment_at(position)) is not None:
        at = position - segment.base
        part = bytes(segment.view[at : at + left])
        parts.append(part)
        left -= len(part)
        position = segment.end
    return b"".join(parts)
