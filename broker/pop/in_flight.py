"""All messages that groups have by POP, in order or not, and the log that keeps them.

Changes are computed first, written in one group with what belongs to them, then taken over. Acknowledgements of one
turn of the loop gather and are written together: at its end, or ahead of whatever uses the tables. So are deliveries
(`held`).

Invariant: a message is in flight in order or not, never both; one whose acknowledgement has gathered is not found. Loop
thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from broker.pop.check_points import CheckPoints, Owned
from broker.pop.held import HeldChanges
from broker.pop.ordered import BlockChange, OrderedQueues
from broker.store.placed import Placed
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange

if TYPE_CHECKING:
    from broker.store.log_store import LogStore

Change = StateChange | BlockChange
"""A change of a queue in order, or any other."""


class MessagesInFlight:
    """The check-points in the log of one broker."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self.held = HeldChanges(store)
        """What deliveries of this turn change."""
        self._table = CheckPoints(store.state.check_points, self.held)
        items = ((bytes(key), value) for key, (value, _position) in store.state.items(state_kinds.ORDERED_BATCH))
        self._ordered = OrderedQueues(self._lookup, items)
        self.gathered: dict[tuple[str, int], set[int]] = {}
        """Group and queue id -> offsets of messages whose acknowledgement has gathered."""
        self.write_gathered: Callable[[], None] = self.gathered.clear
        """Writes these acknowledgements, and forgets them here first."""

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
        if self.gathered and offset in self.gathered.get((group, queue_id), ()):
            return None
        return self._ordered.find(group, queue_id, offset) or self._table.find(group, queue_id, offset)

    def named(self, group: str, queue_id: int, offsets: Sequence[int], owned: Owned) -> Sequence[int]:
        """Those of these messages, each named once, that the group has with this ownership."""
        if self._ordered.batch(group, queue_id) is not None:
            return [offset for offset in offsets if self.find(group, queue_id, offset) == owned]
        found = self._table.named(group, queue_id, offsets, owned)
        done = self.gathered.get((group, queue_id)) if self.gathered else None
        return found if done is None else [offset for offset in found if offset not in done]

    def release(self, group: str, queue_id: int, offsets: Sequence[int]) -> Sequence[Change]:
        """What changes when these messages, all in flight, are done."""
        batch = self.ordered.batch(group, queue_id)
        if batch is None:
            return self.table.release(group, queue_id, offsets)
        times = batch.times
        ordered = [offset for offset in offsets if offset in times]
        others = [offset for offset in offsets if offset not in times]
        changes = self.ordered.release(group, queue_id, ordered) if ordered else []
        return [*changes, *self.table.release(group, queue_id, others)]

    def move(self, group: str, queue_id: int, offset: int, owned: Owned) -> Sequence[Change]:
        """What changes when the group has a message, in flight, for another time."""
        if self.ordered.find(group, queue_id, offset):
            return self.ordered.move(group, queue_id, offset, owned)
        return self.table.give(group, queue_id, (offset,), owned)

    def keep(self, changes: Iterable[Change]) -> None:
        """Let these hold at once; `held.write` follows."""
        for change in changes:
            if isinstance(change, BlockChange):
                self._ordered.keep(change, self.held)
            else:
                self.held.keep((change,))

    def write(self, changes: Sequence[Change], placed: Placed | None = None) -> int:
        """Append the changes with what belongs to them as one group; returns the position to be confirmed.

        Raises:
            StoreError: nothing has changed.
        """
        blocks = [change for change in changes if isinstance(change, BlockChange)]
        plain = [StateChange(change.kind, change.key, change.value) for change in changes]
        if placed is None:
            position = self._store.append_state(plain)
        else:
            position = self._store.append(placed, changes=plain).end_position
        for block in blocks:
            self._ordered.written(block)
        return position

    def _lookup(self, key: bytes) -> bytes | None:
        return self.held.value(state_kinds.ORDERED_BATCH, key)
