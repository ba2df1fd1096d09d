"""Rebuilds the index tail and the state tables from the log.

Invariant: replaying gives what the writer had: every dispatched offset is the queue's next one. Index entries are taken
from `index_from` on, state from `state_from` on. Thread rule: before the first append.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from broker.store import state_kinds
from broker.store.commit_log import CommitLog
from broker.store.errors import CorruptIndex
from broker.store.queue_index.index import QueueIndex
from broker.store.scanner import replay
from broker.store.state_log import StateChange, decode_changes
from broker.store.state_tables import StateTables
from remoting.protocol.record import (
    CONTROL,
    DISPATCH_SIZE,
    FLAG_MQTT,
    FLAG_RETAIN,
    FLAG_STAGED,
    HEADER_SIZE,
    RecordView,
)

_BATCH_ENTRIES = 2048
_RETAINED = FLAG_MQTT | FLAG_RETAIN


def is_retained(flags: int) -> bool:
    """Whether a message with these record flags sets or clears the retained message of its topic."""
    return flags & (_RETAINED | FLAG_STAGED) == _RETAINED


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
        self._columns: tuple[list[int], ...] = ([], [], [], [], [])
        self._next: dict[int, int] = {}

    def run(self, log: CommitLog, index_from: int, state_from: int, end: int) -> int:
        """Replay up to `end`; return how many records were seen. Raises CorruptIndex when log and index disagree."""
        records = 0
        for view, at, position, head in replay(log, min(index_from, state_from), end):
            records += 1
            if position >= index_from and head[11]:
                self._dispatch(view, at, position, head)
            if position >= state_from:
                if head[1] == CONTROL:
                    body = view[at + head[8] : at + head[8] + head[7]]
                    for change in decode_changes(body):
                        self._tables.apply(change, position)
                elif is_retained(head[9]):
                    self._retain(view, at, position, head[7])
        self._flush(end)
        return records

    def _retain(self, view: memoryview, at: int, position: int, body_len: int) -> None:
        topic = RecordView(view, at).mqtt_topic
        if topic is not None:
            self._tables.apply(StateChange(state_kinds.RETAINED, topic, b"" if body_len else None), position)

    def _dispatch(self, view: memoryview, at: int, position: int, head: tuple[int, ...]) -> None:
        queues, offsets, positions, sizes, tags = self._columns
        n = head[11]
        numbers = _dispatch_struct(n).unpack_from(view, at + HEADER_SIZE)
        if len(queues) + n > self._batch_entries:
            self._flush(position)
        for queue, offset in zip(numbers[::2], numbers[1::2], strict=True):
            expected = self._next.get(queue)
            if expected is None:
                self._index.grow(queue + 1)
                expected = self._index.next_offset(queue)
            if offset != expected:
                self._check_gap(queue, offset, expected, position)
            self._next[queue] = offset + 1
            queues.append(queue)
            offsets.append(offset)
        positions += [position] * n
        sizes += [head[0]] * n
        tags += [head[17]] * n

    def _check_gap(self, queue: int, offset: int, expected: int, position: int) -> None:
        if not self._rebuilding or expected or offset < expected:
            raise CorruptIndex(
                self._index.directory,
                f"the record at {position} has offset {offset} of queue {queue}, the index expects {expected}",
            )
        self._index.set_floor(queue, offset)

    def _flush(self, end: int) -> None:
        queues = self._columns[0]
        if queues:
            self._make_room(len(queues))
            self._index.append(self._columns, end)
            for column in self._columns:
                column.clear()
            self._next.clear()
        self._index.end_position = max(self._index.end_position, end)


def _dispatch_struct(n: int) -> struct.Struct:
    return _STRUCTS[n] if n < len(_STRUCTS) else struct.Struct("<" + "I4xQ" * n)


_STRUCTS = tuple(struct.Struct("<" + "I4xQ" * n) for n in range(17))
assert _STRUCTS[1].size == DISPATCH_SIZE
