"""The tail file that the process before left behind, for the one question only it can answer.

A tail is made anew at every start. When the end of the log turns out to be damaged, the former one still says how far
each queue was confirmed. It is memory: complete after the death of a process, perhaps partly there after a power cut.
Invariant: nothing is taken from a file whose layout does not hold together. Thread rule: before the first append.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from broker.store.index.tail import rows_of
from remoting.native.contracts import CONFIRMED, ROW_WORDS

BEHIND_MAX = 1 << 32
"""A queue that is further behind than this was not confirmed so far: the number is rubbish."""


class FormerTail:
    """Holds the file at `path` mapped, also when another takes its name."""

    def __init__(self, path: Path) -> None:
        self._map: mmap.mmap | None = None
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):  # there is none, or it is empty
            return

    def confirmed_beyond(self, next_offsets: npt.NDArray[Any]) -> list[tuple[int, int]]:
        """Return (queue id, its confirmed end) of the queues that were confirmed beyond `next_offsets`."""
        rows = rows_of(memoryview(self._map)) if self._map is not None else None
        if rows is None:
            return []
        count = min(len(rows), len(next_offsets))
        confirmed = rows.reshape(-1, ROW_WORDS)[:count, CONFIRMED]
        behind = confirmed - next_offsets[:count]
        return [
            (queue, int(confirmed[queue])) for queue in np.flatnonzero((behind > 0) & (behind < BEHIND_MAX)).tolist()
        ]

    def close(self) -> None:
        """Unmap the file; nothing can be read afterwards."""
        self._map = None
