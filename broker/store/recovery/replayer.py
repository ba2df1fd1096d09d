"""Rebuilds the index tail and the state tables from the log, and restores what damage took from them (`mend`).

Index entries are taken from `index_from` on, state from `state_from` on; changes of queues are applied between the
entries before and behind them. Where records are missing because of damage, their offsets become one *hole*: an entry
of size 0 at the position of the damage, so that the queue stays dense. Before anything else is appended, `mend` gives
the records that make up for it:

- State that a snapshot still has and whose record is damaged is appended again; a damaged retained message is deleted.
- A queue that has records but no creation gets a placeholder name, and its id is never given to another queue.
- Ids that may have been given out in the damaged bytes are skipped.
- A queue whose last offsets were in the damage continues at its end, as far as the former tail file has it; the offsets
  between are a hole, so that no offset a consumer has seen, or another broker has, is used for another message.

Invariants: replaying gives what the writer had, every dispatched offset is the queue's next one; once the changes of
`mend` are in the log, the log alone leads to the same names and offsets. Thread rule: before the first append, and on
the loop thread of a replica, whose log grows by bytes that its master wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from broker.store.errors import CorruptIndex
from broker.store.index.queue_index import FormerTail, QueueIndex
from broker.store.log.commit_log import CommitLog
from broker.store.state import state_kinds
from broker.store.state.name_table import VALUE
from broker.store.state.state_kinds import StateChange, decode_changes
from broker.store.state.state_tables import StateTables, queue_value
from remoting.native import core as native
from remoting.native.contracts import NEXT, EntryBlock
from remoting.native.vectors import nonzero
from remoting.protocol.records.record import CONTROL, RecordView

_BATCH_ENTRIES = 2048
Gap = tuple[int, int]
Passed = Callable[[int, int], None]
"""Takes how many bytes of the log long work has passed, and of how many."""


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
        """Called with the entries replayed, and with the log position up to which all are."""
        self.on_position: Callable[[int], None] = _unseen
        """Called with the log position up to which all is replayed."""
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
            self.on_position(position)
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
        """Make a row for a queue seen for the first time; let a queue continue after damage, or start late.

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
                self._index.set_floor(queue, offset)  # by retention, not by damage: there is nothing before it
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
        """Return where offsets of `queue` up to `offset` were lost, -1 when nothing shows that they were.

        Damage was passed, or the log has that the queue continued at `offset` (`mend`): bytes may be sound again.
        """
        if self._damage is not None:
            return self._damage[0]
        queues = self._tables.queues
        said = queues.exists(queue) and VALUE.unpack(queues.value(queue)) == (queue, offset)
        return queues.position(queue) if said else -1

    def add_hole(self, queue: int, until: int, position: int) -> None:
        """Let `queue` continue at offset `until`: the messages between were lost to the damage at `position`."""
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
    """The callback for entries while there is none."""


def _unseen(_position: int) -> None:
    """The callback for positions while there is none."""


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


PLACEHOLDER = b"%%DAMAGED%%%d"
"""Name of a queue whose own name was lost."""
CREATION_BYTES_MIN = 25
"""The least a queue's creation takes in a control record."""
SKIPPED_IDS_MAX = 100_000
"""Most queue ids skipped for one start's damage."""


class NamesSeen:
    """Notes which queue ids the replay named; an id that is not among them and was not known before lost its name."""

    def __init__(self, tables: StateTables) -> None:
        self.known_before = tables.queues.next_id
        self.ids: set[int] = set()
        tables.subscribe(state_kinds.QUEUE, self._changed)

    def _changed(self, name: bytes, value: bytes | None, _position: int) -> None:
        if name and value is not None:
            self.ids.add(int.from_bytes(value[:4], "little"))


def mend(
    index: QueueIndex,
    tables: StateTables,
    replayer: Replayer,
    seen: NamesSeen | None,
    gaps: Sequence[Gap],
    begin: int,
    former: FormerTail,
) -> list[StateChange]:
    """Fill in holes at the ends of queues and return the changes the log, which begins at `begin`, needs for `gaps`.

    `seen` is None when the replay passed none of it.
    """
    # State from below the begin of the log had been carried forward before that expired, but into the damage.
    changes = [change for gap in [(0, begin), *gaps] for change in _written_in(tables, index, gap)]
    nameless = [] if seen is None else _nameless(index, tables, seen, gaps[0][0])
    changes += [_queue(PLACEHOLDER % queue, queue, index.next_offset(queue)) for queue in nameless]
    for queue, end in former.taken_beyond(index.tail.row_column(NEXT)[: index.queue_count]):
        name, newest = tables.queues.name(queue), _newest_position(index, queue)
        if name is not None and newest < gaps[-1][1]:  # a run may know records that lie in the damage
            replayer.add_hole(queue, end, max(newest, gaps[-1][0]))
            changes.append(_queue(name, queue, end))
    lost_bytes = sum(end - start for start, end in gaps)
    skipped = min(lost_bytes // CREATION_BYTES_MIN, SKIPPED_IDS_MAX)
    highest = max([tables.queues.next_id, *(queue + 1 for queue in nameless)])
    changes.append(_queue(b"", highest + skipped, 0))
    return changes


def _written_in(tables: StateTables, index: QueueIndex, gap: Gap) -> Iterator[StateChange]:
    """Yield the state whose records stand in a stretch that cannot be read any more."""
    for ids in tables.queues.older_than(gap[1]):
        for queue in ids:
            name = tables.queues.name(queue)
            if name is not None and tables.queues.position(queue) >= gap[0]:
                yield _queue(name, queue, index.next_offset(queue))
    for entries in tables.older_than(gap[1]):
        for kind, key, value, said in entries:
            if said >= gap[0] and kind != state_kinds.QUEUE:
                yield StateChange(kind, key, None if kind == state_kinds.RETAINED else value)


def _newest_position(index: QueueIndex, queue: int) -> int:
    """Return where the queue's newest record stands, -1 when it holds none."""
    following = index.next_offset(queue)
    if index.min_offset(queue) >= following:
        return -1
    return index.read(queue, following - 1, 1).positions[-1]


def _queue(name: bytes, queue: int, next_offset: int) -> StateChange:
    return StateChange(state_kinds.QUEUE, name, queue_value(queue, next_offset))


def _nameless(index: QueueIndex, tables: StateTables, seen: NamesSeen, first_damage: int) -> list[int]:
    """Return ids that nothing has named and that have records behind the damage, so that it took their name.

    The name of a queue with older records too was carried forward to there before its first record expired.
    """
    following = index.tail.row_column(NEXT)[: index.queue_count]
    found = []
    for queue in nonzero(following[seen.known_before :] > 0):
        queue += seen.known_before
        if queue in seen.ids or tables.queues.exists(queue):
            continue
        if _newest_position(index, queue) >= first_damage:
            found.append(queue)
    return found


def floors_or_holes(index: QueueIndex, tables: StateTables, replayer: Replayer, damage: int) -> None:
    """Continue queues at the offset in the state: behind a hole when they hold records, else from there on."""
    said = tables.queues.next_offsets()
    index.grow(len(said))
    for queue in nonzero(index.tail.row_column(NEXT)[: len(said)] < said):
        if index.min_offset(queue) < index.next_offset(queue):
            replayer.add_hole(queue, said[queue], max(_newest_position(index, queue), damage))
    index.set_floors(said)
