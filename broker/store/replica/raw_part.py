"""A piece of the log as its bytes, for another replica of the same log.

Invariant: a part is a whole number of records of one epoch in one log file, exactly as they stand in the file.
Thread rule: `raw_part` on the loop thread; the bytes may travel, they are those of the mapped file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from broker.store import hot
from broker.store.log.commit_log import CommitLog
from broker.store.log.epoch_file import Epoch, epoch_at
from remoting.protocol.errors import LocalMisuse

_NOTHING = 2**62
"""A position from which on nothing is collected: the walk only finds where records end."""


@dataclass(frozen=True, slots=True)
class RawPart:
    """Bytes of the log from `position` on, in the file that starts at `segment_base` and has `segment_size` bytes."""

    position: int
    segment_base: int
    segment_size: int
    epoch: int
    data: memoryview

    @property
    def end(self) -> int:
        """Position behind the last byte."""
        return self.position + len(self.data)


def raw_part(log: CommitLog, epochs: Sequence[Epoch], position: int, bytes_max: int) -> RawPart | None:
    """Return what stands from `position` on, None at the end of the log.

    Up to `bytes_max` bytes and the rest of the record that these end in. `position` is where a record begins. Raises
    LocalMisuse below the begin of the log.
    """
    if position >= log.end:
        return None
    segment = log.segment_at(position)
    if segment is None:
        raise LocalMisuse(f"position {position} has expired; the log begins at {log.begin}")
    epoch, next_start = epoch_at(epochs, position)
    limit = min(log.end, segment.end, log.end if next_start is None else next_start)
    end = limit
    if position + bytes_max < limit:
        wanted = position + max(1, bytes_max)
        end = hot.core.collect(segment.view, segment.base, position, wanted, _NOTHING, _NOTHING, 1)[0]
    at = position - segment.base
    return RawPart(position, segment.base, segment.size, epoch, segment.view[at : at + end - position])
