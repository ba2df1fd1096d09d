"""HISTORY (9055): what a wildcard filter matches and its queue does not have, from the parent queues, step by step.

A bounded number of scans is kept for the next step of the same subscriber; a scan that was dropped, or lost with a
restart of the broker, is made again from the position in the request. The history ends where the filter's queue begins.
A replica gives the messages between two positions. Where a history begins is asked of the master, and so is its end,
unless the replica has the first message of the filter's queue; a new master says that nothing is left once it is sure.
Invariant: everything answered is confirmed, and no answer names a position below that of its request. Loop thread only.

Messages that match a filter and are not in the filter's own queue, read from the parent queues in log order.

A wildcard filter's queue begins when it is first subscribed; what was published before is in the parent queues. A
`HistoryScan` merges these by log position; a `LastScan` goes backward from a position and finds where the last n begin.
Both work in steps: a step opens a bounded number of queues or examines a bounded number of records, so that it does not
block the loop; and both can be made again from the position where a step ended, which is all that has to be kept.

Invariant: a step returns the matching messages of [where it began, where it ended), each once, in rising position. Loop
thread only.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from broker.reading.bounds import KnownTopics, covered_topics
from broker.requests import Feature, RequestTools
from broker.store.errors import UnreadableOffsets
from remoting.access.rights import CONSUME
from remoting.protocol.bodies.session_body import HistoryReply, HistoryRequest, decode, encode
from remoting.protocol.errors import Refused
from remoting.protocol.frames.codes import RequestCode, ResponseCode
from remoting.protocol.frames.commands import Command
from remoting.protocol.records import topics as mqtt_topics
from remoting.protocol.records.record import RecordView
from remoting.protocol.records.topics import matches
from remoting.transport.contracts import Handler, Peer

if TYPE_CHECKING:
    from broker.reading.pull import ShownQueues
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
        self.known_to = store.confirm_position
        """Everything below is in `queues`, whatever others there are by now."""
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


SCANS_MAX = 64
"""Scans kept between two steps; the least recently used one is dropped above it."""
STEP_MAX = 64, 64 * 1024
"""Records and bytes of one step, but at least one record: what a slow subscriber costs its proxy."""
QUEUES_MAX = 65_536
"""Parent queues a filter's history is read from; a filter over more is refused."""

Key = tuple[Peer, int, int, int]


class ParentTopics(KnownTopics, Protocol):
    """The topics there are, with their queues."""

    def queue_ids(self, name: str) -> Sequence[int]:
        """Store ids of all queues of a topic; none where it is not known."""
        ...


class HistoryFeature(Feature):
    """Answers HISTORY."""

    def __init__(
        self, tools: RequestTools, *, topics: ParentTopics, visible: ShownQueues, is_replica: bool = False
    ) -> None:
        """`is_replica`: the log may end here before the one of the master."""
        self._tools = tools
        self._topics = topics
        self._visible = visible
        self._is_replica = is_replica
        self._scans: OrderedDict[Key, HistoryScan | LastScan] = OrderedDict()

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        return {RequestCode.HISTORY: self.handle}

    def handle(self, peer: Peer, command: Command) -> Command:
        """One step of a subscriber's history: the records found, and where the next step continues."""
        request = decode(HistoryRequest, command.body)
        wrong = mqtt_topics.validate_filter(request.filter)
        if wrong is not None or self._visible.hidden(request.queue_id):
            raise Refused(ResponseCode.INVALID_PARAMETER, wrong or f"queue {request.queue_id} does not exist")
        self._tools.authorizer.authorize(peer, command, CONSUME, request.filter)
        begin = self._begin_of(request.queue_id)
        if self._is_replica:
            reply = self._of_replica(peer, request, begin)
        else:
            until = self._end_without(request) if begin is None else begin
            reply = self._last(peer, request, until) if request.last else self._forward(peer, request, until)
        return command.reply(body=encode(reply))

    def _end_without(self, request: HistoryRequest) -> int:
        """Where a history ends whose queue shows no message: with what is confirmed, once all of the log is."""
        if not self._tools.is_sure:
            remark = f"what precedes queue {request.queue_id} may wait to be confirmed by this new master"
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
        return self._tools.store.confirm_position

    def _of_replica(self, peer: Peer, request: HistoryRequest, begin: int | None) -> HistoryReply:
        """As much of a step as this replica knows; refused where that is nothing, or it is about the beginning."""
        if request.last or (request.from_ms and not request.position):
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "where a history begins is known to the master alone")
        scan = self._scan(peer, request)
        records, done = scan.step(scan.known_to if begin is None else min(begin, scan.known_to), *STEP_MAX)
        if done and begin is not None and scan.position >= begin:
            return self._found(scan, records, done=True)
        if not done:
            self._keep((peer, request.queue_id, scan.position, 0), scan)
        elif not records and begin is None:
            remark = f"this replica shows nothing behind position {request.position}: ask the master"
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
        return self._found(scan, records, done=False)

    def _found(self, scan: HistoryScan, records: list[RecordView], *, done: bool) -> HistoryReply:
        self._tools.metrics.messages_out.value += len(records)
        return HistoryReply(scan.position, done, b"".join(record.raw for record in records))

    def _scan(self, peer: Peer, request: HistoryRequest) -> HistoryScan:
        """The scan that ended where the request begins, or a new one."""
        scan = self._scans.pop((peer, request.queue_id, request.position, 0), None)
        if not isinstance(scan, HistoryScan):
            queues = self._queues(request.filter)
            store = self._tools.store
            scan = HistoryScan(store, request.filter, request.queue_id, queues, request.position, request.from_ms)
        return scan

    def _forward(self, peer: Peer, request: HistoryRequest, until: int) -> HistoryReply:
        scan = self._scan(peer, request)
        records, done = scan.step(until, *STEP_MAX)
        if not done:
            self._keep((peer, request.queue_id, scan.position, 0), scan)
        return self._found(scan, records, done=done)

    def _last(self, peer: Peer, request: HistoryRequest, until: int) -> HistoryReply:
        position = request.position or until
        scan = self._scans.pop((peer, request.queue_id, position, request.last), None)
        if not isinstance(scan, LastScan):
            queues = self._queues(request.filter)
            scan = LastScan(self._tools.store, request.filter, request.queue_id, queues, position)
        left, done = scan.step(request.last)
        if not done:
            self._keep((peer, request.queue_id, scan.position, left), scan)
        return HistoryReply(scan.position, done, last=left)

    def _keep(self, key: Key, scan: HistoryScan | LastScan) -> None:
        self._scans[key] = scan
        if len(self._scans) > SCANS_MAX:
            self._scans.popitem(last=False)

    def _queues(self, topic_filter: str) -> list[int]:
        topics = self._topics
        found = [queue for topic in covered_topics(topics, topic_filter) for queue in topics.queue_ids(topic)]
        if len(found) > QUEUES_MAX:
            raise Refused(ResponseCode.SYSTEM_BUSY, f"the history of more than {QUEUES_MAX} queues")
        return found

    def _begin_of(self, queue_id: int) -> int | None:
        """Where the filter's own queue begins: at its oldest record; None while it shows none."""
        reading = self._tools.store.reading
        low, high = reading.bounds(queue_id)
        found = reading.positions(queue_id, low, 1) if high > low else []
        return found[0] if found else None
