"""Messages that match a filter and are not in the filter's own queue, read from the parent queues in log order.

A wildcard filter's queue begins when it is first subscribed; what was published before is in the parent queues. A
`HistoryScan` merges these by log position; a `LastScan` goes backward from a position and finds where the last n begin.
Both work in steps: a step opens a bounded number of queues or examines a bounded number of records, so that it does not
block the loop; and both can be made again from the position where a step ended, which is all that has to be kept.

Invariant: a step returns the matching messages of [where it began, where it ended), each once, in rising position. Loop
thread only.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker.store.errors import UnreadableOffsets
from remoting.protocol.records.record import RecordView
from remoting.protocol.records.topics import matches

if TYPE_CHECKING:
    from broker.store.log_store import LogStore

OPEN_MAX = 64
"""Queues one step opens."""
LOOK_MAX = 2_048
"""Records one step examines."""
CHUNK_MAX = 64
"""Records read of one queue at a time; fewer when there are many queues."""
CHUNKS_RECORDS_MAX = 8_192
"""Records read ahead in all queues together, but at least one each."""
CHUNK_BYTES_MAX = 128 * 1024
KNOWN_TOPICS_MAX = 4_096
"""Topics for which one scan caches whether they match."""


def offset_at(store: LogStore, queue_id: int, position: int) -> int:
    """Return the first offset of a queue whose record is at `position` or behind it; its end when there is none."""
    low, high = store.reading.bounds(queue_id)
    while low < high:
        middle = (low + high) // 2
        found = store.reading.positions(queue_id, middle, 1)
        if found and found[0] < position:
            low = middle + 1
        else:
            high = middle
    return low


class _Matcher:
    """Whether a record matches the filter and is not in the filter's own queue."""

    def __init__(self, topic_filter: str, own_queue: int) -> None:
        self._filter = topic_filter.encode()
        self._own_queue = own_queue
        self._known: dict[bytes, bool] = {}

    def __call__(self, record: RecordView) -> bool:
        topic = record.mqtt_topic
        if topic is None:
            return False
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= KNOWN_TOPICS_MAX:
                self._known.clear()
            known = self._known[topic] = matches(self._filter, topic)
        return known and all(queue_id != self._own_queue for queue_id, _ in record.dispatch())


class HistoryScan:
    """The matching messages forward from a position or a time."""

    def __init__(
        self, store: LogStore, topic_filter: str, own_queue: int, queues: Sequence[int], position: int, from_ms: int
    ) -> None:
        self._store = store
        self._matches = _Matcher(topic_filter, own_queue)
        self._unopened = deque(queues)
        self._chunk = max(1, min(CHUNK_MAX, CHUNKS_RECORDS_MAX // max(1, len(queues))))
        self._from_ms = from_ms
        self.position = position
        self._heads: list[tuple[int, int]] = []
        self._read: dict[int, deque[RecordView]] = {}
        self._next: dict[int, int] = {}

    def step(self, until: int, count_max: int, bytes_max: int) -> tuple[list[RecordView], bool]:
        """The next matching records, and whether they are the last below `until`."""
        for _ in range(min(OPEN_MAX, len(self._unopened))):
            self._open(self._unopened.popleft())
        found: list[RecordView] = []
        if self._unopened:
            return found, False
        for _ in range(LOOK_MAX):
            if not self._heads or self._heads[0][0] >= until:
                self.position = max(self.position, until)
                return found, True
            position, queue_id = self._heads[0]
            record = self._read[queue_id][0]
            if self._matches(record):
                bytes_max -= record.total
                if found and (bytes_max < 0 or len(found) >= count_max):
                    break
                found.append(record)
            self.position = position + 1
            self._read[queue_id].popleft()
            self._advance(queue_id)
        return found, False

    def _open(self, queue_id: int) -> None:
        if self.position == 0 and self._from_ms:
            offset = self._store.reading.search_time(queue_id, self._from_ms)
        else:
            offset = offset_at(self._store, queue_id, self.position)
        self._next[queue_id] = offset
        self._read[queue_id] = deque()
        if self._fill(queue_id):
            heapq.heappush(self._heads, (self._read[queue_id][0].position, queue_id))

    def _advance(self, queue_id: int) -> None:
        if self._read[queue_id] or self._fill(queue_id):
            heapq.heapreplace(self._heads, (self._read[queue_id][0].position, queue_id))
        else:
            heapq.heappop(self._heads)

    def _fill(self, queue_id: int) -> bool:
        """Read the next chunk of a queue; False at its end."""
        while True:
            offset = self._next[queue_id]
            try:
                found = self._store.reading.read(queue_id, offset, self._chunk, CHUNK_BYTES_MAX)
            except UnreadableOffsets as error:
                self._next[queue_id] = error.next_offset
                continue
            self._next[queue_id] = found.next_offset
            self._read[queue_id].extend(map(RecordView, found.records))
            return bool(found.records)


class LastScan:
    """Backward from a position: where the last n matching messages begin."""

    def __init__(
        self, store: LogStore, topic_filter: str, own_queue: int, queues: Sequence[int], position: int
    ) -> None:
        self._store = store
        self._matches = _Matcher(topic_filter, own_queue)
        self._unopened = deque(queues)
        self._chunk = max(1, min(CHUNK_MAX, CHUNKS_RECORDS_MAX // max(1, len(queues))))
        self.position = position
        self._heads: list[tuple[int, int]] = []
        self._read: dict[int, list[RecordView]] = {}
        self._end: dict[int, int] = {}

    def step(self, wanted: int) -> tuple[int, bool]:
        """How many of `wanted` are still to be found, and whether the scan is done: they begin at `position`."""
        for _ in range(min(OPEN_MAX, len(self._unopened))):
            self._open(self._unopened.popleft())
        if self._unopened:
            return wanted, False
        for _ in range(LOOK_MAX):
            if wanted <= 0 or not self._heads:
                return wanted, True
            negative, queue_id = self._heads[0]
            record = self._read[queue_id].pop()
            self.position = -negative
            wanted -= self._matches(record)
            if self._read[queue_id] or self._fill(queue_id):
                heapq.heapreplace(self._heads, (-self._read[queue_id][-1].position, queue_id))
            else:
                heapq.heappop(self._heads)
        return wanted, wanted <= 0

    def _open(self, queue_id: int) -> None:
        self._end[queue_id] = offset_at(self._store, queue_id, self.position)
        self._read[queue_id] = []
        if self._fill(queue_id):
            heapq.heappush(self._heads, (-self._read[queue_id][-1].position, queue_id))

    def _fill(self, queue_id: int) -> bool:
        low = self._store.reading.bounds(queue_id)[0]
        while self._end[queue_id] > low:
            end = self._end[queue_id]
            begin = max(low, end - self._chunk)
            self._end[queue_id] = begin
            offset = begin
            while offset < end:
                try:
                    found = self._store.reading.read(queue_id, offset, end - offset, CHUNK_BYTES_MAX, end)
                except UnreadableOffsets as error:
                    offset = error.next_offset
                    continue
                if not found.records:
                    break
                self._read[queue_id].extend(map(RecordView, found.records))
                offset = found.next_offset
            if self._read[queue_id]:
                return True
        return False
