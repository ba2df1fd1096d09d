"""Entries of the index tail without a tail, as a ring of slots."""

from __future__ import annotations

from typing import Any

import numpy as np

from remoting.native import core as native
from remoting.native.contracts import SLOT, RunData

COLUMNS = ("offset", "position", "size", "tag", "count")


def ring_of(queues: Any, *columns: Any, capacity: int = 0, first: int = 0) -> tuple[Any, Any]:
    """Queue ids and slots that contain entries (offset, position, size, tag, count) from number `first` on."""
    number = len(queues)
    capacity = capacity or max(number, 1)
    slots, qid = np.full(capacity, 7, np.uint8).repeat(SLOT.itemsize).view(SLOT), np.full(capacity, 99, "<u4")
    places = np.arange(first, first + number) % capacity
    qid[places] = queues
    for name, column in zip(COLUMNS, columns, strict=True):
        slots[name][places] = column
    return qid, slots


def run_data(queues: Any, *columns: Any) -> RunData:
    """The content of a run of these entries, given in log order, on the twin in place."""
    return native.core.sort_entries(*ring_of(queues, *columns), 0, len(queues))
