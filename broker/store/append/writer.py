"""The write path of the store: encode, write, index, apply state, ask for the flush; and what happens when it fails.

Invariant: either every byte of an append is in the log and its offsets, index entries and state are taken in, or
nothing of it is. After the first failed write or flush nothing is appended any more and everybody who waits gets
StoreFailed; a full disk is no failure, it only refuses. Thread rule: loop thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from broker.store.append.appender import RecordEncoder
from broker.store.errors import StoreError, StoreFailed
from broker.store.index.index_flusher import IndexFlusher
from broker.store.keys.key_store import KeyStore
from broker.store.log.confirm import Confirm
from broker.store.log.disk_guard import FULL, DiskGuard
from broker.store.recovery.opened import Opened
from broker.store.settings import StoreSettings
from broker.store.state import state_kinds
from broker.store.state.state_log import StateChange, encode_changes, split_batches
from broker.store.store_message import StoreMessage, mqtt_topic
from remoting.native.contracts import KEPT_BYTES_MAX, Encoded
from runtime.clock import Clock


class Writer:
    """The one writer of a store; `written` is called after every append that wrote something.

    `armed` holds the fault points that are armed: none outside of tests.
    """

    def __init__(
        self,
        opened: Opened,
        settings: StoreSettings,
        confirm: Confirm,
        guard: DiskGuard,
        index_flusher: IndexFlusher,
        *,
        clock: Clock,
        events: Any,
        written: Callable[[], None],
        armed: Mapping[str, object],
    ) -> None:
        self._log = opened.log
        self._index = opened.index
        self._tables = opened.tables
        self._registry = opened.registry
        self._appender = RecordEncoder(opened.log, opened.index, opened.epoch, settings.record_limit_bytes)
        self.last_store_ms = opened.store_ms
        self._entries_max = settings.index_tail_entries // 2
        self._confirm = confirm
        self._guard = guard
        self._index_flusher = index_flusher
        self._flush_entries = settings.flush_entries
        self._now_ms, self._now_ns = clock.now_ms, clock.now_ns
        self._events = events
        self._written = written
        self.keys: KeyStore | None = None
        """The key index, where there is one."""
        self.prepare: Callable[[], None] = lambda: None
        """Asks for the next log file; called when the present one is half full."""
        self._armed = armed
        self._tail = opened.index.tail
        self._pen = self._appender.pen
        self._begun = opened.log.end
        self.failure: StoreError | None = None
        self.messages_total = 0

    @property
    def bytes_total(self) -> int:
        """Bytes written since the start, fillers included."""
        return self._log.end - self._begun

    def append(
        self,
        messages: Sequence[StoreMessage],
        changes: Sequence[StateChange],
        *,
        atomic: bool,
        essential: bool = False,
    ) -> Encoded:
        """Append a batch; `essential` ones are taken on a full disk too, because they make room.

        Raises StoreFull, StoreFailed, RecordTooLarge, LocalMisuse; nothing is appended then.
        """
        if changes or self.failure is not None or self._guard.full or self._armed:
            return self._append(messages, changes, atomic=atomic, essential=essential)
        log, tail, now_ms = self._log, self._tail, self._now_ns() // 1_000_000
        if now_ms < self.last_store_ms:
            now_ms = self.last_store_ms
        try:
            batch = self._pen.write(messages, atomic, now_ms, log.end, tail.first, tail.count)
        except OSError as error:
            raise self._not_written(error) from error
        if batch is None:
            return self._append(messages, changes, atomic=atomic, essential=essential)
        self.last_store_ms = now_ms
        log.end = self._index.end_position = batch.end_position
        tail.count += len(batch.entries)
        if batch.keyed:
            self._take_keys(batch)
        self._confirm.add_group(batch)
        self.messages_total += len(messages)
        self._written()
        if batch.retained:
            self._apply_state(batch, messages, ())
        if tail.count - tail.first >= self._flush_entries:
            self._index_flusher.flush_if_full()
        return batch

    def _append(
        self, messages: Sequence[StoreMessage], changes: Sequence[StateChange], *, atomic: bool, essential: bool
    ) -> Encoded:
        """Do what the pen does not: state changes, new files, batches larger than the tail, armed faults."""
        if self.failure is not None:
            raise self.failure
        if self._guard.full and not essential:
            raise self._guard.refusal()
        groups = list(split_batches(changes)) if changes else []
        controls = [encode_changes(group) for group in groups]
        now_ms = max(self._now_ms(), self.last_store_ms)
        batch = self._write(messages, controls, now_ms, atomic=atomic)
        if batch.end_position == batch.first_position:
            return batch
        self.last_store_ms = now_ms
        self._index_batch(batch)
        self._take_keys(batch)
        if batch.end_position - batch.first_position > KEPT_BYTES_MAX:
            batch.forget_bytes()
        self._confirm.add_group(batch)
        self.messages_total += len(messages)
        self._written()
        if groups or batch.retained:
            self._apply_state(batch, messages, groups)
        self._index_flusher.flush_if_full()
        self._aim()
        return batch

    def _aim(self) -> None:
        """Let the pen write on from where the log ends; in the middle of a file see to the next one."""
        if self._log.needs_next():
            self.prepare()
        self._appender.aim(self._registry.next_id)

    def _not_written(self, error: OSError) -> StoreError:
        """Take in a write of the pen that failed: what it left must not come back to life."""
        try:
            self._log.erase(self._log.end, self._pen.attempted)
        except StoreFailed as failure:
            self.fail(failure)
            return failure
        return self.write_failed(error)

    def _write(
        self, messages: Sequence[StoreMessage], controls: Sequence[bytes], now_ms: int, *, atomic: bool
    ) -> Encoded:
        batch = None
        try:
            batch = self._appender.encode(
                messages, controls, atomic=atomic, store_ms=now_ms, queue_limit=self._registry.next_id
            )
            self._log.write(self._appender.pieces(batch), batch.end_position)
        except (OSError, StoreFailed) as error:
            if batch is not None:
                self._appender.take_back(batch)
            if isinstance(error, OSError):
                raise self.write_failed(error) from error
            self.fail(error)
            raise
        return batch

    def _index_batch(self, batch: Encoded) -> None:
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

    def _make_room(self, entries: int) -> None:
        if self._index.tail.room >= entries:
            return
        try:
            self._index_flusher.make_room(entries)
        except OSError as error:
            raise self._not_indexed(error) from error

    def _take_keys(self, batch: Encoded) -> None:
        try:
            if self.keys is not None:
                self.keys.take(batch)
        except OSError as error:
            raise self._not_indexed(error) from error

    def _not_indexed(self, error: OSError) -> StoreFailed:
        """The bytes are in the log but not in an index: only a restart can mend that."""
        failure = StoreFailed(str(error))
        self.fail(failure)
        return failure

    def _apply_state(
        self, batch: Encoded, messages: Sequence[StoreMessage], groups: Sequence[Sequence[StateChange]]
    ) -> None:
        apply = self._tables.apply
        for at, position in batch.retained:
            message = messages[at]
            topic = mqtt_topic(message)
            if topic is not None:
                value = b"" if len(message.body) else None
                apply(StateChange(state_kinds.RETAINED, topic, value), position)
        for position, group in zip(batch.controls, groups, strict=True):
            for change in group:
                apply(change, position)

    def write_failed(self, error: OSError) -> StoreError:
        """Take in a failed write and return what the caller gets: StoreFull, or StoreFailed for good."""
        if error.errno in FULL:
            self._guard.run_full()
            return self._guard.refusal()
        failure = StoreFailed(f"writing to the log failed: {error}; restart the broker once the disk is well")
        self.fail(failure)
        return failure

    def flush_failed(self, error: OSError) -> None:
        """Take in a failed fdatasync: a second one might succeed with the data gone."""
        self.fail(
            StoreFailed(f"fdatasync of the log failed: {error}; nothing more is acknowledged, restart the broker")
        )

    def background_failed(self, error: Exception) -> None:
        """Take in the failure of a job of the index thread; what it derives from the log can be made again."""
        if isinstance(error, OSError) and error.errno in FULL:
            self.write_failed(error)
        elif isinstance(error, OSError):
            self.flush_failed(error)
        else:
            self._events.error("index_job_failed", error=repr(error))

    def fail(self, failure: StoreError) -> None:
        """Stop for good; the first failure is the one everybody hears of."""
        if self.failure is None:
            self.failure = failure
            self._events.error("store_failed", error=str(failure))
            self._confirm.fail(failure)
