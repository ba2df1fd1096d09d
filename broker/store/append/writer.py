"""The write path of the store: encode, write, index, apply state, ask for the flush.

Invariant: either every byte of an append is in the log and its offsets, index entries and state are taken in, or
nothing of it is. After the first failed write or flush nothing is appended any more; a full disk is no failure, it only
refuses (`failure`). Thread rule: loop thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from broker.store.append.appender import RecordEncoder
from broker.store.errors import StoreError, StoreFailed
from broker.store.index.index_flusher import IndexFlusher
from broker.store.keys.key_store import KeyStore
from broker.store.log.confirm import Confirm
from broker.store.log.failure import DiskGuard, Failure
from broker.store.placed import Placed, Queues, parts_of, spread
from broker.store.recovery.opening import Opened
from broker.store.settings import StoreSettings
from broker.store.state import state_kinds
from broker.store.state.state_kinds import StateChange, encode_changes, split_batches
from remoting.native.contracts import KEPT_BYTES_MAX, Encoded
from remoting.protocol.errors import TooManyQueues
from remoting.protocol.records.record import RecordView
from runtime.clock import Clock


@dataclass(slots=True, kw_only=True)
class WritePath:
    """What a writer works on, whether it makes the records or takes over those of another log."""

    opened: Opened
    settings: StoreSettings
    confirm: Confirm
    guard: DiskGuard
    failure: Failure
    index_flusher: IndexFlusher
    keys: KeyStore | None
    """The key index, where there is one."""
    clock: Clock
    written: Callable[[], None]
    """Called after every append that wrote something."""
    prepare: Callable[[], None]
    """Asks for the next log file; called when the present one is half full."""
    armed: Mapping[str, object]
    """The fault points that are armed: none outside of tests."""


class Indexing:
    """Takes what was written into the index of queues and the index of keys, however large it is."""

    def __init__(self, path: WritePath) -> None:
        self._index = path.opened.index
        self._keys = path.keys
        self._index_flusher = path.index_flusher
        self._confirm = path.confirm
        self._failure = path.failure
        self._entries_max = path.settings.index_tail_entries // 2

    def take(self, batch: Encoded) -> None:
        """Take in an append; where the tail is too small for it, runs are written first. Raises StoreFailed."""
        index, entries = self._index, batch.entries
        total, first = len(entries), 0
        while total - first > self._entries_max:  # a run may end inside the batch, but only at the end of a record
            cut = first + self._entries_max
            while entries.position(cut) == entries.position(cut - 1):
                cut -= 1
            self._make_room(cut - first)
            index.append(entries.slice(first, cut), entries.position(cut))
            first = cut
        self._make_room(total - first)
        index.append(entries.slice(first, total) if first else entries, batch.end_position)
        index.tail.publish(batch.end_position, self._confirm.position)
        self.take_keys(batch)

    def take_keys(self, batch: Encoded) -> None:
        """Take in the keys of an append whose entries are in the tail. Raises StoreFailed."""
        try:
            if self._keys is not None:
                self._keys.take(batch)
        except OSError as error:
            raise self._not_indexed(error) from error

    def _make_room(self, entries: int) -> None:
        if self._index.tail.room >= entries:
            return
        try:
            self._index_flusher.make_room(entries)
        except OSError as error:
            raise self._not_indexed(error) from error

    def _not_indexed(self, error: OSError) -> StoreError:
        """The bytes are in the log but not in an index: only a restart can mend that."""
        return self._failure.fail(StoreFailed(str(error)))


class Writer:
    """The one writer of a store that makes its own records."""

    def __init__(self, path: WritePath) -> None:
        opened = path.opened
        self._path = path
        self._log = opened.log
        self._index = opened.index
        self._tail = opened.index.tail
        self._confirm = path.confirm
        self._guard = path.guard
        self._failure = path.failure
        self._indexing = Indexing(path)
        self._appender = RecordEncoder(opened.log, opened.index, opened.epoch, path.settings.record_limit_bytes)
        self._segments = self._appender.segments
        self._flush_entries = path.settings.flush_entries
        self._now_ns = path.clock.now_ns
        self._written = path.written
        self._armed = path.armed
        self.last_store_ms = opened.store_ms
        self.messages_total = 0

    def append(
        self,
        placed: Sequence[Placed],
        changes: Sequence[StateChange],
        *,
        atomic: bool,
        essential: bool = False,
    ) -> Encoded:
        """Append all of `placed` as one batch; `essential` ones are taken on a full disk too, because they make room.

        Raises StoreFull, StoreFailed, RecordTooLarge, LocalMisuse; nothing is appended then.
        """
        try:
            return self._append_all(placed, changes, atomic=atomic, essential=essential)
        except TooManyQueues:  # nothing was written
            fitting = spread(placed, self._appender.queues_max)
            return self._append_all(fitting, changes, atomic=atomic, essential=essential)

    def _append_all(
        self, placed: Sequence[Placed], changes: Sequence[StateChange], *, atomic: bool, essential: bool
    ) -> Encoded:
        if changes or self._failure.error is not None or self._guard.full or self._armed:
            return self._append(placed, changes, atomic=atomic, essential=essential)
        log, tail, now_ms = self._log, self._tail, self._now_ns() // 1_000_000
        if now_ms < self.last_store_ms:
            now_ms = self.last_store_ms
        images, queues = parts_of(placed)
        try:
            batch = self._segments.write(images, queues, atomic, now_ms, log.end, tail.first, tail.count)
        except OSError as error:
            raise self._not_written(error) from error
        if batch is None:
            return self._append(placed, changes, atomic=atomic, essential=essential)
        self.last_store_ms = now_ms
        log.end = self._index.end_position = batch.end_position
        tail.count += len(batch.entries)
        if batch.keyed:
            self._indexing.take_keys(batch)
        self._confirm.add_group(batch)
        self.messages_total += len(batch.offsets)
        self._written()
        if batch.retained:
            self._apply_state(batch, images, ())
        if tail.count - tail.first >= self._flush_entries:
            self._path.index_flusher.flush_if_full()
        return batch

    def _append(
        self, placed: Sequence[Placed], changes: Sequence[StateChange], *, atomic: bool, essential: bool
    ) -> Encoded:
        """Do what the segment writer does not: state changes, new files, batches larger than the tail, armed faults."""
        self._failure.check(essential=essential)
        groups = list(split_batches(changes)) if changes else []
        controls = [encode_changes(group) for group in groups]
        now_ms = max(self._path.clock.now_ms(), self.last_store_ms)
        images, queues = parts_of(placed)
        batch = self._write(images, queues, controls, now_ms, atomic=atomic)
        if batch.end_position == batch.first_position:
            return batch
        self.last_store_ms = now_ms
        self._indexing.take(batch)
        if batch.end_position - batch.first_position > KEPT_BYTES_MAX:
            batch.forget_bytes()
        self._confirm.add_group(batch)
        self.messages_total += len(batch.offsets)
        self._written()
        if groups or batch.retained:
            self._apply_state(batch, images, groups)
        self._path.index_flusher.flush_if_full()
        self._aim()
        return batch

    def _aim(self) -> None:
        """Aim the segment writer at the end of the log; in the middle of a file ask for the next one."""
        if self._log.needs_next():
            self._path.prepare()
        self._appender.aim(self._path.opened.registry.next_id)

    def _not_written(self, error: OSError) -> StoreError:
        """Take in a failed write: what it left in the file must not be recovered later."""
        try:
            self._log.erase(self._log.end, self._segments.attempted)
        except StoreFailed as failure:
            return self._failure.fail(failure)
        return self._failure.write_failed(error)

    def _write(
        self, images: list[bytes], queues: list[list[Queues]], controls: Sequence[bytes], now_ms: int, *, atomic: bool
    ) -> Encoded:
        batch = None
        try:
            batch = self._appender.encode(
                images,
                queues,
                controls,
                atomic=atomic,
                store_ms=now_ms,
                queue_limit=self._path.opened.registry.next_id,
            )
            self._log.write(self._appender.pieces(batch), batch.end_position)
        except (OSError, StoreFailed) as error:
            if batch is not None:
                self._appender.take_back(batch)
            if isinstance(error, OSError):
                raise self._failure.write_failed(error) from error
            self._failure.fail(error)
            raise
        return batch

    def _apply_state(self, batch: Encoded, images: list[bytes], groups: Sequence[Sequence[StateChange]]) -> None:
        apply = self._path.opened.tables.apply
        for part, at, position in batch.retained:
            image = RecordView(images[part], at)
            topic = image.mqtt_topic
            if topic is not None:
                value = b"" if len(image.body) else None
                apply(StateChange(state_kinds.RETAINED, topic, value), position)
        for position, group in zip(batch.controls, groups, strict=True):
            for change in group:
                apply(change, position)
