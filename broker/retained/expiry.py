"""Retained messages with a Message Expiry Interval: removed when it has passed, so that they cost nothing any more.

Proxies send no message that has expired, whether it has been removed here or not; this is what keeps the table of
retained messages from growing with values nobody is given. When a message is due its record is read again: its store
time and its property say whether it has expired. Which messages expire is noted when they are published, and found
anew after a start by looking at the retained messages bit by bit.

Invariant: at most one live entry per topic, the heap has at most twice as many; a message is removed only when the
record that is retained now has expired. Loop thread only.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from broker.store.errors import CorruptLog
from broker.store.state import state_kinds
from broker.store.state.state_log import StateChange
from broker.store.upkeep.retention import expires_ms
from remoting.protocol.records.record import RecordView

if TYPE_CHECKING:
    from broker.store.log_store import LogStore

LOOKS_PER_STEP = 256
"""Retained messages looked at in one step, of those that are due and of those not looked at since the start each."""
AGAIN_MS = 1_000
"""When a message is looked at again whose record is not confirmed yet."""
STALE_MAX = 1_024
"""Stale entries of the heap that are tolerated above the number of live ones."""


class RetainedExpiry:
    """Knows when which retained message is to be looked at."""

    def __init__(self, store: LogStore, log: Any, seen: Callable[[bytes, int], None]) -> None:
        """`seen` hears topic and payload bytes of every message that is looked at and stays."""
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
        """A message of this topic is about to be retained for so long."""
        self._schedule(topic, now_ms + expiry_s * 1_000)

    def step(self, now_ms: int) -> int:
        """Remove some of what has expired; how many were removed.

        Raises:
            StoreError: the log cannot be written; nothing was removed.
        """
        topics = self._next_unseen()
        while self._heap and self._heap[0][0] <= now_ms and len(topics) < 2 * LOOKS_PER_STEP:
            due_ms, topic = heapq.heappop(self._heap)
            if self._due.get(topic) == due_ms:
                del self._due[topic]
                topics.append(topic)
        gone = [topic for topic in dict.fromkeys(topics) if self._has_expired(topic, now_ms)]
        if gone:
            try:
                self._store.append_state([StateChange(state_kinds.RETAINED, topic, None) for topic in gone])
            except BaseException:
                for topic in gone:
                    self._schedule(topic, now_ms + AGAIN_MS)
                raise
        self.expired += len(gone)
        return len(gone)

    def _next_unseen(self) -> list[bytes]:
        """Some of the topics that were retained at the start and have not been looked at."""
        if self._unseen is None:
            return []
        found = list(islice(self._unseen, LOOKS_PER_STEP))
        if not found:
            self._unseen = None
        return found

    def _has_expired(self, topic: bytes, now_ms: int) -> bool:
        """Whether what is retained now has expired; if it will, it is looked at then."""
        entry = self._store.state.get(state_kinds.RETAINED, topic)
        if entry is None:
            return False
        try:
            record = self._store.reading.read_at(entry[1])
        except CorruptLog as error:
            self._log.error("retained_unreadable", topic=topic, error=str(error))
            return False
        if record is None:
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
            return  # looked at before that anyway
        self._due[topic] = at_ms
        heapq.heappush(self._heap, (at_ms, topic))
        if len(self._heap) > 2 * len(self._due) + STALE_MAX:
            self._heap = [(due_ms, each) for each, due_ms in self._due.items()]
            heapq.heapify(self._heap)
