"""The answer of a read by queue offset.

Invariant: without `bases` records[i] has queue offset `first_offset + i`. With them a record may be a batch: the offset
of its first message is bases[i], and bases[0] may be lower than `first_offset`, because the offset asked for lies
inside it; `next_offset` is always behind the last message of the last record. Nothing at or above the confirm position
is ever in it.
Thread rule: the records are views into mapped segments and stay valid as long as they are referenced.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

OK = 0
"""Records follow; none means the reader is at the end."""
OFFSET_TOO_SMALL = 1
"""The offset has expired: `first_offset` says where the records start instead."""
NO_SUCH_QUEUE = 2
OFFSET_TOO_LARGE = 3
"""The offset lies beyond the confirmed end of the queue."""


@dataclass(slots=True)
class ReadResult:
    """Records of one queue; offsets are queue offsets, the `max_offset` is the confirmed end (exclusive)."""

    status: int
    first_offset: int
    next_offset: int
    min_offset: int
    max_offset: int
    records: list[memoryview] = field(default_factory=list)
    bases: list[int] | None = None


@dataclass(slots=True)
class RangeResult:
    """Records of one queue back to back in `blob`; record i begins at `starts[i]` (u32) in it."""

    status: int
    first_offset: int
    next_offset: int
    min_offset: int
    max_offset: int
    starts: npt.NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))
    blob: bytearray = field(default_factory=bytearray)
    bases: npt.NDArray[np.int64] | None = None
