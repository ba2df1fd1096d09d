"""A stretch of one queue's index entries, as columns.

Invariant: the three arrays have one length and run in queue-offset order. Thread rule: plain values; the arrays may be
views of a mapped file and are never written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(slots=True)
class Entries:
    """Log position, record size in bytes and tag hash of consecutive entries."""

    positions: npt.NDArray[Any]
    sizes: npt.NDArray[Any]
    tags: npt.NDArray[Any]

    @staticmethod
    def empty() -> Entries:
        """No entries."""
        return _EMPTY

    @staticmethod
    def joined(parts: list[Entries]) -> Entries:
        """One stretch from neighbouring ones."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return _EMPTY
        return Entries(
            np.concatenate([part.positions for part in parts]),
            np.concatenate([part.sizes for part in parts]),
            np.concatenate([part.tags for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.positions)


_EMPTY = Entries(np.empty(0, np.int64), np.empty(0, np.uint32), np.empty(0, np.uint32))
