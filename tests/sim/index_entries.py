"""Entries of the index tail without a tail, as a ring of slots."""

from __future__ import annotations

from typing import Any

from remoting.native import core as native
from remoting.native.contracts import SLOT_BYTES, RunData, slot_column
from remoting.native.vectors import full

COLUMNS = ("offset", "position", "size", "tag", "count")


def ring_of(queues: Any, *columns: Any, capacity: int = 0, first: int = 0) -> tuple[Any, Any]:
    """Queue ids and slots that contain entries (offset, position, size, tag, count) from number `first` on."""
    number = len(queues)
    capacity = capacity or max(number, 1)
    slots, qid = memoryview(bytearray(b"\7" * SLOT_BYTES * capacity)), full(capacity, 99, "I")
    fields = [slot_column(slots, name) for name in COLUMNS]
    for at, entry in enumerate(zip(queues, *columns, strict=True), first):
        qid[at % capacity] = entry[0]
        for field, value in zip(fields, entry[1:], strict=True):
            field[at % capacity] = value
    return qid, slots


def run_data(queues: Any, *columns: Any) -> RunData:
    """The content of a run of these entries, given in log order, on the twin in place."""
    return native.core.sort_entries(*ring_of(queues, *columns), 0, len(queues))
