"""Lets the oldest segments go, by age and by size of the log.

Before a segment is deleted every state entry said in it is said again at the end of the log: changes as control
records, queues with their present next offset, retained messages as records without a queue. Invariant: a segment goes
only when what was carried forward is on the disk and the index runs cover it, so the log alone still tells all state.
Thread rule: loop thread; each step is bounded by `carry_entries_max`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from broker.store import state_kinds
from broker.store.commit_log import CommitLog
from broker.store.errors import StoreFull
from broker.store.queue_index.index import QueueIndex
from broker.store.queue_index.index_flusher import IndexFlusher
from broker.store.queue_registry import carried_value
from broker.store.settings import StoreSettings
from broker.store.state_log import StateChange
from broker.store.state_tables import StateTables
from broker.store.store_message import StoreMessage
from remoting.protocol.record import HEADER, RecordView

Append = Callable[[Sequence[StoreMessage], Sequence[StateChange]], int]
Doomed = tuple[int, bytes, bytes, int]


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
    ) -> None:
        self._settings = settings
        self._log = log
        self._index = index
        self._tables = tables
        self._index_flusher = index_flusher
        self._append = append
        self._events = events
        self._target: int | None = None
        self._doomed: list[Doomed] = []
        self._doomed_queues: list[int] = []
        self._carried_end = 0
        self.expired_bytes_total = 0
        self.carried_total = 0

    def step(self, now_ms: int, flushed: int) -> None:
        """Do a bounded piece of the work there is."""
        self._index_flusher.drop_runs(self._index.expired_runs())
        if self._target is None and not self._choose(now_ms, flushed):
            return
        assert self._target is not None
        if self._doomed:
            self._carry()
        elif self._doomed_queues:
            self._carry_queues(self._target)
        elif self._index.manifest.end_position < self._target:
            if not self._index_flusher.busy:
                self._index_flusher.flush()
        elif flushed >= self._carried_end:
            self._drop(self._target)

    def _choose(self, now_ms: int, flushed: int) -> bool:
        segments = self._log.segments
        sealed = [
            (segment.end, self._first_store_ms(segment.end)) for segment in segments[:-1] if segment.end <= flushed
        ]
        target = choose_begin(
            self._log.begin,
            sealed,
            self._log.end,
            oldest_ms=now_ms - self._settings.retention_ms if self._settings.retention_ms else None,
            size_max=self._settings.retention_size_bytes,
        )
        if target == self._log.begin:
            return False
        self._target = target
        self._doomed = self._tables.older_than(target)
        self._doomed_queues = self._tables.queues.older_than(target)
        self._doomed.reverse()  # taken from the end, oldest first
        self._doomed_queues.reverse()
        return True

    def _first_store_ms(self, position: int) -> int | None:
        """When the record at the start of a segment was stored: no record before it is younger."""
        head = self._log.view(position, HEADER.size)
        return None if head is None or position >= self._log.end else int(HEADER.unpack_from(head, 0)[6])

    def _carry(self) -> None:
        messages: list[StoreMessage] = []
        changes: list[StateChange] = []
        count = min(self._settings.carry_entries_max, len(self._doomed))
        for kind, key, value, position in reversed(self._doomed[-count:]):
            entry = self._tables.get(kind, key)
            if entry is None or entry[1] != position:
                continue  # said anew or deleted since
            if kind == state_kinds.RETAINED:
                self._carry_retained(messages, position)
            else:
                changes.append(StateChange(kind, key, value))
        if self._say_again(messages, changes):
            del self._doomed[-count:]

    def _carry_queues(self, target: int) -> None:
        queues, changes = self._tables.queues, []
        count = min(self._settings.carry_entries_max, len(self._doomed_queues))
        for queue in reversed(self._doomed_queues[-count:]):
            name = queues.name(queue)
            if name is not None and queues.position(queue) < target:
                value = carried_value(name, queues.value(queue), self._index.next_offset)
                changes.append(StateChange(state_kinds.QUEUE, name, value))
        if self._say_again([], changes):
            del self._doomed_queues[-count:]

    def _say_again(self, messages: list[StoreMessage], changes: list[StateChange]) -> bool:
        """Append what was said in a doomed segment; False when there is no room, which the disk guard has told."""
        if messages or changes:
            try:
                self._carried_end = self._append(messages, changes)
            except StoreFull:
                return False
            self.carried_total += len(messages) + len(changes)
        return True

    def _carry_retained(self, messages: list[StoreMessage], position: int) -> None:
        segment = self._log.segment_at(position)
        assert segment is not None, position
        record = RecordView(segment.view, position - segment.base)
        n_props, topic_len, keys_len, tags_len, props_len = record.counts
        messages.append(
            StoreMessage(
                (), record.born_ms, record.flags, record.tag_hash, n_props, topic_len, keys_len, tags_len, props_len,
                bytes(record.meta), bytes(record.body), record.producer_seq,
            )
        )  # fmt: skip

    def _drop(self, target: int) -> None:
        dropped = self._log.drop_before(target)
        self._index.move_begin(self._log.begin)
        self._target = None
        self.expired_bytes_total += dropped
        self._events.info("segments_expired", begin_position=self._log.begin, dropped_bytes=dropped)
        self._index_flusher.drop_runs(self._index.expired_runs())


def choose_begin(
    begin: int, sealed: Sequence[tuple[int, int | None]], end: int, *, oldest_ms: int | None, size_max: int
) -> int:
    """Return the position the log should begin at, one of the ends in `sealed` or `begin` itself. Pure.

    `sealed` are (end position, store time of the first record behind it) of the segments that may go, oldest first.
    """
    for segment_end, newest_ms in sealed:
        too_old = oldest_ms is not None and newest_ms is not None and newest_ms < oldest_ms
        too_large = size_max > 0 and end - begin > size_max
        if not (too_old or too_large):
            break
        begin = segment_end
    return begin
