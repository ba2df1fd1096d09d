"""Removes the oldest segments, by age and by size of the log, and when the disk is full if that is allowed.

Groups of queues may have a retention of their own (`GroupExpiry`): one that keeps less begins later than the log does,
one that keeps more holds the segments it needs against the log's age, never against its size. By age: store times
never fall along the log, so the first message of each counted queue that is young enough is found by a galloping
search, and the lowest of their positions is where the group begins. By size: the sizes of entries are added as they
are confirmed and subtracted as they expire; after a start the sum is built again, and until then it is too low, so
that nothing expires too early. The new position is appended first and takes effect once that record is confirmed.

Before a segment is deleted, `CarryForward` appends again every state entry that only it has: changes as control
records, queues with their present next offset, retained messages as records without a queue, with the rest of their
Message Expiry Interval. The tables may be large, so they are searched in bounded pieces; what is written meanwhile is
younger than the segment. In a group the master then publishes how far it deletes the log (LOG_BEGIN): a replica, which
appends nothing, deletes nothing beyond that, and only what its own settings expire.
The size of the log is that of its files. State is never given up for it: where what was carried forward takes more than
half of the limit, the log is kept at twice that, which is reported, since writing state again frees nothing.

Invariants: a segment goes only when what was carried forward, and what made carrying needless, is on the disk and the
index runs cover it, so the log alone still has all state, also after a crash. Nothing that a group's rule keeps is
hidden. Thread rule: loop thread; each step appends `carry_entries_max` entries at most.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from broker.store.errors import StoreFull
from broker.store.index.index_flusher import IndexFlusher
from broker.store.index.queue_index import QueueIndex
from broker.store.index.run import Entries
from broker.store.log.commit_log import CommitLog
from broker.store.log.epoch_file import Role
from broker.store.placed import Placed
from broker.store.settings import FILES_MIN, StoreSettings
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange
from broker.store.state.state_tables import GroupRule, QueueGroups, Said, StateTables, carried_value, expiry_change
from remoting.native.vectors import argsort, cumsum, joined
from remoting.protocol.errors import CorruptRecord
from remoting.protocol.records.image import change_image
from remoting.protocol.records.properties import EXPIRY, expires_ms
from remoting.protocol.records.record import (
    FLAG_GROUP_OPEN,
    HEADER,
    MAGIC,
    MAGIC_MASK,
    RecordView,
    check_record,
    header_of,
)

GROUPS_PER_STEP = 32
ENTRIES_PER_STEP = 65_536
INTERVAL_MS_MIN, INTERVAL_MS_MAX = 1_000, 60_000
AGE_SHARE = 100
"""A group is checked when a hundredth of its age has passed, within the two bounds above."""
NEVER = 2**62
AppendState = Callable[[Sequence[StateChange]], int]


@dataclass(slots=True)
class Counted:
    """What is added up of a group: [low, high) offsets per queue and the bytes of their records."""

    spans: dict[int, list[int]] = field(default_factory=dict)
    total_bytes: int = 0


@dataclass(slots=True)
class Found:
    """The result of checking a group: where it begins and why, and from where on it needs the log."""

    begin: int
    reason: str
    held: int


class GroupExpiry:
    """Moves the begins of groups; `append` writes them to the log."""

    def __init__(
        self,
        groups: QueueGroups,
        index: QueueIndex,
        log: CommitLog,
        append: AppendState,
        confirmed: Callable[[], int],
        *,
        age_ms: int,
    ) -> None:
        self._groups = groups
        self._index = index
        self._log = log
        self._append = append
        self._confirmed = confirmed
        self.age_ms = age_ms
        self._due_ms: dict[bytes, int] = {}
        self._held: dict[bytes, int] = {}
        self._counted: dict[bytes, Counted] = {}
        self._said: list[tuple[int, bytes, int, str]] = []
        self.hidden_total = {"age": 0, "size": 0}
        """Messages hidden by the rules of groups, by reason."""

    def step(self, now_ms: int) -> None:
        """Apply what was confirmed, and check the groups that are due."""
        self._take_in()
        rules = self._groups.rules
        due = [name for name in rules if self._due_ms.get(name, 0) <= now_ms][:GROUPS_PER_STEP]
        moved = []
        for name in due:
            rule = rules[name]
            self._due_ms[name] = now_ms + interval_ms(rule)
            found = self._expired(name, rule, now_ms)
            self._held[name] = found.held
            if found.begin > self._groups.begin(name) and found.begin > self._log.begin:
                moved.append((name, found))
        changes = [expiry_change(name, found.begin) for name, found in moved] + self._groups.outlived(self._log.begin)
        if changes:
            try:
                end = self._append(changes)
            except StoreFull:  # nothing is lost: they are checked again
                self._counted.clear()
                return
            self._said += [(end, name, found.begin, found.reason) for name, found in moved]

    def held(self) -> int:
        """Return the lowest log position that a group needs although the log's own age would let it go."""
        if not self.age_ms:
            return NEVER
        rules = self._groups.rules.items()
        return min((self._held.get(name, 0) for name, rule in rules if self._keeps_longer(rule)), default=NEVER)

    def _keeps_longer(self, rule: GroupRule) -> bool:
        return rule.age_ms is not None and (rule.age_ms == 0 or rule.age_ms > self.age_ms)

    def _take_in(self) -> None:
        """Hide what is confirmed to be hidden, and count it."""
        confirmed = self._confirmed()
        ready = [item for item in self._said if item[0] <= confirmed]
        if not ready:
            return
        self._said = self._said[len(ready) :]
        for _, name, begin, reason in ready:
            rule = self._groups.rules.get(name)
            queues = rule.queues if rule is not None else ()
            before = [self._index.min_offset(queue) for queue in queues]
            self._groups.move(name, begin)
            after = [self._index.min_offset(queue) for queue in queues]
            self.hidden_total[reason] += sum(after) - sum(before)

    def _expired(self, name: bytes, rule: GroupRule, now_ms: int) -> Found:
        begin, reason, held = 0, "age", NEVER
        if rule.age_ms:
            begin, held = self._young(rule, now_ms - rule.age_ms)
        elif rule.age_ms == 0:
            _, held = self._young(rule, -NEVER)
        if rule.size_bytes:
            cut = self._fitting(name, rule)
            if cut > begin:
                begin, reason = cut, "size"
        return Found(begin, reason, max(held, begin))

    # -- by age

    def _young(self, rule: GroupRule, oldest_ms: int) -> tuple[int, int]:
        """Return (where the group begins, 0 if nothing is too old; where its first young message lies or will lie)."""
        held, hides = self._confirmed(), False
        for queue in rule.queues:
            low, high = self._index.min_offset(queue), self._index.confirmed_end(queue)
            offset = self._first_since(queue, low, high, oldest_ms)
            hides |= offset > low
            if offset < high:
                held = min(held, int(self._index.read(queue, offset, 1).positions[0]))
        return held if hides else 0, held

    def _first_since(self, queue: int, low: int, high: int, oldest_ms: int) -> int:
        """Return the first offset in [low, high] stored at or after `oldest_ms`: by leaps, then by halves."""
        leap = 1
        while low < high and self._stored_ms(queue, low, high) < oldest_ms:
            low += 1
            if low + leap >= high or self._stored_ms(queue, low + leap, high) >= oldest_ms:
                break
            low, leap = low + leap, 2 * leap
        high = min(high, low + leap)
        while low < high:
            middle = (low + high) // 2
            if self._stored_ms(queue, middle, high) < oldest_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def _stored_ms(self, queue: int, offset: int, high: int) -> int:
        """When the message at `offset` was stored; of a hole, what follows it was."""
        while offset < high:
            entry = self._index.read(queue, offset, 1)
            if not len(entry):
                break
            if entry.sizes[0]:
                head = self._log.view(int(entry.positions[0]), HEADER.size)
                return NEVER if head is None else int(HEADER.unpack_from(head, 0)[6])
            offset = entry.end
        return NEVER

    # -- by size

    def _fitting(self, name: bytes, rule: GroupRule) -> int:
        """Return the position from which on the group is not larger than its rule, 0 when it is not."""
        counted = self._counted.get(name)
        if counted is None or set(counted.spans) != set(rule.queues) or not self._follow(counted):
            counted = self._counted[name] = Counted({
                queue: [self._index.min_offset(queue)] * 2 for queue in rule.queues
            })  # fmt: skip
        for queue, span in counted.spans.items():
            wanted = min(ENTRIES_PER_STEP, self._index.confirmed_end(queue) - span[1])
            if wanted > 0:
                entries = self._index.read(queue, span[1], wanted)
                counted.total_bytes += entries.sizes.sum()
                span[1] = entries.end
        excess = counted.total_bytes - rule.size_bytes
        return self._cut(counted, excess) if excess > 0 else 0

    def _follow(self, counted: Counted) -> bool:
        """Subtract what has expired by itself; False when the index no longer has its sizes."""
        for queue, span in counted.spans.items():
            low = self._index.min_offset(queue)
            if low > span[0]:
                gone = self._index.read(queue, span[0], min(low, span[1]) - span[0])
                if low > span[1] or not len(gone) or gone.offsets[0] != span[0] or gone.end != low:
                    return False
                counted.total_bytes -= gone.sizes.sum()
                span[0] = low
        return True

    def _cut(self, counted: Counted, excess: int) -> int:
        """Subtract the oldest entries until `excess` bytes are off; return the position behind them."""
        parts: dict[int, Entries] = {}
        known = NEVER
        for queue, (low, high) in counted.spans.items():
            if high > low:
                entries = parts[queue] = self._index.read(queue, low, min(high - low, ENTRIES_PER_STEP))
                if entries.end < high:
                    known = min(known, entries.positions[-1])
        positions = joined([part.positions for part in parts.values()])
        sizes = joined([part.sizes for part in parts.values()])
        order = argsort(positions)
        last = cumsum(sizes[order]).searchsorted(excess)
        begin = positions[order[last]] + 1 if last < len(order) else known
        begin = min(begin, known, positions.max() + 1)
        for queue, part in parts.items():
            gone = part.positions.searchsorted(begin)
            counted.total_bytes -= part.sizes[:gone].sum()
            counted.spans[queue][0] = part.offsets[gone] if gone < len(part) else part.end
        return begin


def interval_ms(rule: GroupRule) -> int:
    """Return how long to wait between two checks of a group."""
    if rule.size_bytes or not rule.age_ms:
        return INTERVAL_MS_MIN
    return min(max(rule.age_ms // AGE_SHARE, INTERVAL_MS_MIN), INTERVAL_MS_MAX)


def republished(record: RecordView, now_ms: int) -> bytes | None:
    """The image of the message to append now; None when it has expired."""
    flags = record.flags & ~FLAG_GROUP_OPEN
    at_ms, producer_seq = expires_ms(record), header_of(record).producer_seq
    if at_ms is None:
        return change_image(record, flags=flags, producer_seq=producer_seq)
    left_ms = at_ms - now_ms
    if left_ms <= 0:
        return None
    left = b"%d" % -(-left_ms // 1_000)
    pairs = [(key, left if key == EXPIRY else value) for key, value in record.properties()]
    return change_image(record, flags=flags, producer_seq=producer_seq, properties=pairs)


Append = Callable[[Placed, Sequence[StateChange]], int]
AGE, SIZE, FULL_DISK = "age", "size", "disk_full"
STATE_SHARE = 2
"""The log is kept at this many times the size of its state at least; below that each file that goes is written anew."""
REWRITE_INTERVAL_MS = 60_000
"""How often a file goes although the state leaves no room for less."""
LISTS_MAX = 4
"""Lists of doomed entries taken in one step; they are short or empty when little of the state is old."""
_POSITION = struct.Struct("<q")
T = TypeVar("T")


class Doomed(Generic[T]):
    """What must be carried forward before a segment is deleted, found in lists and taken in bounded pieces."""

    def __init__(self, lists: Iterator[list[T]]) -> None:
        self._lists = lists
        self._found: list[T] = []
        self.done = False

    def some(self, count: int) -> list[T]:
        """Return up to `count` entries, the same again until they are `taken`; perhaps none although more may come."""
        for _ in range(LISTS_MAX):
            if len(self._found) >= count:
                break
            part = next(self._lists, None)
            if part is None:
                self.done = not self._found
                break
            self._found += part
        return self._found[:count]

    def taken(self, count: int) -> None:
        """Continue after the first `count` entries."""
        del self._found[:count]


class CarryForward:
    """Appends again the state that only segments about to be deleted contain; `append` works even on a full disk."""

    def __init__(
        self, log: CommitLog, index: QueueIndex, tables: StateTables, append: Append, events: Any, *, entries_max: int
    ) -> None:
        self._log = log
        self._index = index
        self._tables = tables
        self._append = append
        self._events = events
        self._entries_max = entries_max
        self._doomed: Doomed[Said] = Doomed(iter(()))
        self._doomed_queues: Doomed[int] = Doomed(iter(()))
        self._keepers: list[Callable[[int, Append], bool]] = []
        self._stretches: deque[tuple[int, int]] = deque()
        """(end position, bytes) of what was carried, the oldest first."""
        self._kept_bytes = 0
        self.end = 0
        """The log must be durable up to here before the segments are deleted."""
        self.total = 0
        self.retained_expired_total = 0

    def kept_bytes(self) -> int:
        """Return how much of the log was carried forward, since the start: about the size of all state when all of the
        log was once written anew."""
        while self._stretches and self._stretches[0][0] <= self._log.begin:
            self._kept_bytes -= self._stretches.popleft()[1]
        return self._kept_bytes

    def _write(self, placed: Placed, changes: Sequence[StateChange]) -> int:
        """Append and count what must be kept."""
        before = self._log.end
        end = self._append(placed, changes)
        self._stretches.append((end, end - before))
        self._kept_bytes += end - before
        return end

    def keep(self, keeper: Callable[[int, Append], bool]) -> None:
        """Have `keeper(position, append)` append again some of what must outlive its segment, before segments below the
        position are removed; it is called until it returns True."""
        self._keepers.append(keeper)

    def begin(self, target: int) -> None:
        """Start over with what lies below `target`."""
        self._doomed = Doomed(self._tables.older_than(target))
        self._doomed_queues = Doomed(self._tables.queues.older_than(target))

    def step(self, target: int, now_ms: int, *, announce: bool) -> bool:
        """Do a bounded piece; True if nothing was left to do. `announce`: end with LOG_BEGIN for the replicas."""
        if not self._doomed.done:
            self._carry_entries(now_ms)
        elif not self._kept(target):
            pass
        elif not self._doomed_queues.done:
            self._carry_queues(target)
            if self._doomed_queues.done:
                if announce:
                    self._repeat([], [StateChange(state_kinds.LOG_BEGIN, b"", _POSITION.pack(target))])
                # What made carrying needless may lie in records that are not on the disk yet.
                self.end = self._log.end
        else:
            return True
        return False

    def _carry_entries(self, now_ms: int) -> None:
        images: list[bytes] = []
        changes: list[StateChange] = []
        found = self._doomed.some(self._entries_max)
        for kind, key, value, position in found:
            entry = self._tables.get(kind, key)
            if entry is None or entry[1] != position:
                continue  # replaced or deleted since
            if kind == state_kinds.RETAINED:
                self._carry_retained(images, changes, key, position, now_ms)
            else:
                changes.append(StateChange(kind, key, value))
        if self._repeat(images, changes):
            self._doomed.taken(len(found))

    def _carry_retained(
        self, images: list[bytes], changes: list[StateChange], topic: bytes, position: int, now_ms: int
    ) -> None:
        """Append a retained message again, or delete it where it is damaged, which is logged, or has expired."""
        segment = self._log.segment_at(position)
        assert segment is not None, position
        try:
            check_record(segment.view, position - segment.base, position)
        except CorruptRecord as error:
            self._events.error("retained_message_damaged", topic=topic, position=position, reason=error.reason)
            changes.append(StateChange(state_kinds.RETAINED, topic, None))
            return
        image = republished(RecordView(segment.view, position - segment.base), now_ms)
        if image is None:
            self.retained_expired_total += 1
            changes.append(StateChange(state_kinds.RETAINED, topic, None))
        else:
            images.append(image)

    def _carry_queues(self, target: int) -> None:
        queues, changes = self._tables.queues, []
        found = self._doomed_queues.some(self._entries_max)
        for queue in found:
            name = queues.name(queue)
            if name is not None and queues.position(queue) < target:
                value = carried_value(name, queues.value(queue), self._index.next_offset)
                changes.append(StateChange(state_kinds.QUEUE, name, value))
        if self._repeat([], changes):
            self._doomed_queues.taken(len(found))

    def _kept(self, target: int) -> bool:
        try:
            return all(keep(target, self._write) for keep in self._keepers)
        except StoreFull:
            return False  # the disk guard has logged it

    def _repeat(self, images: list[bytes], changes: list[StateChange]) -> bool:
        """Append them once more; False when there is no room, which the disk guard has logged."""
        if images or changes:
            try:
                self.end = self._write(Placed(b"".join(images), [()] * len(images)), changes)
            except StoreFull:
                return False
            self.total += len(images) + len(changes)
        return True


class Retention:
    """Expires segments step by step; `append` takes what must be carried forward even on a full disk."""

    def __init__(
        self,
        settings: StoreSettings,
        log: CommitLog,
        index: QueueIndex,
        tables: StateTables,
        index_flusher: IndexFlusher,
        append: Append,
        events: Any,
        *,
        confirmed: Callable[[], int],
        full: Callable[[], bool],
    ) -> None:
        self._settings, self._events = settings, events
        self._log, self._index, self._tables = log, index, tables
        self._index_flusher = index_flusher
        self._target: int | None = None
        self._full = full
        self._confirmed = confirmed
        self.role = Role()
        self._reasons: dict[int, str] = {}
        self.carried = CarryForward(log, index, tables, append, events, entries_max=settings.carry_entries_max)
        self.groups = QueueGroups(tables, index.forget_minimums)
        self.expiry = GroupExpiry(
            self.groups, index, log, lambda changes: append(Placed(), changes), confirmed, age_ms=settings.retention_ms
        )
        index.begin_of = self.groups.begin_of
        self.expired_bytes = {AGE: 0, SIZE: 0, FULL_DISK: 0}
        """Bytes of segments that went, by reason."""
        self.cut_short_bytes_total = 0
        self._dropped_ms = 0
        """When a file went last."""
        self._was_over = False

    def use(self, settings: StoreSettings) -> None:
        """Keep to other limits from the next step on."""
        self._settings = settings
        self.expiry.age_ms = settings.retention_ms
        self._log.grow_to(settings.largest_file_bytes)

    def over_limit(self) -> str:
        """What is wrong with the limit of the log's size, as a sentence; empty when nothing is."""
        limit, state_bytes = self._settings.retention_size_bytes, self.carried.kept_bytes()
        if not limit or STATE_SHARE * state_bytes <= limit:
            return ""
        return (
            f"state that is still valid (queues, sessions, retained messages) takes {state_bytes} bytes of the log, "
            f"more than half of retention_size_bytes {limit}: it is kept, and the log is larger than the limit. "
            f"Raise it to {2 * STATE_SHARE * state_bytes}"
        )

    def _size_max(self, now_ms: int) -> int:
        """The limit of the log's size now: enough for its state twice, so that it is not written again and again; now
        and then one file goes all the same, because the state may have become less."""
        limit, over = self._settings.retention_size_bytes, self.over_limit()
        if bool(over) != self._was_over:
            self._was_over = bool(over)
            if over:
                self._events.warning("retention_size_too_small", reason=over)
            else:
                self._events.info("retention_size_suffices", limit_bytes=limit)
        if not over or abs(now_ms - self._dropped_ms) >= REWRITE_INTERVAL_MS:
            return limit
        room = FILES_MIN * self._settings.largest_file_bytes
        return max(limit, STATE_SHARE * self.carried.kept_bytes() + room)

    def metrics(self) -> dict[str, int]:
        """Return what went, by reason."""
        return {
            "segments_expired_bytes_total": sum(self.expired_bytes.values()),
            **{f"segments_expired_{reason}_bytes_total": count for reason, count in self.expired_bytes.items()},
            **{f"topics_expired_{reason}_messages_total": count for reason, count in self.expiry.hidden_total.items()},
            "retention_cut_short_bytes_total": self.cut_short_bytes_total,
            "state_carried_total": self.carried.total,
            "retention_state_bytes": self.carried.kept_bytes(),
            "retained_expired_total": self.carried.retained_expired_total,
        }

    @property
    def working(self) -> bool:
        """Whether a segment is about to go; the next step need not wait."""
        return self._target is not None

    def step(self, now_ms: int, flushed: int) -> None:
        """Do a bounded piece of the work there is."""
        self._index_flusher.drop_runs(self._index.expired_runs())
        certain = min(flushed, self._confirmed())
        if self.role.replica:
            self._follow(now_ms, certain)
            return
        self.expiry.step(now_ms)
        if self._target is None and not self._choose(now_ms, certain):
            return
        assert self._target is not None
        if not self.carried.step(self._target, now_ms, announce=self.role.grouped):
            return
        if self._index.manifest.end_position < self._target:
            if not self._index_flusher.busy:
                self._index_flusher.flush()
        elif certain >= self.carried.end:
            self._drop(self._target)

    def _follow(self, now_ms: int, certain: int) -> None:
        """Remove what the master has announced, as far as the settings here allow."""
        if self._target is None:
            announced = self._tables.get(state_kinds.LOG_BEGIN, b"")
            if announced is None or announced[1] >= certain:
                return
            if not self._choose(now_ms, min(certain, *_POSITION.unpack(announced[0]))):
                return
        assert self._target is not None
        if self._index.manifest.end_position >= self._target:
            self._drop(self._target)
        elif not self._index_flusher.busy:
            self._index_flusher.flush()

    def _choose(self, now_ms: int, flushed: int) -> bool:
        segments = self._log.segments
        sealed = [
            (segment.end, self._first_store_ms(segment.end)) for segment in segments[:-1] if segment.end <= flushed
        ]
        oldest_ms = now_ms - self._settings.retention_ms if self._settings.retention_ms else None
        chosen = choose_segments(
            self._log.begin,
            sealed,
            self._log.begin + self._log.files_bytes,
            RetentionLimits(
                oldest_ms,
                self._size_max(now_ms),
                self.expiry.held(),
                make_room=self._settings.expire_when_full and self._full(),
            ),
        )
        if not chosen:
            return False
        if self._was_over:
            del chosen[1:]  # its state is written again, so it is looked at again what that leaves
        target = chosen[-1][0]
        self._reasons = dict(chosen)
        self._target = target
        self._dropped_ms = now_ms
        self.carried.begin(target)
        return True

    def _first_store_ms(self, position: int) -> int | None:
        """When the record at the start of a segment was stored: no record before it is younger.

        A damaged header is passed over; the next segment's time is younger still.
        """
        while position < self._log.end and (segment := self._log.segment_at(position)) is not None:
            fields = HEADER.unpack_from(segment.view, position - segment.base)
            if fields[1] & MAGIC_MASK == MAGIC and fields[4] == position:
                return int(fields[6])
            position = segment.end
        return None

    def _drop(self, target: int) -> None:
        held = self.expiry.held()
        for segment in self._log.segments:
            if segment.end <= target:
                self.expired_bytes[self._reasons[segment.end]] += segment.size
                self.cut_short_bytes_total += segment.size if segment.end > held else 0
        dropped = self._log.drop_before(target)
        self._index.move_begin(self._log.begin)
        self._target = None
        self._events.info("segments_expired", begin_position=self._log.begin, dropped_bytes=dropped)
        if target > held:
            self._events.warning(
                "retention_cut_short",
                begin_position=self._log.begin,
                reason="the log's size limit or a full disk came before the end of a topic's own retention",
            )
        self._index_flusher.drop_runs(self._index.expired_runs())


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """What segments are measured by; `held`: from there on a group of queues keeps more than the log's age."""

    oldest_ms: int | None
    size_max: int
    held: int
    make_room: bool = False

    def too_old(self, newest_ms: int | None) -> bool:
        """Whether a segment goes whose newest record is not younger than this."""
        return self.oldest_ms is not None and newest_ms is not None and newest_ms < self.oldest_ms


def choose_segments(
    begin: int, sealed: Sequence[tuple[int, int | None]], end: int, limits: RetentionLimits
) -> list[tuple[int, str]]:
    """Return (end position, reason) of the segments that go, oldest first. Pure.

    `sealed` are (end position, store time of the first record behind it) of the segments that may go, oldest first. To
    make room one goes at a time.
    """
    chosen: list[tuple[int, str]] = []
    for segment_end, newest_ms in sealed:
        if 0 < limits.size_max < end - begin:
            reason = SIZE
        elif limits.too_old(newest_ms) and segment_end <= limits.held:
            reason = AGE
        elif limits.make_room and not chosen:
            reason = FULL_DISK
        else:
            break
        chosen.append((segment_end, reason))
        begin = segment_end
    return chosen
