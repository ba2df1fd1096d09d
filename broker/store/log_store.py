"""The door of the store: append, read, confirm, state. One instance owns one data directory.

    loop thread: append, read, callbacks | flusher thread: fdatasync | index thread: runs, merges, snapshots, files

Invariant: a message is confirmed only when every byte of its group is on the disk (flush = "sync"); nobody sees
anything at or above the confirm position; offsets are dense per queue; what is confirmed survives any crash. Thread
rule: every method belongs to the owner's loop thread; `schedule` runs a function there and may be called from any
thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from broker.store.checkpoint import Checkpoint, save_checkpoint
from broker.store.confirm import Callback, Confirm, FreshListener, Listener
from broker.store.damage_watch import DamageWatch
from broker.store.disk_guard import DiskGuard
from broker.store.errors import StoreError, StoreFailed
from broker.store.flusher import Flusher, Inline, Schedule
from broker.store.format_version import check_format
from broker.store.index_thread import IndexThread
from broker.store.key_index.key_store import KeyStore
from broker.store.maintenance import Maintenance
from broker.store.opening import Opened, Opening
from broker.store.quarantine import DamagedRange
from broker.store.queue_index.index_flusher import IndexFlusher, room_maker
from broker.store.read_result import NO_SUCH_QUEUE, RangeResult, ReadResult
from broker.store.reader import Reader
from broker.store.retention import Retention
from broker.store.settings import StoreSettings
from broker.store.state_log import StateChange
from broker.store.state_tables import StateTables
from broker.store.store_message import Appended, StoreMessage
from broker.store.time_search import TimeSearch
from broker.store.writer import Writer
from remoting.protocol.errors import LocalMisuse
from runtime.clock import Clock
from runtime.faults import FaultPoints
from runtime.files import DirectoryLock


class LogStore:
    """The commit log with its queue index and state tables; made by :meth:`open`."""

    def __init__(
        self,
        directory: Path,
        settings: StoreSettings,
        *,
        clock: Clock,
        faults: FaultPoints,
        schedule: Schedule,
        log: Any,
        lock: DirectoryLock,
        soon: Schedule | None = None,
    ) -> None:
        self.directory = directory
        self.settings = settings
        self._clock = clock
        self._events = log
        self._lock = lock
        self._schedule = schedule
        self._soon = soon
        self._faults = faults
        self._closed = False
        self._confirm_pending = False
        self._is_async = settings.flush == "async"
        self._thread = IndexThread(schedule)
        try:
            opened = Opening(directory, settings, faults, log, room_maker(self._thread, settings, faults)).run()
            self._assemble(opened)
            self._damage.settle(opened.mending, self._carry, lambda: self._on_flushed(self._log.sync()))
        except BaseException:
            self._thread.close()
            raise

    @classmethod
    def open(
        cls,
        directory: Path,
        settings: StoreSettings,
        *,
        clock: Clock,
        faults: FaultPoints,
        schedule: Schedule,
        log: Any,
        soon: Schedule | None = None,
    ) -> LogStore:
        """Open or make the store in `directory` and recover it.

        `schedule` runs a function on the owner's loop thread (`loop.call_soon_threadsafe`); `log` takes events. With
        `soon`, which runs a function at the end of the loop's turn, small quick flushes are done there (`flusher`).
        Raises DirectoryLocked, WrongFormat, CorruptLog (the log is damaged below its durable position), OSError.
        """
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = DirectoryLock(directory)
        try:
            check_format(directory)
            return cls(
                directory, settings, clock=clock, faults=faults, schedule=schedule, log=log, lock=lock, soon=soon
            )
        except BaseException:
            lock.close()
            raise

    def _assemble(self, opened: Opened) -> None:
        settings = self.settings
        self._log, self._index, self._registry = opened.log, opened.index, opened.registry
        self.state: StateTables = opened.tables
        self.epoch, self.replayed_records = opened.epoch, opened.replayed_records
        end = self._flushed = self._log.durable = self._log.end
        self._confirm = Confirm(end, self._index.tail, self._events)
        self._index.serve(end, self.epoch, self._registry.next_id)
        self._registry.on_queue = self._index.set_floor
        self.confirmed_end = self._index.tail.confirmed_end  # (queue that exists) -> offset
        self._reader = Reader(self._log, self._index, self._confirm, check=settings.check_on_read)
        self._times = TimeSearch(self._log, self._index)
        self._damage = DamageWatch(
            self.directory, opened, self._reader, self._thread, self._background_failed, self._events
        )
        self._guard = DiskGuard(
            self.directory, settings.free_space_bytes_min, settings.ballast_size_bytes, settings.segment_size_bytes,
            self._faults, self._events,
        )  # fmt: skip
        self._index_flusher = IndexFlusher(
            self._index, self._thread, self._log.sync, settings, self._faults, self._background_failed
        )
        self._writer = Writer(
            opened, settings, self._confirm, self._guard, self._index_flusher,
            clock=self._clock, events=self._events, written=self._written, armed=self._faults.armed,
        )  # fmt: skip
        self.retention = self._retention = Retention(
            settings, self._log, self._index, self.state, self._index_flusher, self._carry, self._events,
            confirmed=lambda: self._confirm.position, full=lambda: self._guard.full,
        )  # fmt: skip
        self.groups = self._retention.groups
        self.keys = self._writer.keys = KeyStore.open(
            self.directory, settings, self._log, self._reader, self._thread, self._faults, self._events,
            self._background_failed,
        )  # fmt: skip
        self._maintenance = Maintenance(
            self.directory, settings, self.epoch, self._log, self.state, self._thread, self._index_flusher,
            self._retention, self._background_failed, opened.snapshot_position, opened.mark,
            lambda: self._writer.last_store_ms, self.keys,
        )  # fmt: skip
        self._writer.prepare = self._maintenance.prepare_next
        self._flusher = Flusher(
            self._log.sync,
            interval_ms=0 if settings.flush == "sync" else settings.flush_interval_ms,
            schedule=self._schedule,
            on_flushed=self._on_flushed,
            on_failed=self._writer.flush_failed,
            position=end,
            inline=self._inline(),
        )

    def _inline(self) -> Inline | None:
        if self._soon is None:
            return None
        return Inline(
            soon=self._soon,
            backlog=lambda: self._log.end - self._flushed,
            busy=lambda: self._thread.pending > 0,
            monotonic_ns=self._clock.monotonic_ns,
        )

    def _background_failed(self, error: Exception) -> None:
        self._writer.background_failed(error)

    def _carry(self, messages: Sequence[StoreMessage], changes: Sequence[StateChange]) -> int:
        batch = self._writer.append(messages, changes, atomic=True, essential=True)
        return batch.end_position

    def _written(self) -> None:
        self._flusher.request()
        if self._is_async and not self._confirm_pending:
            self._confirm_pending = True
            (self._soon or self._schedule)(self._confirm_written)

    # -- what other rooms and the maintenance may look at -------------------------------------------------------------

    @property
    def confirm_position(self) -> int:
        """Everything below it is durable and visible."""
        return self._confirm.position

    @property
    def end_position(self) -> int:
        """Where the next record goes."""
        return self._log.end

    @property
    def flushed_position(self) -> int:
        """Everything below it has been through fdatasync."""
        return self._flushed

    @property
    def begin_position(self) -> int:
        """Position of the oldest byte that has not expired."""
        return self._log.begin

    @property
    def full(self) -> bool:
        """Whether appends are refused because the disk is full."""
        return self._guard.full

    @property
    def refusal(self) -> StoreError | None:
        """What an append gets now instead of being taken; None while it is taken."""
        return self._writer.failure or (self._guard.refusal() if self._guard.full else None)

    @property
    def quarantined(self) -> Sequence[DamagedRange]:
        """The stretches of the log that were durable and are damaged."""
        return tuple(self._damage.quarantine)

    @property
    def free_bytes(self) -> int:
        """Free space of the disk when it was last looked at."""
        return self._guard.free_bytes

    # -- append -------------------------------------------------------------------------------------------------------

    def append(
        self, messages: Sequence[StoreMessage], *, atomic: bool = False, changes: Sequence[StateChange] = ()
    ) -> Appended:
        """Append messages, then state changes; with changes, or `atomic`, all is confirmed and recovered as one.

        Raises StoreFull, StoreFailed, RecordTooLarge, LocalMisuse (an unknown queue id); nothing is appended then.
        """
        return self._writer.append(messages, changes, atomic=atomic or bool(changes))

    def append_state(self, changes: Sequence[StateChange]) -> int:
        """Append state changes as one group; return its end position. Deletions are taken even on a full disk."""
        essential = all(change.value is None for change in changes)
        return self._writer.append((), changes, atomic=True, essential=essential).end_position

    # -- queues -------------------------------------------------------------------------------------------------------

    def open_queue(self, name: bytes) -> int:
        """Return the id of the queue `name`, made if it is not there (one state record)."""
        queue = self._registry.find(name)
        return self.open_queues([name])[0] if queue is None else queue

    def open_queues(self, names: Sequence[bytes]) -> list[int]:
        """Return the ids of the queues `names`; the missing ones are made by one state record."""
        find = self._registry.find
        missing = list(dict.fromkeys(name for name in names if find(name) is None))
        if missing:
            if b"" in missing:
                raise LocalMisuse("a queue name is not empty")
            try:
                self._index.grow(self._registry.next_id + len(missing))
            except OSError as error:
                raise self._writer.write_failed(error) from error
            self.append_state(self._registry.creation(missing))
        return [self._registry.find(name) or 0 for name in names]

    def find_queue(self, name: bytes) -> int | None:
        """Return the id of the queue `name`, None when there is none."""
        return self._registry.find(name)

    def queue_name(self, queue: int) -> bytes:
        """Return the name of a queue. Raises LocalMisuse when there is none with that id."""
        name = self._registry.name(queue)
        if name is None:
            raise LocalMisuse(f"queue id {queue} does not exist")
        return name

    def _known(self, queue: int) -> None:
        if not self._registry.exists(queue):
            raise LocalMisuse(f"queue id {queue} does not exist")

    def delete_queues(self, queues: Sequence[int], changes: Sequence[StateChange] = ()) -> int:
        """Delete queues for ever, as one with `changes`, on a full disk too; return the end position."""
        gone = [change for queue in queues if self.queue_name(queue) for change in self._registry.deletion(queue)]
        return self._carry((), [*changes, *gone])

    # -- read ---------------------------------------------------------------------------------------------------------

    def bounds(self, queue: int) -> tuple[int, int]:
        """Return (oldest offset, confirmed end) of a queue. Raises LocalMisuse when there is none with that id."""
        self._known(queue)
        return self._reader.bounds(queue)

    def next_offset(self, queue: int) -> int:
        """Return the offset the queue's next record gets; it may lie above the confirmed end."""
        self._known(queue)
        return self._index.next_offset(queue)

    def read(
        self, queue: int, offset: int, max_count: int, max_bytes: int, end_offset: int | None = None
    ) -> ReadResult:
        """Return confirmed records of `queue` from `offset` on. Raises UnreadableOffsets when the first is damaged."""
        if not self._registry.exists(queue):
            return ReadResult(NO_SUCH_QUEUE, offset, offset, 0, 0)
        return self._damage.read(queue, offset, max_count, max_bytes, end_offset)

    def read_range(self, queue: int, offset: int, max_count: int, max_bytes: int, end_offset: int) -> RangeResult:
        """Return many confirmed records of `queue` in one piece, checksums unread. Raises UnreadableOffsets."""
        if not self._registry.exists(queue):
            return RangeResult(NO_SUCH_QUEUE, offset, offset, 0, 0)
        return self._damage.read_range(queue, offset, max_count, max_bytes, end_offset)

    def read_at(self, position: int) -> memoryview | None:
        """Return the confirmed record at `position`, None when it has expired. Raises CorruptLog."""
        return self._reader.read_at(position)

    def positions(self, queue: int, offset: int, count: int) -> list[int]:
        """Return where the messages [offset, offset + count) of `queue` stand; fewer when the index has fewer."""
        return [int(position) for position in self._index.read(queue, offset, count).positions]

    def search_time(self, queue: int, store_ms: int, upper: bool = False) -> int:
        """Return the first offset stored at or after `store_ms` (`upper`: after it)."""
        self._known(queue)
        return self._times.first_offset(queue, *self._reader.bounds(queue), store_ms + 1 if upper else store_ms)

    # -- confirm ------------------------------------------------------------------------------------------------------

    def when_confirmed(self, position: int, callback: Callback) -> None:
        """Call `callback(None)` once all below `position` is confirmed, or with StoreFailed if never."""
        self._confirm.when_confirmed(position, callback)

    def on_advance(self, listener: Listener) -> None:
        """Tell `listener` the ids of queues whose confirmed end moved, once per move of the confirm position."""
        self._confirm.on_advance(listener)

    def on_fresh(self, listener: FreshListener) -> None:
        """Give `listener` the small batches that were confirmed, just before `on_advance` tells of the same move."""
        self._confirm.on_fresh(listener)

    def _confirm_written(self) -> None:
        self._confirm_pending = False
        if self._writer.failure is None and not self._closed:
            self._advance(self._log.end)

    def _on_flushed(self, position: int) -> None:
        self._flushed = position
        self._advance(position)

    def _advance(self, position: int) -> None:
        self._confirm.advance(position)
        self._index.tail.publish_confirm(self._confirm.position, self._flushed)

    # -- upkeep -------------------------------------------------------------------------------------------------------

    def maintain(self, now_ms: int) -> bool:
        """Do a bounded piece of upkeep (disk, segments, runs, snapshot, retention). Call about once a second.

        Return whether there is more to do: call again soon then, but let the loop serve others in between.
        """
        if self._writer.failure is None and not self._closed:
            self._guard.check()
            self._maintenance.step(now_ms, self._flushed)
        return self._retention.working

    def metrics(self) -> dict[str, int]:
        """Return gauges and totals of the store."""
        return {
            "begin_position": self._log.begin,
            "end_position": self._log.end,
            "flushed_position": self._flushed,
            "confirm_position": self._confirm.position,
            "messages_total": self._writer.messages_total,
            "bytes_total": self._writer.bytes_total,
            "flushes_total": self._flusher.flushes_total,
            "queues": self._registry.count,
            "segments": len(self._log.segments),
            "index_runs": len(self._index.runs),
            "index_tail_entries": self._index.tail.count - self._index.tail.first,
            "index_runs_written_total": self._index_flusher.runs_written_total,
            "index_merges_total": self._index_flusher.merges_total,
            **self._retention.metrics(),
            "disk_free_bytes": self._guard.free_bytes,
            "disk_full": int(self._guard.full),
            "failed": int(self._writer.failure is not None),
            **(self.keys.metrics() if self.keys is not None else {}),
            **self._damage.metrics(),
        }

    def close(self) -> None:
        """Flush, deliver what is confirmed, write run and snapshot, and leave a clean checkpoint; idempotent."""
        if self._closed:
            return
        self._flusher.close()
        if self._writer.failure is None:
            self._advance(self._flushed)
            self._maintenance.settle()
        self._closed = True
        self._thread.close()
        if self._writer.failure is None:
            save_checkpoint(self.directory, Checkpoint(self.epoch, self._flushed, clean=True))
        self._writer.failure = self._writer.failure or StoreFailed(f"{self.directory}: the store is closed")
        self._confirm.fail(self._writer.failure)
        self._index.close()
        self._log.close()
        self._lock.close()
