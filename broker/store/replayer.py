"""Rebuilds the index tail and the state tables from the log.

Invariant: replaying gives what the writer had: every dispatched offset is the queue's next one. Index entries are taken
from `index_from` on, state from `state_from` on. Thread rule: before the first append.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.store import hot, state_kinds
from broker.store.commit_log import CommitLog
from broker.store.errors import CorruptIndex
from broker.store.hot.contracts import EntryBlock
from broker.store.queue_index.index import QueueIndex
from broker.store.state_log import StateChange, decode_changes
from broker.store.state_tables import StateTables
from remoting.protocol.record import CONTROL, RecordView

_BATCH_ENTRIES = 2048


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

    def run(self, log: CommitLog, index_from: int, state_from: int, end: int) -> int:
        """Replay up to `end`; return how many records were seen. Raises CorruptIndex when log and index disagree."""
        position, records = min(index_from, state_from), 0
        while position < end and (segment := log.segment_at(position)) is not None:
            stop = min(end, segment.end)
            while position < stop:
                before = position
                position, seen, entries, marks = hot.core.collect(
                    segment.view, segment.base, position, stop, index_from, state_from, self._batch_entries
                )
                assert position > before, (position, stop)
                records += seen
                self._take(entries, position)
                for mark in marks:
                    self._apply(segment.view, mark - segment.base, mark)
        self._index.end_position = max(self._index.end_position, end)
        return records

    def _apply(self, view: memoryview, at: int, position: int) -> None:
        """Apply the state that the record at `position` changes."""
        record = RecordView(view, at)
        if record.type == CONTROL & 0xFF:
            for change in decode_changes(record.body):
                self._tables.apply(change, position)
            return
        topic = record.mqtt_topic
        if topic is not None:
            value = b"" if len(record.body) else None
            self._tables.apply(StateChange(state_kinds.RETAINED, topic, value), position)

    def _take(self, entries: EntryBlock, end: int) -> None:
        """Take index entries in, each of which must be its queue's next."""
        if not len(entries):
            return
        at, total = 0, len(entries)
        while (at := self._index.tail.ring.claim(entries, at, self._index.queue_count)) < total:
            self._mend(entries, at)
        self._make_room(total)
        self._index.append(entries, end)

    def _mend(self, entries: EntryBlock, at: int) -> None:
        """Make a row for a queue seen for the first time; where a rebuilt index starts late, let the queue start so."""
        columns = entries.slice(at, at + 1).columns()
        queue, offset, position = columns[0][0], columns[1][0], columns[2][0]
        self._index.grow(queue + 1)
        expected = self._index.next_offset(queue)
        if offset == expected:
            return
        if not self._rebuilding or expected or offset < expected:
            raise CorruptIndex(
                self._index.directory,
                f"the record at {position} has offset {offset} of queue {queue}, the index expects {expected}",
            )
        self._index.set_floor(queue, offset)
