"""All durable state as views of the log: kind -> key -> (value, position of the record that said so).

Invariant: the tables are what replaying every state change of the log in order gives; a change at a position replaces
what an earlier position said. They apply at append, because the writer needs them; whoever shows state to a client
waits until the confirm position has passed the position of what it read. Queues are many and kept in columns
(`name_table`), every other kind in a dict. Thread rule: loop thread; what `freeze` returns may go elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from broker.store.name_table import Entry, NameTable, QueueColumns
from broker.store.state_kinds import QUEUE
from broker.store.state_log import StateChange

Subscriber = Callable[[bytes, bytes | None, int], None]


@dataclass(slots=True)
class FrozenTables:
    """The tables at one moment: the queues as columns, the other kinds as dicts."""

    queues: QueueColumns
    others: dict[int, dict[bytes, Entry]]


class StateTables:
    """One table per kind of state; subscribers hear every change after it was applied."""

    def __init__(self) -> None:
        self.queues = NameTable()
        self._tables: dict[int, dict[bytes, Entry]] = {}
        self._subscribers: dict[int, list[Subscriber]] = {}

    def get(self, kind: int, key: bytes) -> Entry | None:
        """Return (value, position) or None."""
        if kind == QUEUE:
            return self.queues.get(key)
        table = self._tables.get(kind)
        return None if table is None else table.get(key)

    def items(self, kind: int) -> Iterator[tuple[bytes, Entry]]:
        """Iterate over (key, (value, position)) of a kind; do not append state while iterating."""
        return self.queues.items() if kind == QUEUE else iter(self._tables.get(kind, {}).items())

    def count(self, kind: int) -> int:
        """How many keys a kind has."""
        return len(self.queues) if kind == QUEUE else len(self._tables.get(kind, ()))

    def subscribe(self, kind: int, subscriber: Subscriber) -> None:
        """Call `subscriber(key, value or None, position)` at every change of `kind` from now on."""
        self._subscribers.setdefault(kind, []).append(subscriber)

    def apply(self, change: StateChange, position: int) -> None:
        """Apply one change said by the record at `position`."""
        kind, key, value = change.kind, change.key, change.value
        if kind == QUEUE:
            if value is None:
                self.queues.discard(key)
            else:
                self.queues.put(key, value, position)
        else:
            table = self._tables.get(kind)
            if table is None:
                table = self._tables[kind] = {}
            if value is None:
                table.pop(key, None)
            else:
                table[key] = (value, position)
        for subscriber in self._subscribers.get(kind, ()):
            subscriber(key, value, position)

    def load(self, kind: int, key: bytes, entry: Entry) -> None:
        """Put an entry of a snapshot; subscribers are told as for a change."""
        self.apply(StateChange(kind, key, entry[0]), entry[1])

    def older_than(self, position: int) -> list[tuple[int, bytes, bytes, int]]:
        """Return (kind, key, value, position) of entries said below `position`, oldest first; of queues only the floor.

        Queues themselves: `queues.older_than`.
        """
        found = [
            (kind, key, value, said)
            for kind, table in self._tables.items()
            for key, (value, said) in table.items()
            if said < position
        ]
        floor = self.queues.get(b"")
        if floor is not None and floor[1] < position:
            found.append((QUEUE, b"", *floor))
        found.sort(key=lambda entry: entry[3])
        return found

    def copy(self) -> dict[int, dict[bytes, Entry]]:
        """Return everything as plain dicts, for comparisons."""
        kinds = (QUEUE, *self._tables)
        return {kind: dict(self.items(kind)) for kind in kinds if self.count(kind)}

    def freeze(self) -> FrozenTables:
        """Return a copy that later changes do not touch, for a snapshot written in another thread."""
        others = {kind: dict(table) for kind, table in self._tables.items() if table}
        return FrozenTables(self.queues.frozen(), others)
