"""Queue names and their u32 ids.

A queue is a QUEUE state record: key = name, value = { id u32, next offset i64 at the time of writing }. The next offset
matters when the record is carried forward by retention: a queue whose messages have all expired still goes on where it
stopped. The empty name holds { next free id, 0 }, so that a deleted id never comes back.
Invariant: an id names at most one queue, ever. Thread rule: loop thread.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from broker.store import state_kinds
from broker.store.state_log import StateChange
from broker.store.state_tables import StateTables

_VALUE = struct.Struct("<Iq")
QUEUE_ID_MAX = 2**32 - 2


class QueueRegistry:
    """The view of the QUEUE table by name and by id; `on_queue(id, next offset)` hears of every queue seen."""

    def __init__(self, tables: StateTables, on_queue: Callable[[int, int], None]) -> None:
        self._ids: dict[bytes, int] = {}
        self._names: list[bytes | None] = []
        self.on_queue = on_queue
        tables.subscribe(state_kinds.QUEUE, self._changed)

    @property
    def next_id(self) -> int:
        """The id the next new queue gets."""
        return len(self._names)

    @property
    def count(self) -> int:
        """How many queues there are."""
        return len(self._ids)

    def find(self, name: bytes) -> int | None:
        """Return the id of `name`."""
        return self._ids.get(name)

    def name(self, queue: int) -> bytes | None:
        """Return the name of id `queue`; None when it never was or is deleted."""
        return self._names[queue] if 0 <= queue < len(self._names) else None

    def creation(self, names: list[bytes]) -> list[StateChange]:
        """Return the changes that create `names`, which do not exist."""
        first = self.next_id
        assert first + len(names) <= QUEUE_ID_MAX, first
        return [StateChange(state_kinds.QUEUE, name, queue_value(first + at, 0)) for at, name in enumerate(names)]

    def deletion(self, queue: int) -> list[StateChange]:
        """Return the changes that delete `queue` and keep its id from coming back."""
        name = self._names[queue]
        assert name is not None
        return [
            StateChange(state_kinds.QUEUE, name, None),
            StateChange(state_kinds.QUEUE, b"", queue_value(self.next_id, 0)),
        ]

    def _changed(self, name: bytes, value: bytes | None, _position: int) -> None:
        if value is None:
            queue = self._ids.pop(name, None)
            if queue is not None:
                self._names[queue] = None
            return
        queue, next_offset = _VALUE.unpack(value)
        if not name:
            self._grow(queue)
            return
        self._grow(queue + 1)
        self._ids[name] = queue
        self._names[queue] = name
        self.on_queue(queue, next_offset)

    def _grow(self, count: int) -> None:
        if count > len(self._names):
            self._names.extend([None] * (count - len(self._names)))


def queue_value(queue: int, next_offset: int) -> bytes:
    """Return the value of a QUEUE record."""
    return _VALUE.pack(queue, next_offset)


def carried_value(name: bytes, value: bytes, next_offset: Callable[[int], int]) -> bytes:
    """Return what retention says about queue `name` when it says `value` again."""
    queue, _ = _VALUE.unpack(value)
    return queue_value(queue, next_offset(queue)) if name else value
