"""A piece of a log on its way from a master to its replicas.

Invariant: whole records of one epoch in one log file, byte for byte as they stand there; `data` is not copied, so it
keeps that file mapped. Thread rule: an immutable value.
"""

from __future__ import annotations

from dataclasses import dataclass


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
