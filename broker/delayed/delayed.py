"""Messages that wait for their time: accepted, acknowledged and stored like any other, delivered when they are due.

A waiting message is a record of a hidden queue, one queue per `BUCKET_MS` of due time. Its producer_seq has the due
time (ms after the start of the bucket) and what the placement needs (`remoting.protocol.records.image`).

When it is due it is placed as a new message and appended in one group with the mark of its bucket (`buckets`; DELAYED
state): after kill -9 either both are there or neither, so it is delivered exactly once. Only buckets that are due soon
have keys in memory. Retention removes no waiting message: `keep_from` appends it again first.

Invariant: a message that was accepted is delivered once, not before it is due, or counted as `undeliverable` or
`unreadable` with a log event. Loop thread only.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from broker.delayed.buckets import (
    BUCKET_MS,
    NEAR_MS,
    OPEN_MAX,
    RECALLED,
    RESCHEDULED,
    DelayBucket,
    DelayBuckets,
    Entries,
    progress_changes,
    recall_change,
)  # fmt: skip
from broker.delayed.seconds import DueSeconds
from broker.store.errors import Unsettled
from broker.store.index.absence import Absence
from broker.store.placed import Placed, together
from broker.store.state.state_kinds import StateChange
from remoting.native import core as native
from remoting.native.contracts import Key, Times
from remoting.native.vectors import Column, column, nonzero, within
from remoting.protocol.errors import LocalMisuse, Refused
from remoting.protocol.frames.codes import ResponseCode
from remoting.protocol.records.image import change_image, image_views
from remoting.protocol.records.record import FLAG_GROUP_OPEN, RecordView, header_of

if TYPE_CHECKING:
    from broker.publishing.placement import Placement
    from broker.store.log_store import LogStore
    from runtime.metrics import Histogram

GRACE_MS = 60_000
"""How long after its end an empty bucket is kept."""
SCAN_MAX = 16_384
"""Records whose times are read in one step."""
COUNT_INTERVAL_MS = 1_000
GROUP_MAX, GROUP_BYTES_MAX = 1_024, 1024 * 1024
"""Messages and bytes delivered as one group, about a millisecond; a single larger message is delivered alone."""

WITHIN = (
    (300, "5m"), (3_600, "1h"), (6 * 3_600, "6h"), (86_400, "1d"), (3 * 86_400, "3d"), (7 * 86_400, "7d"),
    (2**62, "later"),
)  # fmt: skip
"""Delays by which waiting messages are counted, as (seconds, label), to the span of a bucket."""

Append = Callable[[Placed, Sequence[StateChange]], int]


@dataclass(slots=True)
class DelayCounts:
    """What became of waiting messages since the start."""

    delivered: int = 0
    undeliverable: int = 0
    unreadable: int = 0
    carried: int = 0
    """Appended again before retention reached them."""
    recalled: int = 0
    rescheduled: int = 0
    escaped: int = 0
    """Delivered elsewhere by a replica that stood in for the master."""
    refused: dict[str, int] = field(default_factory=dict)
    """Messages that were not accepted, by reason."""


@dataclass(frozen=True, slots=True)
class Rescheduled:
    """A message that waits for another time, or was delivered."""

    end_position: int
    """To be confirmed before that is acknowledged."""
    image: bytes
    waits_at: tuple[int, int] | None
    """Hidden queue and offset where it waits now; None when it was delivered."""


@dataclass(frozen=True, slots=True)
class DelayLimits:
    """What may wait, and how exactly it is delivered."""

    delay_ms_max: int
    messages_max: int
    per_second_max: int = 0
    """Most messages due in one second; 0: no limit."""
    precision_ms: int = 1
    """Least time between two deliveries: what becomes due in between is delivered together."""


LATENESS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600)
"""Bounds of the histogram of how late messages are delivered."""
TOO_FAR, TOO_MANY, CONGESTED = "too_far", "too_many", "congested"
"""Why a message may not wait."""


class Delayed:
    """All waiting messages of this broker."""

    def __init__(
        self,
        store: LogStore,
        placement: Placement,
        hidden: set[int],
        *,
        limits: DelayLimits,
        lateness: Histogram,
        now_ms: int,
        log: Any,
    ) -> None:
        """`hidden`: queues that readers never see; those of the waiting messages are added. `lateness`: in seconds."""
        self._store = store
        self._placement = placement
        self._limits = limits
        self._lateness = lateness
        self._log = log
        self.buckets = DelayBuckets(store, hidden)
        self.seconds = DueSeconds(self.buckets, limits.per_second_max)
        self._opened: list[DelayBucket] = []
        self._delivered_ms = 0
        """Time of the last delivery that began; see `DelayLimits.precision_ms`."""
        self.counts = DelayCounts()
        # Time may have been set back: what comes now must not sort before what was delivered.
        self._now_ms = max([now_ms, *(bucket.mark[0] for bucket in self.buckets)])
        self.waiting = 0
        """Messages that wait; recounted once a second, because an append that fails leaves it too high."""
        self.by_delay: dict[str, int] = {}
        """The same by how far away they are due, as of the last count."""
        self._recount(now_ms)

    # -- in ------------------------------------------------------------------------------------------------------------

    def configure(self, limits: DelayLimits) -> None:
        """Take over what may wait from now on; what waits already stays."""
        self._limits = limits
        self.seconds.per_second_max = limits.per_second_max

    def times(self, now_ms: Callable[[], int]) -> Times:
        """What a walk over images needs to have messages wait, as `put` does; `now_ms` is the clock.

        The walk counts them in their seconds, its caller calls `took`.
        """

        def limits() -> tuple[int, int, int, int, int]:
            at_ms, limits = now_ms(), self._limits
            room = limits.messages_max - self.waiting
            return at_ms, self._time(at_ms), limits.delay_ms_max, room, limits.per_second_max

        return Times(self.seconds.spans, self.seconds.opened, limits)

    def took(self, dues: bytes) -> None:
        """Count messages that wait by a walk over images; `dues` as `Core.placed` returns them."""
        self.waiting += len(dues) // 8

    def gave_back(self, dues: bytes) -> None:
        """Take back what `took` and the walk counted: the messages are not appended."""
        for due_ms in array("q", dues):
            self.seconds.add(due_ms, -1)
        self.waiting -= len(dues) // 8

    def put(self, image: RecordView, due_ms: int, now_ms: int) -> tuple[bytes, tuple[int, ...]] | None:
        """Turn an image into a waiting one, to be appended at once to the queue returned; None when it is due now.

        Raises:
            Refused: it is due later than `delay_ms_max` allows, too many wait, or too many are due in that second.
        """
        if not self.admit(due_ms, now_ms):
            return None
        self.waiting += 1
        self.seconds.add(due_ms)
        bucket = self.buckets.at(due_ms)
        return native.core.hidden(bytes(image.raw), due_ms - bucket.start_ms), (bucket.queue_id,)

    def admit(self, due_ms: int, now_ms: int) -> bool:
        """Whether a message due at that time has to wait. Raises Refused as `put` when it may not."""
        now_ms = self._time(now_ms)
        if due_ms <= now_ms:
            return False
        limits = self._limits
        if due_ms - now_ms > limits.delay_ms_max:
            remark = f"a delay of {due_ms - now_ms} ms exceeds {limits.delay_ms_max}"
            raise self._refused(TOO_FAR, ResponseCode.MESSAGE_ILLEGAL, remark)
        if self.waiting >= limits.messages_max:
            remark = f"delayed_messages_max {limits.messages_max} messages wait"
            raise self._refused(TOO_MANY, ResponseCode.MESSAGE_ILLEGAL, remark)
        if self.seconds.is_full(due_ms):
            remark = f"delayed_per_second_max {limits.per_second_max} messages are due in the same second"
            raise self._refused(CONGESTED, ResponseCode.FLOW_CONTROL, remark)
        return True

    # -- out -----------------------------------------------------------------------------------------------------------

    def due(self, now_ms: int) -> bool:
        """Deliver some of what is due; True when there is more to do at once. Everything put before must be appended.

        Raises:
            StoreError: none of it was delivered; try again.
        """
        now_ms = self._time(now_ms)
        more = False
        # Between two deliveries only messages that were due at the first one are delivered.
        begins = now_ms >= self._delivered_ms + self._limits.precision_ms
        until_ms = now_ms if begins else self._delivered_ms
        self._opened = self.buckets.near(now_ms)
        for bucket in list(self._opened):
            more = self._scan(bucket, now_ms) or more
            entries = bucket.take(GROUP_MAX, until_ms)
            if len(entries[0]):
                self._delivered_ms = until_ms
                self._deliver(bucket, entries)
                more = True
            elif bucket.start_ms + BUCKET_MS + GRACE_MS <= now_ms and bucket.is_empty(self.buckets.end(bucket)):
                self.buckets.remove(bucket)
                self.seconds.remove(bucket)
                self._opened.remove(bucket)
        if now_ms - self._counted_ms >= COUNT_INTERVAL_MS:
            self._recount(now_ms)
        return more

    def next_due_ms(self) -> int | None:
        """When `due` next has something to do, as far as is known; None when nothing waits."""
        earliest_ms = self._delivered_ms + self._limits.precision_ms
        times = [
            bucket.start_ms + BUCKET_MS + GRACE_MS
            if bucket.next_due_ms is None
            else max(bucket.next_due_ms, earliest_ms)
            for bucket in self._opened
        ]
        later_ms = self.buckets.start_behind(len(self._opened))
        if later_ms is not None and len(self._opened) < OPEN_MAX:
            times.append(later_ms - NEAR_MS)
        return min(times, default=None)

    def drop(self, bucket: DelayBucket, key: Key, why: bytes) -> int:
        """Pass over the message that waits there; returns the log position to confirm before that is acknowledged.

        `why`: `RECALLED`, or `ESCAPED` for one that was delivered elsewhere. Raises StoreError: it still waits.
        """
        due_ms, offset = key
        assert bucket.is_waiting(key), key
        end = self._store.append(changes=[recall_change(bucket, offset, why)]).end_position
        bucket.recalled[offset] = why
        self.seconds.add(due_ms, -1)
        self.waiting -= 1
        if why == RECALLED:
            self.counts.recalled += 1
        else:
            self.counts.escaped += 1
        return end

    def reschedule(self, bucket: DelayBucket, key: Key, image: bytes, due_ms: int, now_ms: int) -> Rescheduled:
        """Have the message that waits there as `image` wait for another time, or deliver it if that time has come.

        Raises:
            Refused: it may not wait for that time.
            StoreError: its time is the old one.
        """
        assert bucket.is_waiting(key), key
        self.waiting -= 1  # it takes the place of itself
        try:
            put = self.put(RecordView(image), due_ms, now_ms)
            placed = self._placement.placed(image, now=True) if put is None else Placed(put[0], [put[1]])
            appended = self._store.append(placed, changes=[recall_change(bucket, key[1], RESCHEDULED)])
        except BaseException:
            self._recount(now_ms)
            raise
        bucket.recalled[key[1]] = RESCHEDULED
        self.seconds.add(key[0], -1)
        self.counts.rescheduled += 1
        waits_at = None if put is None else (put[1][0], appended.offsets[0])
        return Rescheduled(appended.end_position, placed.images, waits_at)

    def numbers(self, now_ms: int) -> dict[str, Any]:
        """What operators see: how many wait, by how far away they are due, and when the next known one is."""
        self._recount(now_ms)
        earliest = next((bucket for bucket in self.buckets.after(0) if self.buckets.waiting(bucket)), None)
        second_ms, most = self.seconds.fullest()
        return {
            "waiting": self.waiting,
            "next_due_ms": None if earliest is None else earliest.next_due_ms or earliest.start_ms,
            "by_delay": self.by_delay,
            "fullest_second": {"second_ms": second_ms, "messages": most} if most else None,
        }

    # -- retention -----------------------------------------------------------------------------------------------------

    def keep_from(self, target: int, append: Append) -> bool:
        """Append some of what waits below the log position `target` again; True when nothing waits there any more."""
        return not any(self._carry(bucket, target, append) for bucket in self.buckets)

    # -- inner parts ---------------------------------------------------------------------------------------------------

    def _time(self, now_ms: int) -> int:
        self._now_ms = max(self._now_ms, now_ms)
        return self._now_ms

    def _refused(self, reason: str, code: int, remark: str) -> Refused:
        self.counts.refused[reason] = self.counts.refused.get(reason, 0) + 1
        return Refused(code, remark)

    def _recount(self, now_ms: int) -> None:
        self._counted_ms = now_ms
        self.by_delay = {label: 0 for _within_s, label in WITHIN}
        for bucket in self.buckets:
            away_s = (bucket.start_ms - now_ms) // 1_000
            label = next(label for within_s, label in WITHIN if away_s < within_s)
            self.by_delay[label] += self.buckets.waiting(bucket)
        self.waiting = sum(self.by_delay.values())

    def _scan(self, bucket: DelayBucket, now_ms: int) -> bool:
        """Take in some of the records added and confirmed since; True when there is more."""
        cursor = bucket.open()
        bucket.mark_seen(self.buckets.end(bucket), now_ms)
        found = self.buckets.dues(bucket, cursor, SCAN_MAX)
        self._note_lost(found.lost, found.reason)
        bucket.seen(cursor, found.dues, found.positions)
        bucket.skip(found.after)
        return found.after < self._store.reading.confirmed_end(bucket.queue_id) or bucket.must_rescan

    def _read(self, bucket: DelayBucket, offset: int, count: int) -> tuple[list[memoryview], int]:
        """(confirmed records from `offset` on, offset to continue at); unreadable ones are counted and skipped."""
        stretch = self.buckets.read(bucket, offset, count)
        self._note_lost(stretch.lost, stretch.reason)
        return stretch.raw, stretch.after

    def _note_lost(self, count: int, reason: str) -> None:
        if count:
            self.counts.unreadable += count
            self._log.error("delayed_unreadable", messages=count, reason=reason)

    def _deliver(self, bucket: DelayBucket, entries: Entries) -> None:
        """Append the messages of these entries with the mark, as many as fit in one group."""
        try:
            taken, messages = self._messages(bucket, entries)
            if not self._append(bucket, _part(entries, 0, taken), messages):
                taken = 1
                self._give_up_or_append(bucket, _part(entries, 0, 1))
        except BaseException:
            bucket.put_back(entries)
            raise
        bucket.put_back(_part(entries, taken, len(entries[0])))

    def _messages(self, bucket: DelayBucket, entries: Entries) -> tuple[int, Placed]:
        """How many entries one group takes, and their messages, without those recalled or undeliverable."""
        wanted = nonzero(bucket.not_recalled(entries[1]))
        images, count = self._store.reading.staged_images(entries[2][wanted], GROUP_BYTES_MAX)
        if count == len(wanted):
            return len(entries[0]), self._placed(images, count)
        taken = wanted[count]
        if taken:
            return taken, self._placed(images, count)
        record = self._record(bucket, entries[1][0], entries[2][0])
        shown = None if record is None else native.core.shown(record, column([0], "I"))
        if record is not None and shown is None:
            self._give_up(1, "it is not a staged message")
        return 1, self._placed(shown, 1) if shown else Placed()

    def _record(self, bucket: DelayBucket, offset: int, position: int) -> memoryview | None:
        """The waiting record; None for one that is gone or damaged, which is counted: it would hold up all others.

        Raises Unsettled for one that cannot be read yet.
        """
        record = self._store.reading.read_at(position)
        if isinstance(record, Absence):
            record = self._store.reading.record(bucket.queue_id, offset)
        if record is Absence.NOT_YET:
            raise Unsettled(f"the delayed message at position {position} is not confirmed yet")
        if isinstance(record, Absence):
            self._note_lost(1, f"the message at position {position} is {record.value}")
            return None
        return record

    def _placed(self, images: bytes, count: int) -> Placed:
        """The messages as they go to their topics now; those that cannot be published are counted and left out."""
        try:
            return self._placement.placed(images, now=True)
        except Refused as error:
            if count > 1:
                return together([self._placed(bytes(image.raw), 1) for image in image_views(images)])
            self._give_up(1, error.remark)
        return Placed()

    def _append(self, bucket: DelayBucket, entries: Entries, messages: Placed) -> bool:
        """Append the messages of these entries and the mark as one group; False when the store refuses one for good."""
        count, kept = len(entries[0]), bucket.not_recalled(entries[1])
        recalled = entries[1][~kept].tolist()
        mark = entries[0][-1], entries[1][-1]
        changes = progress_changes(bucket, mark, bucket.floor, bucket.delivered + count, recalled)
        try:
            self._store.append(messages, atomic=True, changes=changes)
        except LocalMisuse as error:
            if not messages:
                raise
            self._log.debug("delayed_group_refused", reason=str(error))
            return False
        bucket.delivered_up_to(mark, count)
        for offset in recalled:
            del bucket.recalled[offset]
        self.waiting -= count - len(recalled)
        self.counts.delivered += len(messages)
        if messages:
            late_ms = self._now_ms - entries[0][kept]
            self._lateness.add(_by_lateness(late_ms), late_ms.sum() / 1_000)
        return True

    def _give_up_or_append(self, bucket: DelayBucket, entry: Entries) -> None:
        """Append one message alone, so that one that cannot be stored does not block the others of its group."""
        _taken, message = self._messages(bucket, entry)
        if self._append(bucket, entry, message):
            return
        self._give_up(1, "the store cannot take it")
        self._append(bucket, entry, Placed())

    def _give_up(self, count: int, reason: str) -> None:
        self.counts.undeliverable += count
        self._log.error("delayed_undeliverable", messages=count, reason=reason)

    def _stands_behind(self, bucket: DelayBucket, offset: int, target: int) -> bool:
        """Whether a record that is there, sound or not, is not below the log position `target`."""
        if offset < self._store.reading.bounds(bucket.queue_id)[0]:
            return False
        found = self._store.reading.positions(bucket.queue_id, offset, 1)
        return not found or found[0] >= target

    def _carry(self, bucket: DelayBucket, target: int, append: Append) -> bool:
        """Append the oldest waiting messages below `target` again; False when there are none."""
        first = bucket.floor
        if self._stands_behind(bucket, first, target):
            return False
        raw, after = self._read(bucket, first, GROUP_MAX)
        records = [RecordView(record) for record in raw]
        doomed = [record for record in records if record.position < target]
        if after == first or (records and not doomed):
            return False
        floor = first + len(doomed) if records else after
        keys = [(bucket.due_ms(record), offset) for offset, record in enumerate(doomed, first)]
        waiting = [(record, key) for record, key in zip(doomed, keys, strict=True) if bucket.is_waiting(key)]
        # A record may not be due before the time it is added: see `bucket`.
        images = [_again(record, bucket, max(due_ms, self._now_ms)) for record, (due_ms, _offset) in waiting]
        delivered = bucket.delivered - sum(not bucket.waits(key) for key in keys)
        recalled = [offset for offset in bucket.recalled if offset < floor]
        append(
            Placed(b"".join(images), [(bucket.queue_id,)] * len(images)),
            progress_changes(bucket, bucket.mark, floor, delivered, recalled),
        )
        bucket.moved(floor, delivered)
        self.counts.carried += len(images)
        return True


def _part(entries: Entries, first: int, end: int) -> Entries:
    """The entries [first, end)."""
    dues, offsets, positions = entries
    return dues[first:end], offsets[first:end], positions[first:end]


def _by_lateness(late_ms: Column) -> list[int]:
    """How many are late by at most each of `LATENESS_S`, but more than by the one before, and by more than all."""
    bounds = [-(2**62), *(round(1_000 * second) for second in LATENESS_S), 2**62]
    return [within(late_ms, low + 1, high + 1).sum() for low, high in pairwise(bounds)]


def _again(record: RecordView, bucket: DelayBucket, due_ms: int) -> bytes:
    """The image of a waiting record, to be stored again with this due time."""
    seq = header_of(record).producer_seq & 0xFFFF_FFFF | (due_ms - bucket.start_ms) << 32
    return change_image(record, flags=record.flags & ~FLAG_GROUP_OPEN, producer_seq=seq)
