"""Wildcard light queues: one queue per wildcard filter that somebody is subscribed to.

A filter gets its queue when it is first subscribed; the FILTER record is in the log before the subscription is
answered, so "from here on" is exact. The number of subscriptions that hold a filter is counted here: durable sessions
hold it across restarts, clean sessions as long as their proxy is connected. When the last holder is gone for
`expiry_ms` the queue is deleted; a later subscriber gets a new queue with a new id.

State record: key = filter, value = queue id (u32 little-endian). Invariant: a filter with a holder has a queue, and
every message appended since then is in it. Loop thread only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.store.state import state_kinds
from broker.store.state.state_log import StateChange
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records import names
from remoting.protocol.records.topics import FilterTrie

if TYPE_CHECKING:
    from broker.store.log_store import LogStore

_QUEUE_ID = struct.Struct("<I")


class Filters:
    """Wildcard filters, their queue ids and how many subscriptions hold them."""

    def __init__(self, store: LogStore, *, expiry_ms: int, filters_max: int, now_ms: int) -> None:
        self._store = store
        self._expiry_ms = expiry_ms
        self._filters_max = filters_max
        self._queue_ids: dict[bytes, int] = {}
        self._holders: dict[bytes, int] = {}
        self._idle_since_ms: dict[bytes, int] = {}
        self._trie: FilterTrie[int] = FilterTrie()
        self._listeners: list[Callable[[bytes], None]] = []
        self.expired = 0
        for key, (value, _position) in list(store.state.items(state_kinds.FILTER)):
            topic_filter = bytes(key)
            queue_id = _QUEUE_ID.unpack(value)[0]
            self._queue_ids[topic_filter] = queue_id
            self._trie.add(topic_filter, queue_id)
            self._idle_since_ms[topic_filter] = now_ms

    def __len__(self) -> int:
        return len(self._queue_ids)

    def on_change(self, listener: Callable[[bytes], None]) -> None:
        """Call `listener(filter)` after a filter has come or gone."""
        self._listeners.append(listener)

    def match(self, topic: bytes) -> list[int]:
        """Ids of the wildcard queues a message on `topic` goes to, each once, in rising order."""
        return sorted(set(self._trie.match(topic)))

    def find(self, topic_filter: bytes) -> int | None:
        """Queue id of a filter that has a queue."""
        return self._queue_ids.get(topic_filter)

    def holders(self, topic_filter: bytes) -> int:
        """Number of subscriptions that hold the filter now."""
        return self._holders.get(topic_filter, 0)

    def acquire(self, topic_filter: bytes) -> int:
        """One more subscription on the filter; returns its queue id, creating queue and record when it is new.

        Raises:
            Refused: `filters_max` wildcard queues exist already.
        """
        queue_id = self._queue_ids.get(topic_filter)
        if queue_id is None:
            queue_id = self._create(topic_filter)
        self._holders[topic_filter] = self._holders.get(topic_filter, 0) + 1
        self._idle_since_ms.pop(topic_filter, None)
        return queue_id

    def release(self, topic_filter: bytes, now_ms: int) -> None:
        """One subscription less; the last one starts the expiry."""
        left = self._holders[topic_filter] - 1
        assert left >= 0, topic_filter
        if left:
            self._holders[topic_filter] = left
            return
        del self._holders[topic_filter]
        self._idle_since_ms[topic_filter] = now_ms

    def expire(self, now_ms: int) -> int:
        """Delete the queues nobody has held for `expiry_ms`; returns how many went."""
        due = [name for name, since in self._idle_since_ms.items() if now_ms - since >= self._expiry_ms]
        if not due:
            return 0
        self._store.queues.delete(
            [self._queue_ids[name] for name in due], [StateChange(state_kinds.FILTER, name, None) for name in due]
        )
        for topic_filter in due:
            queue_id = self._queue_ids.pop(topic_filter)
            del self._idle_since_ms[topic_filter]
            self._trie.remove(topic_filter, queue_id)
            self._announce(topic_filter)
        self.expired += len(due)
        return len(due)

    def _create(self, topic_filter: bytes) -> int:
        if len(self._queue_ids) >= self._filters_max:
            raise Refused(ResponseCode.SYSTEM_BUSY, f"filters_max {self._filters_max} wildcard filters exist already")
        queue_id = self._store.queues.open(names.light_queue_name(topic_filter))
        self._store.append_state([StateChange(state_kinds.FILTER, topic_filter, _QUEUE_ID.pack(queue_id))])
        self._queue_ids[topic_filter] = queue_id
        self._trie.add(topic_filter, queue_id)
        self._announce(topic_filter)
        return queue_id

    def _announce(self, topic_filter: bytes) -> None:
        for listener in self._listeners:
            listener(topic_filter)
