"""A stretch of one queue's index entries, as columns.

An entry holds the messages from its offset up to the next one's offset: one, or those of a batch. Invariant: the arrays
have one length and run in queue-offset order without a gap, `end` is the offset behind the last entry. Thread rule:
plain values; the arrays may be views of a mapped file and are never written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(slots=True)
class Entries:
    """First queue offset, log position, record size in bytes (0: a hole) and tag hash of consecutive entries."""

    offsets: npt.NDArray[Any]
    positions: npt.NDArray[Any]
    sizes: npt.NDArray[Any]
    tags: npt.NDArray[Any]
    end: int

    @staticmethod
    def empty(offset: int = 0) -> Entries:
        """No entries, at `offset`."""
        return Entries(*_NOTHING, offset)

    @staticmethod
    def joined(parts: list[Entries], offset: int = 0) -> Entries:
        """One stretch from neighbouring ones; `offset` is where it begins if there are none."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return Entries.empty(offset)
        return Entries(
            np.concatenate([part.offsets for part in parts]),
            np.concatenate([part.positions for part in parts]),
            np.concatenate([part.sizes for part in parts]),
            np.concatenate([part.tags for part in parts]),
            parts[-1].end,
        )

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def dense(self) -> bool:
        """Whether every entry holds one message."""
        return not len(self.offsets) or self.end - int(self.offsets[0]) == len(self.offsets)


_NOTHING = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint32), np.empty(0, np.uint32))
