"""What the store refuses, and what it cannot mend.

    LightMQError
    ├── LocalMisuse
    │   └── RecordTooLarge   a record that no segment can hold
    └── StoreError
        ├── StoreFull        the free-space floor is reached; reads and deletes of state go on
        ├── StoreFailed      the disk failed a write or a flush; this store instance never writes again
        ├── CorruptLog       bytes below the durable position are not what was written; nothing is cut, the data is kept
        ├── CorruptIndex     a run, manifest or snapshot is unreadable; it is rebuilt from the log
        └── WrongFormat      the directory was written by another version

Invariant: each message names the file, the position where there is one, and what to do. Thread rule: plain values.
"""

from __future__ import annotations

from pathlib import Path

from remoting.protocol.errors import LightMQError, LocalMisuse


class StoreError(LightMQError):
    """Base of what the disk side of the broker raises."""


class StoreFull(StoreError):
    """No room for new messages; free space or shorten the retention."""


class StoreFailed(StoreError):
    """A write or flush failed: what was not confirmed may be lost, nothing more is acknowledged; restart the broker."""


class CorruptLog(StoreError):
    """A record below the durable position fails its checks; `path` and `position` say where."""

    def __init__(self, path: Path, position: int, reason: str) -> None:
        super().__init__(
            f"{path}: position {position} is below the durable position but {reason}; nothing was cut, "
            "the file is kept as it is: restore it from a replica or a backup"
        )
        self.path = path
        self.position = position
        self.reason = reason


class CorruptIndex(StoreError):
    """A file derived from the log is unreadable; the log can rebuild it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class WrongFormat(StoreError):
    """The data directory belongs to another version of the store."""


class RecordTooLarge(LocalMisuse):
    """A record is larger than the store takes."""
