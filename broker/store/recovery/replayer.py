"""Rebuilds the index tail and the state tables from the log.

Invariant: replaying gives what the writer had: every dispatched offset is the queue's next one. Where records are
missing because a stretch of the log is damaged, their offsets become one *hole*: an entry of size 0 at the position of
the damage, so that the queue stays dense. Index entries are taken from `index_from` on, state from `state_from` on;
what is said about queues is applied between the entries before and behind it. Thread rule: before the first append, and
on the loop thread of a replica, whose log grows by bytes that another one has written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from broker.store.errors import CorruptIndex
from broker.store.index.queue_index import QueueIndex
from broker.store.log.commit_log import CommitLog
from broker.store.state import state_kinds
from broker.store.state.name_table import VALUE
from broker.store.state.state_log import StateChange, decode_changes
from broker.store.state.state_tables import StateTables
from remoting.native import core as native
from remoting.native.contracts import EntryBlock
from remoting.protocol.records.record import CONTROL, RecordView

_BATCH_ENTRIES = 2048
Gap = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Stretch:
    """What is to be replayed: positions, and the damaged stretches to be left out."""

    index_from: int
    state_from: int
    end: int
    gaps: Sequence[Gap] = ()

    def sound(self) -> Iterator[tuple[Gap | None, int, int]]:
        """Yield (damage before it, from, to) of what can be read, in order."""
        position, before = min(self.index_from, self.state_from), None
        for gap in self.gaps:
            yield before, position, gap[0]
            before, position = gap, gap[1]
        yield before, position, self.end


class Replayer:
    """Feeds records to index and tables; `rebuilding`: the index starts from nothing, a queue may start late."""

    def __init__(
        self, index: QueueIndex, tables: StateTables, make_room: Callable[[int], None], *, rebuilding: bool
    ) -> None:
        self._index = index
        self._tables = tables
        self._make_room = make_room
        self._rebuilding = rebuilding
        self._batch_entries = min(_BATCH_ENTRIES, index.tail.capacity // 2)
        self._damage: Gap | None = None
        self.on_entries: Callable[[EntryBlock, int], None] = _ignore
        """Hears of entries that were taken in, and of the log position up to which all are."""
        self.holes = 0
        """Holes made so far."""

    def run(self, log: CommitLog, stretch: Stretch) -> int:
        """Replay; return how many records were seen. Raises CorruptIndex when log and index disagree."""
        records = 0
        for damage, position, end in stretch.sound():
            self._damage = damage
            records += self._run(log, stretch, position, end)
        self._index.end_position = max(self._index.end_position, stretch.end)
        return records

    def _run(self, log: CommitLog, stretch: Stretch, position: int, end: int) -> int:
        records = 0
        while position < end and (segment := log.segment_at(position)) is not None:
            stop = min(end, segment.end)
            records += self.feed(segment.view, segment.base, position, stop, stretch, starts_late=log.begin > 0)
            position = stop
        return records

    def feed(
        self, view: memoryview, base: int, position: int, stop: int, stretch: Stretch, *, starts_late: bool
    ) -> int:
        """Take in the sound records in [position, stop) of `view`, which begins at log position `base`; count them."""
        records = 0
        while position < stop:
            before = position
            position, seen, entries, marks = native.core.collect(
                view, base, position, stop, stretch.index_from, stretch.state_from, self._batch_entries
            )
            assert position > before, (position, stop)
            records += seen
            for mark in marks:
                entries = self._apply(view, mark - base, mark, entries, starts_late=starts_late)
            self._take(entries, position, starts_late=starts_late)
        return records

    def _apply(self, view: memoryview, at: int, position: int, entries: EntryBlock, *, starts_late: bool) -> EntryBlock:
        """Apply the state that the record at `position` changes; return which of the entries are still to be taken."""
        record = RecordView(view, at)
        if record.type == CONTROL & 0xFF:
            changes = list(decode_changes(record.body))
            if len(entries) and any(change.kind == state_kinds.QUEUE for change in changes):
                count = count_below(entries, position)
                self._take(entries.slice(0, count), position, starts_late=starts_late)
                entries = entries.slice(count, len(entries))
            for change in changes:
                self._tables.apply(change, position)
            return entries
        topic = record.mqtt_topic
        if topic is not None:
            value = b"" if len(record.body) else None
            self._tables.apply(StateChange(state_kinds.RETAINED, topic, value), position)
        return entries

    def _take(self, entries: EntryBlock, end: int, *, starts_late: bool) -> None:
        """Take index entries in, each of which must be its queue's next."""
        if not len(entries):
            return
        at, total = 0, len(entries)
        while (at := self._index.tail.ring.claim(entries, at, self._index.queue_count)) < total:
            self._mend(entries, at, starts_late=starts_late)
        self._make_room(total)
        self._index.append(entries, end)
        self.on_entries(entries, end)

    def _mend(self, entries: EntryBlock, at: int, *, starts_late: bool) -> None:
        """Make a row for a queue seen for the first time; let a queue go on behind damage, or start late.

        A rebuilt index starts late where the log has lost its beginning to retention.
        """
        columns = entries.slice(at, at + 1).columns()
        queue, offset, position = columns[0][0], columns[1][0], columns[2][0]
        self._index.grow(queue + 1)
        expected = self._index.next_offset(queue)
        if offset == expected:
            return
        late = self._rebuilding and not expected
        if offset > expected and not (late and starts_late) and (damage := self._missing(queue, offset)) >= 0:
            if self._damage is None and self._index.min_offset(queue) == expected:
                self._index.set_floor(queue, offset)  # retention said so, not damage: there is nothing before it
            else:
                self.add_hole(queue, offset, damage)
        elif late and offset > expected:
            self._index.set_floor(queue, offset)
        else:
            raise CorruptIndex(
                self._index.directory,
                f"the record at {position} has offset {offset} of queue {queue}, the index expects {expected}",
            )

    def _missing(self, queue: int, offset: int) -> int:
        """Return where offsets of `queue` up to `offset` were lost, -1 when nothing says that they were.

        Damage was passed, or the log says that the queue went on at `offset` (`mending`): bytes may be sound again.
        """
        if self._damage is not None:
            return self._damage[0]
        queues = self._tables.queues
        said = queues.exists(queue) and VALUE.unpack(queues.value(queue)) == (queue, offset)
        return queues.position(queue) if said else -1

    def add_hole(self, queue: int, until: int, position: int) -> None:
        """Let `queue` go on at offset `until`: what lies between was lost to the damage at `position`."""
        index, first = self._index, self._index.next_offset(queue)
        assert first < until, (queue, first, until)
        hole = native.core.make_block([queue], [first], [position], [0], [0], [until - first])
        claimed = index.tail.ring.claim(hole, 0, index.queue_count)
        assert claimed == 1, (queue, first, until)
        self._make_room(1)
        index.append(hole, index.end_position)
        self.on_entries(hole, index.end_position)
        self.holes += 1


def _ignore(_entries: EntryBlock, _end: int) -> None:
    """Nobody wants to hear of entries."""


def count_below(entries: EntryBlock, position: int) -> int:
    """Return how many of the entries stand below a log position."""
    low, high = 0, len(entries)
    while low < high:
        middle = (low + high) // 2
        if entries.position(middle) < position:
            low = middle + 1
        else:
            high = middle
    return low
