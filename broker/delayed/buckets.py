"""The waiting messages of one span of time: which are delivered, and in which order the rest follows.

A bucket is a hidden queue; its records are in order of arrival, each with the time it is due. Delivery is in order of
(due, offset), so one pair, `mark`, describes everything delivered. That is sufficient only while no later record sorts
before the mark: a record is never due before the time it is added, and delivery goes no further than the time of the
last `mark_seen` before which everything added has been seen (`_horizon`).

    floor ........ records below were appended again at the end of the queue, before retention took them, or are lost
    cursor ....... records below have been seen, and are in the heap unless delivered; None: nothing read yet
    value          i64 mark due | i64 mark offset | i64 floor | i64 delivered records at or above the floor

A recalled message keeps its place in that order and is dropped there: the offsets of those not yet passed are in
`recalled`, each with a state record of its own (key "start/offset", value empty, M for one that waits for another time
now, or E for one that a replica delivered elsewhere), which goes in the group that passes it.

Memory: `KEPT_MAX` entries of 24 bytes, each a key and the log position of its record; of those that do not fit, the
bucket keeps the smallest and reads the queue again when that is next. Invariant: keys leave `take` in rising order,
each above the mark. A bucket is pure, with one owner; `DelayBuckets` opens and deletes the queues. Loop thread only.
"""

from __future__ import annotations

import struct
from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.store.errors import UnreadableOffsets
from broker.store.index.reader import OFFSET_TOO_SMALL
from broker.store.state import state_kinds
from broker.store.state.name_table import names_with_prefix
from broker.store.state.state_kinds import StateChange
from remoting.native import core as native
from remoting.native.contracts import SPAN_MS, Key, Waiting
from remoting.native.vectors import Column, empty, full, isin
from remoting.protocol.records.record import RecordView, header_of

if TYPE_CHECKING:
    from broker.store.log_store import LogStore

KEPT_MAX = 262_144
"""Entries one bucket keeps in memory, 6 MB; above it the later half is dropped and read again from the queue."""

Entries = Waiting
"""i64[3, n]: when messages are due in ms, their offsets in the queue, the log positions of their records."""

NOTHING: Key = (-1, -1)
_ENDLESS: Key = (2**63 - 1, 2**63 - 1)
"""A key above all others."""
RECALLED, RESCHEDULED, ESCAPED = b"", b"M", b"E"
"""Values of the state records of messages that will not be delivered where they wait."""
_VALUE = struct.Struct("<qqqq")


class DelayBucket:
    """The messages due within `BUCKET_MS` from `start_ms` on, and how far they are delivered."""

    __slots__ = (
        "_beyond", "_heap", "_horizons", "cursor", "delivered", "floor", "mark", "queue_id", "recalled", "start_ms",
    )  # fmt: skip

    def __init__(
        self, start_ms: int, queue_id: int, value: bytes | None = None, recalled: Mapping[int, bytes] | None = None
    ) -> None:
        """`value` and `recalled`: the durable state; none for a new bucket."""
        due, offset, floor, delivered = (*NOTHING, 0, 0) if value is None else _VALUE.unpack(value)
        self.start_ms = start_ms
        self.queue_id = queue_id
        self.mark: Key = (due, offset)
        self.floor: int = floor
        self.delivered: int = delivered
        """Records at or above the floor that were passed: delivered, given up or dropped."""
        self.recalled = dict(recalled or {})
        """Offset -> `RECALLED`, `RESCHEDULED` or `ESCAPED`, of messages that delivery has not passed yet."""
        self.cursor: int | None = None
        self._heap = native.core.make_due_heap()
        self._beyond: Key | None = None
        self._horizons: deque[tuple[int, int]] = deque()

    def due_ms(self, record: RecordView) -> int:
        """When a record of its queue is due."""
        return self.start_ms + (header_of(record).producer_seq >> 32)

    def waits(self, key: Key) -> bool:
        """Whether a record of the queue is still to be passed."""
        return key > self.mark and key[1] >= self.floor

    def is_waiting(self, key: Key) -> bool:
        """Whether a record of the queue is still to be delivered: it was neither passed nor recalled."""
        return self.waits(key) and key[1] not in self.recalled

    def waiting_among(self, dues: Column, offsets: Column) -> Column:
        """Which of these records of the queue are still to be delivered, as a mask."""
        due, offset = self.mark
        waits = ((dues > due) | ((dues == due) & (offsets > offset))) & (offsets >= self.floor)
        return waits & self.not_recalled(offsets)

    def not_recalled(self, offsets: Column) -> Column:
        """Which of these records of the queue are not recalled, as a mask."""
        if not self.recalled:
            return full(len(offsets), 1, "B")
        return ~isin(offsets, self.recalled)

    # -- seeing --------------------------------------------------------------------------------------------------------

    def open(self) -> int:
        """Begin or continue reading the queue; returns the offset to read from."""
        if self.cursor is None or (self._beyond is not None and not self._in_reach()):
            self.cursor = self.floor
            self._beyond = None
            self._heap.clear()
            self._horizons.clear()
        return self.cursor

    def seen(self, offset: int, dues: Column, positions: Column) -> None:
        """Take in the records at the cursor: when each is due in ms, and its log position."""
        assert offset == self.cursor, (offset, self.cursor)
        self.cursor = offset + len(dues)
        self._heap.add(offset, dues, positions, self.floor, self.mark, self._beyond or _ENDLESS)
        if len(self._heap) > KEPT_MAX:
            self._beyond = self._heap.keep(KEPT_MAX // 2)

    def skip(self, next_offset: int) -> None:
        """Move the cursor past records that can no longer be read."""
        assert self.cursor is not None, "not open"
        self.cursor = max(self.cursor, next_offset)

    def mark_seen(self, next_offset: int, now_ms: int) -> None:
        """Note that records at or above `next_offset` are added at this time or later."""
        horizons = self._horizons
        if horizons and horizons[-1][0] == next_offset:
            horizons[-1] = (next_offset, now_ms)
        else:
            horizons.append((next_offset, now_ms))

    # -- delivering ----------------------------------------------------------------------------------------------------

    def take(self, count: int, until_ms: int) -> Entries:
        """Remove and return, in order, up to `count` entries due by then that no later record can precede."""
        limit = min(self._beyond or _ENDLESS, (min(self._horizon(), until_ms) + 1, 0))
        return self._heap.take(count, self.floor, self.mark, limit)

    def put_back(self, entries: Entries) -> None:
        """Put entries back that were not delivered."""
        self._heap.put_back(entries)

    def delivered_up_to(self, mark: Key, count: int) -> None:
        """Note that `count` more were passed, the last of them `mark`."""
        assert mark > self.mark, (mark, self.mark)
        self.mark = mark
        self.delivered += count

    def moved(self, floor: int, delivered: int) -> None:
        """Note that what waited below `floor` was appended again; `delivered` records are at or above it."""
        self.floor, self.delivered = floor, delivered
        self.recalled = {offset: value for offset, value in self.recalled.items() if offset >= floor}
        if self.cursor is not None:
            self.cursor = max(self.cursor, floor)

    @property
    def next_due_ms(self) -> int | None:
        """When its next known message is due; None when none is known to wait."""
        first = self._heap.first()
        return None if first is None else first[0]

    def is_empty(self, next_offset: int) -> bool:
        """Whether everything below `next_offset` was seen and delivered."""
        return self.cursor == next_offset and self._beyond is None and not len(self._heap)

    @property
    def must_rescan(self) -> bool:
        """Whether the next messages are among those that memory had no room for."""
        return self._beyond is not None and not self._in_reach()

    def _in_reach(self) -> bool:
        """Whether the heap's first key is the next of all that were seen."""
        first = self._heap.first()
        return first is not None and (self._beyond is None or first < self._beyond)

    def _horizon(self) -> int:
        """Time of the last `mark_seen` whose records have all been seen; messages due up to then may be delivered."""
        horizons, cursor = self._horizons, self.cursor or 0
        while len(horizons) > 1 and horizons[1][0] <= cursor:
            horizons.popleft()
        return horizons[0][1] if horizons and horizons[0][0] <= cursor else -1


def progress_value(mark: Key, floor: int, delivered: int) -> bytes:
    """The encoded state of a bucket with these values."""
    return _VALUE.pack(*mark, floor, delivered)


def progress_changes(
    bucket: DelayBucket, mark: Key, floor: int, delivered: int, passed: Iterable[int]
) -> list[StateChange]:
    """The state records for these values; the recalled messages at the offsets `passed` are no longer noted."""
    value = progress_value(mark, floor, delivered)
    changes = [StateChange(state_kinds.DELAYED, b"%d" % bucket.start_ms, value)]
    return changes + [recall_change(bucket, offset, None) for offset in passed]


def recall_change(bucket: DelayBucket, offset: int, value: bytes | None) -> StateChange:
    """The state record of a recalled message; None deletes it."""
    return StateChange(state_kinds.DELAYED, b"%d/%d" % (bucket.start_ms, offset), value)


DELAY_PREFIX = b"\x01delay\x00"
BUCKET_MS = SPAN_MS
"""Span of one bucket: a queue and at most one state entry for each that has messages."""
NEAR_MS = 5_000
"""A bucket's keys are read this long before its start."""
OPEN_MAX = 4
"""Buckets with keys in memory; later ones are opened when an earlier one is removed."""
READ_BYTES_MAX = 1024 * 1024
"""Bytes of records read at once."""


@dataclass(frozen=True, slots=True)
class BucketRecords:
    """Confirmed records of a bucket's queue, and the offset to continue at; `lost` could not be read, for `reason`."""

    raw: list[memoryview]
    after: int
    lost: int = 0
    reason: str = ""

    @property
    def records(self) -> list[RecordView]:
        """A view of each record."""
        return [RecordView(record) for record in self.raw]


@dataclass(frozen=True, slots=True)
class BucketDues:
    """When confirmed records of a bucket's queue are due, in ms, their log positions, and the offset to continue at.

    `lost` could not be read, for `reason`.
    """

    after: int
    dues: Column = field(default_factory=lambda: empty(0, "q"))
    positions: Column = field(default_factory=lambda: empty(0, "q"))
    lost: int = 0
    reason: str = ""


class DelayBuckets:
    """The buckets by the start of their span; each has a hidden queue."""

    def __init__(self, store: LogStore, hidden: set[int]) -> None:
        self._store = store
        self._by_start: dict[int, DelayBucket] = {}
        self._by_queue: dict[int, DelayBucket] = {}
        self._starts: list[int] = []
        """Starts of the buckets, the earliest first."""
        self._hidden = hidden
        self.queues: set[int] = set()
        """The hidden queues; always the same set."""
        recalled: dict[bytes, dict[int, bytes]] = {}
        for key, (value, _position) in store.state.items(state_kinds.DELAYED):
            start, slash, offset = key.partition(b"/")
            if slash:
                recalled.setdefault(start, {})[int(offset)] = value
        for name in names_with_prefix(store.state.queues, DELAY_PREFIX):
            start = name.removeprefix(DELAY_PREFIX)
            self._add(int(start), name, recalled.get(start))

    def __iter__(self) -> Iterator[DelayBucket]:
        return iter(list(self._by_start.values()))

    def at(self, due_ms: int) -> DelayBucket:
        """The bucket of a due time, made when there is none."""
        start_ms = due_ms - due_ms % BUCKET_MS
        return self._by_start.get(start_ms) or self._add(start_ms, DELAY_PREFIX + b"%d" % start_ms)

    def find(self, due_ms: int) -> DelayBucket | None:
        """The bucket of a due time, None when there is none."""
        return self._by_start.get(due_ms - due_ms % BUCKET_MS)

    def of_queue(self, queue_id: int) -> DelayBucket | None:
        """The bucket that has this queue, None when none has."""
        return self._by_queue.get(queue_id)

    def read(self, bucket: DelayBucket, offset: int, count: int) -> BucketRecords:
        """Confirmed records from `offset` on, up to `READ_BYTES_MAX`."""
        try:
            result = self._store.reading.read(bucket.queue_id, offset, count, READ_BYTES_MAX)
        except UnreadableOffsets as error:
            return BucketRecords([], error.next_offset, error.next_offset - offset, str(error))
        if result.status == OFFSET_TOO_SMALL:
            first = result.first_offset
            return BucketRecords([], first, first - offset, "the log no longer has them")
        return BucketRecords(result.records, offset + len(result.records))

    def dues(self, bucket: DelayBucket, offset: int, count: int) -> BucketDues:
        """When up to `count` confirmed records from `offset` on are due; only their headers are looked at."""
        try:
            found = self._store.reading.sequences(bucket.queue_id, offset, count)
        except UnreadableOffsets as error:
            return BucketDues(error.next_offset, lost=error.next_offset - offset, reason=str(error))
        if found.first_offset > offset:
            first = found.first_offset
            return BucketDues(first, lost=first - offset, reason="the log no longer has them")
        dues = (found.sequences >> 32) + bucket.start_ms
        return BucketDues(offset + len(dues), dues, found.positions)

    def after(self, due_ms: int) -> list[DelayBucket]:
        """The buckets with what is due then or later, the earliest first."""
        return [self._by_start[start] for start in self._starts if start + BUCKET_MS > due_ms]

    def end(self, bucket: DelayBucket) -> int:
        """The offset that its queue's next record gets."""
        return self._store.reading.next_offset(bucket.queue_id)

    def waiting(self, bucket: DelayBucket) -> int:
        """How many messages of a bucket wait, those not confirmed among them."""
        return self.end(bucket) - bucket.floor - bucket.delivered - len(bucket.recalled)

    def near(self, now_ms: int) -> list[DelayBucket]:
        """The earliest buckets, at most `OPEN_MAX`, that begin within `NEAR_MS`."""
        return [self._by_start[start] for start in self._starts[:OPEN_MAX] if start - NEAR_MS <= now_ms]

    def start_behind(self, count: int) -> int | None:
        """Start of the bucket after the first `count`; None when there is none."""
        return self._starts[count] if count < len(self._starts) else None

    def remove(self, bucket: DelayBucket) -> None:
        """Delete a bucket with its queue and its state."""
        changes = [StateChange(state_kinds.DELAYED, b"%d" % bucket.start_ms, None)]
        changes += [recall_change(bucket, offset, None) for offset in bucket.recalled]
        self._store.queues.delete([bucket.queue_id], changes)
        del self._by_start[bucket.start_ms], self._by_queue[bucket.queue_id]
        self._starts.remove(bucket.start_ms)
        self._hidden.discard(bucket.queue_id)
        self.queues.discard(bucket.queue_id)

    def _add(self, start_ms: int, name: bytes, recalled: Mapping[int, bytes] | None = None) -> DelayBucket:
        queue_id = self._store.queues.open(name)
        kept = self._store.state.get(state_kinds.DELAYED, name.removeprefix(DELAY_PREFIX))
        value = None if kept is None else kept[0]
        bucket = DelayBucket(start_ms, queue_id, value, recalled)
        self._by_start[start_ms] = self._by_queue[queue_id] = bucket
        insort(self._starts, start_ms)
        self._hidden.add(queue_id)
        self.queues.add(queue_id)
        return bucket
