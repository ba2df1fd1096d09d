"""Queue names and their u32 ids.

A queue is a QUEUE state record: key = name, value = { id u32, next offset i64 at the time of writing }. The next offset
matters when the record is carried forward by retention: a queue whose messages have all expired still goes on where it
stopped. The empty name holds { next free id, 0 }, so that a deleted id never comes back.
Invariant: an id names at most one queue, ever. Thread rule: loop thread.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.store.state import state_kinds
from broker.store.state.name_table import VALUE
from broker.store.state.state_log import StateChange
from broker.store.state.state_tables import StateTables

QUEUE_ID_MAX = 2**32 - 3


class QueueRegistry:
    """The view of the QUEUE table by name and by id; `on_queue(id, next offset)` is called for each changed one."""

    def __init__(self, tables: StateTables) -> None:
        self._names = tables.queues
        self.find = self._names.find
        self.name = self._names.name
        self.exists = self._names.exists
        self.on_queue: Callable[[int, int], None] | None = None
        tables.subscribe(state_kinds.QUEUE, self._changed)

    @property
    def next_id(self) -> int:
        """The id the next new queue gets."""
        return self._names.next_id

    @property
    def count(self) -> int:
        """How many queues there are."""
        return self._names.count

    def creation(self, names: list[bytes]) -> list[StateChange]:
        """Return the changes that create `names`, which do not exist."""
        first = self.next_id
        assert first + len(names) <= QUEUE_ID_MAX, first
        return [StateChange(state_kinds.QUEUE, name, queue_value(first + at, 0)) for at, name in enumerate(names)]

    def deletion(self, queue: int) -> list[StateChange]:
        """Return the changes that delete `queue` and keep its id from coming back."""
        name = self.name(queue)
        assert name is not None
        return [
            StateChange(state_kinds.QUEUE, name, None),
            StateChange(state_kinds.QUEUE, b"", queue_value(self.next_id, 0)),
        ]

    def _changed(self, name: bytes, value: bytes | None, _position: int) -> None:
        if name and value is not None and self.on_queue is not None:
            self.on_queue(*VALUE.unpack(value))


def queue_value(queue: int, next_offset: int) -> bytes:
    """Return the value of a QUEUE record."""
    return VALUE.pack(queue, next_offset)


def carried_value(name: bytes, value: bytes, next_offset: Callable[[int], int]) -> bytes:
    """Return what retention says about queue `name` when it says `value` again."""
    queue, _ = VALUE.unpack(value)
    return queue_value(queue, next_offset(queue)) if name else value
