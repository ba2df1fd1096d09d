"""Consumer group offsets of one loop turn, written as one record.

Clients commit often, queue by queue; what arrives in one turn is one record, the last commit of a queue wins.
Invariant: a query in the same turn sees the commits before it (they are written first). Loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.store.errors import StoreError

if TYPE_CHECKING:
    from broker.groups.offsets import GroupOffsets
    from broker.metrics import BrokerMetrics
    from broker.store.log_store import LogStore

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
