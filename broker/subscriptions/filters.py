"""Wildcard filters with their queues, and how many MQTT subscriptions want each queue.

A filter gets its light queue when it is first subscribed; the FILTER record is in the log before the subscription is
answered, so "from here on" is exact. `Filters` counts the subscriptions that use a filter: those of durable sessions
count across restarts, those of clean sessions as long as their proxy is connected. When the last one has been away for
`expiry_ms` the queue is deleted; a later subscriber gets a new queue with a new id.

`Subscribers` counts the subscriptions of all sessions by queue, which tells whether a message's topic has a subscriber:
those of clients that are away and of members of shared subscriptions too. A subscription with No Local does not count
for what its own client publishes. Readers that are no MQTT subscribers (RocketMQ's consumers, Spark) are not counted.

State record: key = filter, value = queue id (u32 little-endian). Invariants: a filter with a subscription has a queue,
and every message appended since then is in it; a queue is counted exactly while it has a subscription. Loop thread
only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.store.placed import property_value
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records import names
from remoting.protocol.records.record import CLIENT_ID_KEY, FLAG_MQTT, RecordView
from remoting.protocol.records.topics import FilterTrie

if TYPE_CHECKING:
    from broker.store.log_store import LogStore

_QUEUE_ID = struct.Struct("<I")


class Filters:
    """Wildcard filters, their queue ids and the number of subscriptions to each."""

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
        """Call `listener(filter)` after a filter was added or removed."""
        self._listeners.append(listener)

    def match(self, topic: bytes) -> list[int]:
        """Ids of the wildcard queues a message on `topic` goes to, each once, in rising order."""
        return sorted(set(self._trie.match(topic)))

    def find(self, topic_filter: bytes) -> int | None:
        """Queue id of a filter that has a queue."""
        return self._queue_ids.get(topic_filter)

    def holders(self, topic_filter: bytes) -> int:
        """Number of subscriptions to the filter now."""
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
        """Delete the queues without a subscription for `expiry_ms`; returns how many."""
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


NO_LOCAL = 1
"""Bit of a subscription's options: no messages published by its own client."""


class Subscribers:
    """Subscriptions by queue."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._not_own: dict[int, set[str]] = {}
        """Queue -> clients whose subscription has No Local; few queues have one."""

    def add(self, client_id: str, queue_id: int, options: int) -> None:
        """One more subscription."""
        self._counts[queue_id] = self._counts.get(queue_id, 0) + 1
        self._note(client_id, queue_id, options)

    def change(self, client_id: str, queue_id: int, before: int, options: int) -> None:
        """A subscription has other options."""
        if (before ^ options) & NO_LOCAL:
            self._forget(client_id, queue_id, before)
            self._note(client_id, queue_id, options)

    def remove(self, client_id: str, queue_id: int, options: int) -> None:
        """One subscription less."""
        left = self._counts[queue_id] - 1
        assert left >= 0, queue_id
        if left:
            self._counts[queue_id] = left
        else:
            del self._counts[queue_id]
        self._forget(client_id, queue_id, options)

    def want(self, image: RecordView, queues: tuple[int, ...]) -> bool:
        """Whether there is a subscriber to the topic of a placed message.

        Only for MQTT messages that go out at once can the answer be False. The subscribers of a delayed message are
        determined when it is due; until then it is staged, without the flag.
        """
        if not image.flags & FLAG_MQTT:
            return True
        found = [queue_id for queue_id in queues if queue_id in self._counts]
        if not found or not self._not_own:
            return bool(found)
        return any(self._wants(queue_id, image) for queue_id in found)

    def _wants(self, queue_id: int, image: RecordView) -> bool:
        """Whether a queue has a subscriber other than a sender with No Local, which a client has there at most once."""
        not_own = self._not_own.get(queue_id)
        if not_own is None or self._counts[queue_id] > 1:
            return True
        return property_value(image, CLIENT_ID_KEY).decode("utf-8", "replace") not in not_own

    def _note(self, client_id: str, queue_id: int, options: int) -> None:
        if options & NO_LOCAL:
            self._not_own.setdefault(queue_id, set()).add(client_id)

    def _forget(self, client_id: str, queue_id: int, options: int) -> None:
        if options & NO_LOCAL:
            clients = self._not_own[queue_id]
            clients.discard(client_id)
            if not clients:
                del self._not_own[queue_id]
