"""Retained messages as one feature: their table, their quota, and the end of those that expire.

Retained messages: the last known value of each MQTT topic, found by filter without a scan; quota and expiry.

The store keeps the RETAINED table itself (key = MQTT topic, position = the message record with the retain flag; an
empty body deletes). `Retained` is the view over it that a subscription needs: a topic tree, so that `plant/+/temp`
visits only the branches it can match. It is loaded from the table at start and follows the table's change callback, so
it is the same after a restart and after retention has moved a message.

`RetainedQuota` limits number and size together. A message that replaces one takes its place; an empty one clears its
topic and is always admitted. The sizes of messages retained before the start are learned while `RetainedExpiry` reads
them, so the bytes are counted too low for a while after a start. Without a quota nothing is counted.

`RetainedExpiry` removes messages whose Message Expiry Interval has passed, so that the table does not grow with values
that proxies would not send any more. A message that is due is read again: its store time and its property decide.
Expiring messages are noted when they are published, and found again after a start by reading the retained messages
piece by piece.

Invariants: the tree has exactly the topics of the table; what was admitted but not stored counts until its topic is set
or cleared, never beyond a restart; the heap has at most one live entry per topic and at most twice as many entries; a
message is removed only when the record that is retained now has expired. Loop thread only.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from broker.requests import Feature, RequestTools
from broker.store.index.absence import Absence
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.properties import expires_ms
from remoting.protocol.records.record import RecordView
from remoting.protocol.records.topics import TopicTree

if TYPE_CHECKING:
    from broker.store.log_store import LogStore


class Retained:
    """Look-up of retained messages by topic filter."""

    def __init__(self, store: LogStore) -> None:
        self._tree: TopicTree[int] = TopicTree()
        for key, (_value, position) in list(store.state.items(state_kinds.RETAINED)):
            self._changed(bytes(key), b"", position)
        store.state.subscribe(state_kinds.RETAINED, self._changed)

    def __len__(self) -> int:
        return len(self._tree)

    def __contains__(self, topic: bytes) -> bool:
        return self._tree.get(topic) is not None

    def walk(self, topic_filter: bytes) -> Iterator[tuple[bytes, int] | None]:
        """(topic, log position) of the retained messages a filter matches, as `TopicTree.walk`."""
        return self._tree.walk(topic_filter)

    def _changed(self, topic: bytes, value: bytes | None, position: int) -> None:
        if value is None:
            self._tree.delete(topic)
        else:
            self._tree.set(topic, position)


class RetainedQuota:
    """Limits the number and size of retained messages."""

    def __init__(self, store: LogStore, retained: Retained, *, messages_max: int, bytes_max: int) -> None:
        self._retained = retained
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._sizes: dict[bytes, int] = {}
        self.size_bytes = 0
        """Payload bytes of the retained messages whose size is known; 0 without a quota of bytes."""
        self.active = bool(messages_max or bytes_max)
        if bytes_max:
            store.state.subscribe(state_kinds.RETAINED, self._changed)

    def admit(self, wanted: Iterable[tuple[bytes, int]]) -> None:
        """Admit messages of (topic, payload bytes), all or none.

        Raises:
            Refused: FLOW_CONTROL, one of them is too many or too much.
        """
        last = dict(wanted)
        sizes = {topic: size for topic, size in last.items() if size}
        if self._messages_max:
            new = sum(topic not in self._retained for topic in sizes)
            if new and len(self._retained) + new > self._messages_max:
                raise Refused(ResponseCode.FLOW_CONTROL, f"retained_messages_max {self._messages_max} is reached")
        if self._bytes_max and sizes:
            more = sum(sizes.values()) - sum(self._sizes.get(topic, 0) for topic in sizes)
            if more > 0 and self.size_bytes + more > self._bytes_max:
                raise Refused(ResponseCode.FLOW_CONTROL, f"retained_bytes_max {self._bytes_max} is reached")
            for topic, size in sizes.items():
                self._set(topic, size)

    def seen(self, topic: bytes, payload_bytes: int) -> None:
        """Note the size of a retained message; a size that is known already stays."""
        if self._bytes_max and topic not in self._sizes:
            self._set(topic, payload_bytes)

    def _set(self, topic: bytes, size: int) -> None:
        self.size_bytes += size - self._sizes.get(topic, 0)
        self._sizes[topic] = size

    def _changed(self, topic: bytes, value: bytes | None, _position: int) -> None:
        if value is None:
            self.size_bytes -= self._sizes.pop(topic, 0)


READS_PER_STEP = 256
"""Retained messages read in one step, of those that are due and of those not read since the start each."""
AGAIN_MS = 1_000
"""Pause before a message whose record is not confirmed yet is read again."""
STALE_MAX = 1_024
"""Stale entries of the heap allowed above the number of live ones."""


class RetainedExpiry:
    """Removes retained messages that have expired."""

    def __init__(self, store: LogStore, log: Any, seen: Callable[[bytes, int], None]) -> None:
        """`seen(topic, payload bytes)` is called for every message that is read and stays."""
        self._store = store
        self._seen = seen
        self._log = log
        self._due: dict[bytes, int] = {}
        self._heap: list[tuple[int, bytes]] = []
        self._unseen: Iterator[bytes] | None = iter([bytes(key) for key, _ in store.state.items(state_kinds.RETAINED)])
        self.expired = 0

    def __len__(self) -> int:
        return len(self._due)

    def note(self, topic: bytes, expiry_s: int, now_ms: int) -> None:
        """A message of this topic is about to be retained for `expiry_s`."""
        self._schedule(topic, now_ms + expiry_s * 1_000)

    def step(self, now_ms: int) -> int:
        """Remove some of what has expired; returns how many.

        Raises:
            StoreError: the log cannot be written; nothing was removed.
        """
        topics = self._next_unseen()
        while self._heap and self._heap[0][0] <= now_ms and len(topics) < 2 * READS_PER_STEP:
            due_ms, topic = heapq.heappop(self._heap)
            if self._due.get(topic) == due_ms:
                del self._due[topic]
                topics.append(topic)
        expired = [topic for topic in dict.fromkeys(topics) if self._has_expired(topic, now_ms)]
        if expired:
            try:
                self._store.append_state([StateChange(state_kinds.RETAINED, topic, None) for topic in expired])
            except BaseException:
                for topic in expired:
                    self._schedule(topic, now_ms + AGAIN_MS)
                raise
        self.expired += len(expired)
        return len(expired)

    def _next_unseen(self) -> list[bytes]:
        """Some of the topics that were retained at the start and have not been read yet."""
        if self._unseen is None:
            return []
        found = list(islice(self._unseen, READS_PER_STEP))
        if not found:
            self._unseen = None
        return found

    def _has_expired(self, topic: bytes, now_ms: int) -> bool:
        """Whether the message retained now has expired; one that expires later is scheduled."""
        entry = self._store.state.get(state_kinds.RETAINED, topic)
        if entry is None:
            return False
        record = self._store.reading.read_at(entry[1])
        if record is Absence.DAMAGED:
            self._log.error("retained_unreadable", topic=topic, position=entry[1])
            return False
        if isinstance(record, Absence):  # not confirmed yet; retention stores what it takes again, elsewhere
            self._schedule(topic, now_ms + AGAIN_MS)
            return False
        view = RecordView(record)
        at_ms = expires_ms(view)
        if at_ms is not None and at_ms <= now_ms:
            return True
        self._seen(topic, len(view.body))
        if at_ms is not None:
            self._schedule(topic, at_ms)
        return False

    def _schedule(self, topic: bytes, at_ms: int) -> None:
        known = self._due.get(topic)
        if known is not None and known <= at_ms:
            return  # read before that anyway
        self._due[topic] = at_ms
        heapq.heappush(self._heap, (at_ms, topic))
        if len(self._heap) > 2 * len(self._due) + STALE_MAX:
            self._heap = [(due_ms, each) for each, due_ms in self._due.items()]
            heapq.heapify(self._heap)


class RetainedFeature(Feature):
    """The retained message of each topic; SUBSCRIBE finds them, RECORDS_AT reads them."""

    def __init__(self, tools: RequestTools) -> None:
        limits = tools.config.limits
        self.table = Retained(tools.store)
        self.quota = RetainedQuota(
            tools.store,
            self.table,
            messages_max=limits.retained_messages_max,
            bytes_max=limits.retained_bytes_max,
        )
        self.expiry = RetainedExpiry(tools.store, tools.log, self.quota.seen)
        self._clock = tools.clock

    def note_expiry(self, topic: bytes, expiry_s: int) -> None:
        """A message of this topic is about to be retained for `expiry_s` seconds."""
        self.expiry.note(topic, expiry_s, self._clock.now_ms())

    def maintain(self, now_ms: int) -> dict[str, int]:
        """Remove some of what has expired."""
        return {"retained_expired": self.expiry.step(now_ms)}

    def status(self) -> dict[str, int]:
        """How many topics have a retained message."""
        return {"retained_messages": len(self.table)}
