"""Consumer group offsets: (group, topic, queue index) -> next offset to read.

```
GROUP_OFFSET  key = group, 0x00, topic, 0x00, queue index as decimal text    value = offset i64 LE
```
Offsets may move back (an administrator resets a group), so the last write wins. Clients commit often, queue by queue;
what arrives in one turn of the loop is one record (`OffsetGather`), the last commit of a queue wins.
Invariant: a query in the same turn sees the commits before it (they are written first). Loop thread only.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from broker.store.errors import StoreError
from broker.store.state import state_kinds
from broker.store.state.state_log import StateChange

if TYPE_CHECKING:
    from broker.metrics import BrokerMetrics
    from broker.store.log_store import LogStore

_OFFSET = struct.Struct("<q")


def group_offset_key(group: str, topic: str, index: int) -> bytes:
    """Key of one group's offset in one queue."""
    return b"\x00".join((group.encode(), topic.encode(), str(index).encode()))


class GroupOffsets:
    """Read and commit offsets of RocketMQ consumer groups."""

    def __init__(self, store: LogStore) -> None:
        self._store = store

    def get(self, group: str, topic: str, index: int) -> tuple[int, int] | None:
        """(offset, log position a reply that shows it waits for), or None when the group never committed there."""
        found = self._store.state.get(state_kinds.GROUP_OFFSET, group_offset_key(group, topic, index))
        if found is None:
            return None
        value, position = found
        return _OFFSET.unpack(value)[0], position + 1

    def commit(self, items: Iterable[tuple[str, str, int, int]]) -> int:
        """Write (group, topic, index, offset) items as one record; returns the position to wait for."""
        changes = [
            StateChange(state_kinds.GROUP_OFFSET, group_offset_key(group, topic, index), _OFFSET.pack(offset))
            for group, topic, index, offset in items
        ]
        return self._store.append_state(changes)

    def forget(self, group: str) -> int:
        """Remove all offsets of a group; returns the position to wait for."""
        found = self.of_group(group)
        keys = [group_offset_key(group, topic, index) for topic, index in found]
        return (
            self._store.append_state([StateChange(state_kinds.GROUP_OFFSET, key, None) for key in keys]) if keys else 0
        )

    def of_group(self, group: str) -> dict[tuple[str, int], int]:
        """All offsets of a group: (topic, index) -> offset."""
        return self.by_group(group).get(group, {})

    def by_group(self, wanted: str | None = None) -> dict[str, dict[tuple[str, int], int]]:
        """Offsets of every group, or of the wanted one: group -> (topic, index) -> offset."""
        prefix = b"" if wanted is None else wanted.encode() + b"\x00"
        found: dict[str, dict[tuple[str, int], int]] = {}
        for key, (value, _position) in self._store.state.items(state_kinds.GROUP_OFFSET):
            raw = bytes(key)
            if raw.startswith(prefix):
                group, topic, index = raw.split(b"\x00")
                found.setdefault(group.decode(), {})[topic.decode(), int(index)] = _OFFSET.unpack(value)[0]
        return found


Done = Callable[[Exception | None], None]


class OffsetGather:
    """Collects commits and writes them at the end of the turn."""

    def __init__(self, offsets: GroupOffsets, store: LogStore, metrics: BrokerMetrics) -> None:
        self._offsets = offsets
        self._store = store
        self._metrics = metrics
        self._items: dict[tuple[str, str, int], int] = {}
        self._waiting: list[Done] = []

    def add(self, group: str, topic: str, index: int, offset: int, done: Done | None = None) -> None:
        """Commit an offset; `done` is called when it is confirmed, or with what went wrong."""
        if not self._items:
            asyncio.get_running_loop().call_soon(self.flush)
        self._items[group, topic, index] = offset
        if done is not None:
            self._waiting.append(done)

    def flush(self) -> None:
        """Write what has gathered."""
        if not self._items:
            return
        items, self._items = self._items, {}
        waiting, self._waiting = self._waiting, []
        try:
            position = self._offsets.commit((*key, offset) for key, offset in items.items())
        except StoreError as error:
            self._metrics.dropped.child("offset_not_written").value += len(items)
            for done in waiting:
                done(error)
            return

        def confirmed(error: Exception | None) -> None:
            for done in waiting:
                done(error)

        if waiting:
            self._store.when_confirmed(position, confirmed)
