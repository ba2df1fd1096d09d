"""What the store refuses, and what it cannot mend.

    LightMQError
    └── StoreError
        ├── StoreFull        the free-space floor is reached; reads and deletes of state continue
        ├── QueueIdsUsedUp   no queue can be made any more; those that exist go on
        ├── GivenUp          the writer is no longer master: what is not confirmed may be kept or truncated
        ├── StoreFailed      the disk failed a write or a flush; this store instance never writes again
        ├── CorruptLog       bytes below the durable position are not what was written; nothing is cut, the data is kept
        │   └── UnreadableOffsets  messages of one queue lie in such bytes; names where reading can continue
        ├── CorruptIndex     a run, manifest or snapshot is unreadable; it is rebuilt from the log
        └── Unsettled        a reader in another process found the index changing at each attempt; retry

Invariant: each message names the file, the position where there is one, and what to do. Thread rule: plain values.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from remoting.protocol.errors import LightMQError


class StoreError(LightMQError):
    """Base of what the disk side of the broker raises."""


class StoreFull(StoreError):
    """No room for new messages; free space or shorten the retention."""


class QueueIdsUsedUp(StoreError):
    """A new queue would need an id, and ids are never used again: this log has given out all there are."""


class GivenUp(StoreError):
    """What was written and not confirmed may be kept or cut by others; `fields` name the present master."""

    def __init__(self, remark: str, fields: Mapping[str, str]) -> None:
        super().__init__(remark)
        self.fields = dict(fields)


class StoreFailed(StoreError):
    """A write or flush failed: what was not confirmed may be lost, nothing more is acknowledged; restart the broker."""


class CorruptLog(StoreError):
    """A record below the durable position fails its checks; at `path` and `position`."""

    def __init__(self, path: Path, position: int, reason: str) -> None:
        super().__init__(
            f"{path}: position {position} is below the durable position but {reason}; nothing was cut, "
            "the file is kept as it is: restore it from a replica or a backup"
        )
        self.path = path
        self.position = position
        self.reason = reason


class UnreadableOffsets(CorruptLog):
    """Messages [first_offset, next_offset) of `queue` are in damaged bytes; reading can continue at `next_offset`."""

    def __init__(self, cause: CorruptLog, queue: int, first_offset: int, next_offset: int) -> None:
        StoreError.__init__(
            self,
            f"queue {queue}: the messages at offsets {first_offset} to {next_offset - 1} cannot be read, "
            f"{cause.path} is damaged at position {cause.position}: {cause.reason}; "
            f"reading can continue at offset {next_offset}",
        )
        self.path, self.position, self.reason = cause.path, cause.position, cause.reason
        self.queue, self.first_offset, self.next_offset = queue, first_offset, next_offset


class CorruptIndex(StoreError):
    """A file derived from the log is unreadable; the log can rebuild it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class Unsettled(StoreError):
    """The writer moved the data at each attempt: nothing is damaged, but the result is uncertain."""
