"""All durable state as views of the log: kind -> key -> (value, position of its record).

Invariant: the tables are what replaying every state change of the log in order gives; a change at a position replaces
what an earlier position said. They apply at append, because the writer needs them; whoever shows state to a client
waits until the confirm position has passed the position of what it read. Queues are many and kept in columns
(`name_table`), every other kind in a table that is spread over many small dicts. Freezing hands these out and marks
them as shared; a later change copies the one small dict it touches first, so a frozen table costs the loop nothing at
once and little later, and a dict that was handed out never changes again. Thread rule: loop thread; what `freeze`
returns may go elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from broker.store.state.name_table import Entry, FrozenNames, NameTable
from broker.store.state.state_kinds import QUEUE
from broker.store.state.state_log import StateChange

SHARDS = 256
Shards = tuple[dict[bytes, Entry], ...]


class SharedTable:
    """Keys of one kind with (value, position)."""

    __slots__ = ("_shards", "_shared", "count")

    def __init__(self) -> None:
        self._shards: list[dict[bytes, Entry]] = [{} for _ in range(SHARDS)]
        self._shared = bytearray(SHARDS)
        self.count = 0

    def get(self, key: bytes) -> Entry | None:
        """Return (value, position) or None."""
        return self._shards[hash(key) % SHARDS].get(key)

    def put(self, key: bytes, entry: Entry) -> None:
        """Set a key in its shard, copied first where a snapshot shares it."""
        shard = self._own(hash(key) % SHARDS)
        before = len(shard)
        shard[key] = entry
        self.count += len(shard) - before

    def discard(self, key: bytes) -> None:
        """Forget a key, if it is there."""
        at = hash(key) % SHARDS
        if key in self._shards[at]:
            del self._own(at)[key]
            self.count -= 1

    def items(self) -> Iterator[tuple[bytes, Entry]]:
        """Iterate over (key, (value, position)), in no order; nothing may change meanwhile."""
        for shard in self._shards:
            yield from shard.items()

    def shard(self, at: int) -> dict[bytes, Entry]:
        """Return one of the `SHARDS` small dicts; it must not be changed."""
        return self._shards[at]

    def freeze(self) -> Shards:
        """Return all entries as they are now."""
        self._shared[:] = b"\1" * SHARDS
        return tuple(self._shards)

    def _own(self, at: int) -> dict[bytes, Entry]:
        if self._shared[at]:
            self._shards[at] = self._shards[at].copy()
            self._shared[at] = 0
        return self._shards[at]


LOOK_ENTRIES = 8_192
"""Entries looked at before a list of those that are old is handed out, however few it holds."""
Subscriber = Callable[[bytes, bytes | None, int], None]
Said = tuple[int, bytes, bytes, int]
"""Kind, key, value, position of its record."""


@dataclass(slots=True)
class FrozenTables:
    """The tables at one moment: the queues as columns, the other kinds as small dicts."""

    queues: FrozenNames
    others: dict[int, Shards]


class StateTables:
    """One table per kind of state; subscribers hear every change after it was applied."""

    def __init__(self) -> None:
        self.queues = NameTable()
        self._tables: dict[int, SharedTable] = {}
        self._subscribers: dict[int, list[Subscriber]] = {}

    def get(self, kind: int, key: bytes) -> Entry | None:
        """Return (value, position) or None."""
        if kind == QUEUE:
            return self.queues.get(key)
        table = self._tables.get(kind)
        return None if table is None else table.get(key)

    def items(self, kind: int) -> Iterator[tuple[bytes, Entry]]:
        """Iterate over (key, (value, position)) of a kind; do not append state while iterating."""
        if kind == QUEUE:
            return self.queues.items()
        table = self._tables.get(kind)
        return iter(()) if table is None else table.items()

    def count(self, kind: int) -> int:
        """How many keys a kind has."""
        if kind == QUEUE:
            return len(self.queues)
        table = self._tables.get(kind)
        return 0 if table is None else table.count

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
                table = self._tables[kind] = SharedTable()
            if value is None:
                table.discard(key)
            else:
                table.put(key, (value, position))
        for subscriber in self._subscribers.get(kind, ()):
            subscriber(key, value, position)

    def load(self, kind: int, key: bytes, entry: Entry) -> None:
        """Put an entry of a snapshot; subscribers are told as for a change."""
        self.apply(StateChange(kind, key, entry[0]), entry[1])

    def older_than(self, position: int) -> Iterator[list[Said]]:
        """Yield (kind, key, value, position) of what was said below `position`, in lists, a bounded look for each.

        The tables may change between two lists: what is said meanwhile is younger. Of queues only the floor comes;
        queues themselves: `queues.older_than`.
        """
        floor = self.queues.get(b"")
        found: list[Said] = [(QUEUE, b"", *floor)] if floor is not None and floor[1] < position else []
        looked = 0
        for kind in list(self._tables):
            table = self._tables[kind]
            for at in range(SHARDS):
                entries = table.shard(at)
                found += [(kind, key, value, said) for key, (value, said) in entries.items() if said < position]
                looked += len(entries)
                if looked >= LOOK_ENTRIES:
                    yield found
                    found, looked = [], 0
        yield found

    def copy(self) -> dict[int, dict[bytes, Entry]]:
        """Return everything as plain dicts, for comparisons."""
        kinds = (QUEUE, *self._tables)
        return {kind: dict(self.items(kind)) for kind in kinds if self.count(kind)}

    def freeze(self) -> FrozenTables:
        """Return the tables as they are now, untouched by later changes, for a snapshot written in another thread."""
        others = {kind: table.freeze() for kind, table in self._tables.items() if table.count}
        return FrozenTables(self.queues.frozen(), others)
