"""All messages that groups have by POP, in order or not, and the log that keeps them.

Changes are computed first, written in one group with what belongs to them, then taken over. Acknowledgements of one
turn of the loop gather and are written together: at its end, or ahead of whatever uses the tables.

Invariant: a message is in flight in order or not, never both; one whose acknowledgement has gathered is not found. Loop
thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from broker.pop.check_points import BlockChange, CheckPoints, Lookup, Owned
from broker.pop.ordered import OrderedQueues
from broker.store.placed import Placed
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange

if TYPE_CHECKING:
    from broker.store.log_store import LogStore


class MessagesInFlight:
    """The check-points in the log of one broker."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._table = CheckPoints(self._lookup(state_kinds.CHECK_POINT), self._items(state_kinds.CHECK_POINT))
        self._ordered = OrderedQueues(self._lookup(state_kinds.ORDERED_BATCH), self._items(state_kinds.ORDERED_BATCH))
        self.gathered: set[tuple[str, int, int]] = set()
        """Group, queue id and offset of messages whose acknowledgement has gathered."""
        self.write_gathered: Callable[[], None] = self.gathered.clear
        """Writes these acknowledgements, and empties the set first."""

    def __len__(self) -> int:
        return len(self.table) + len(self.ordered)

    @property
    def table(self) -> CheckPoints:
        """Messages given without order, without those whose acknowledgement had gathered."""
        if self.gathered:
            self.write_gathered()
        return self._table

    @property
    def ordered(self) -> OrderedQueues:
        """Messages that groups consume in order, without those whose acknowledgement had gathered."""
        if self.gathered:
            self.write_gathered()
        return self._ordered

    def count(self, group: str, queue_id: int) -> int:
        """How many messages of a queue a group has."""
        batch = self.ordered.batch(group, queue_id)
        return self.table.in_flight(group, queue_id) + (0 if batch is None else len(batch.entries))

    def find(self, group: str, queue_id: int, offset: int) -> Owned | None:
        """The ownership of a message, None when it is not in flight."""
        if (group, queue_id, offset) in self.gathered:
            return None
        return self._ordered.find(group, queue_id, offset) or self._table.find(group, queue_id, offset)

    def release(self, group: str, queue_id: int, offsets: Sequence[int]) -> list[BlockChange]:
        """What changes when these messages, all in flight, are done."""
        batch = self.ordered.batch(group, queue_id)
        if batch is None:
            return self.table.release(group, queue_id, offsets)
        times = batch.times
        ordered = [offset for offset in offsets if offset in times]
        others = [offset for offset in offsets if offset not in times]
        changes = self.ordered.release(group, queue_id, ordered) if ordered else []
        return changes + self.table.release(group, queue_id, others)

    def move(self, group: str, queue_id: int, offset: int, owned: Owned) -> list[BlockChange]:
        """What changes when the group has a message, in flight, for another time."""
        if self.ordered.find(group, queue_id, offset):
            return self.ordered.move(group, queue_id, offset, owned)
        return self.table.give(group, queue_id, (offset,), owned)

    def write(
        self, blocks: Sequence[BlockChange], others: Sequence[StateChange] = (), placed: Placed | None = None
    ) -> int:
        """Append the changes with what belongs to them as one group; returns the position to be confirmed.

        Raises:
            StoreError: nothing has changed.
        """
        changes = [*others, *(StateChange(block.kind, block.key, block.value) for block in blocks)]
        if placed is None:
            position = self._store.append_state(changes)
        else:
            position = self._store.append(placed, changes=changes).end_position
        for block in blocks:
            (self._table if block.kind == state_kinds.CHECK_POINT else self._ordered).written(block)
        return position

    def _items(self, kind: int) -> list[tuple[bytes, bytes]]:
        return [(bytes(key), value) for key, (value, _position) in self._store.state.items(kind)]

    def _lookup(self, kind: int) -> Lookup:
        def value(key: bytes) -> bytes | None:
            found = self._store.state.get(kind, key)
            return None if found is None else found[0]

        return value
