"""What a store is made of, and how it is opened and closed; the doors (`group_door`, `log_store`) stand on it.

Invariant: the parts are made in one order, from the recovered log up, and all anew when a replica has cut its log.
Thread rule: loop thread; `schedule` runs a function there and may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from pathlib import Path
from typing import Any, Self

from broker.store.append.writer import Writer
from broker.store.errors import StoreError, StoreFailed
from broker.store.index.index_flusher import IndexFlusher, room_maker
from broker.store.index.reader import Reader
from broker.store.index.time_search import TimeSearch
from broker.store.keys.key_store import KeyStore
from broker.store.log.checkpoint import Checkpoint, save_checkpoint
from broker.store.log.confirm import Confirm, Listener
from broker.store.log.disk_guard import DiskGuard
from broker.store.log.flusher import Flusher, Inline, Schedule
from broker.store.log.format_version import check_format
from broker.store.log.index_thread import IndexThread
from broker.store.log.role import UNLIMITED, WRITER, Role, role_of
from broker.store.recovery.opened import Opened
from broker.store.recovery.opening import Opening
from broker.store.recovery.quarantine import DamagedRange
from broker.store.replica.replica_writer import ReplicaWriter
from broker.store.settings import StoreSettings
from broker.store.state.state_log import StateChange
from broker.store.state.state_tables import StateTables
from broker.store.store_message import StoreMessage
from broker.store.upkeep.damage_watch import DamageWatch
from broker.store.upkeep.maintenance import Maintenance
from broker.store.upkeep.retention import Retention
from broker.store.upkeep.scrub import Scrub
from runtime.clock import Clock
from runtime.faults import FaultPoints
from runtime.files import DirectoryLock, make_directory


class StoreBase:
    """The parts of one open data directory."""

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
        role: Role | None = None,
    ) -> None:
        self.directory = directory
        self.settings = settings
        self._clock = clock
        self._events = log
        self._lock = lock
        self._schedule = schedule
        self._soon = soon
        self._faults = faults
        self._closed = self._given_up = False
        self._confirm_pending = False
        self._is_async = settings.flush == "async"
        self._role = role or Role()
        self._listeners: list[tuple[Listener, Sized | None]] = []
        self._written_listeners: list[Callable[[int], None]] = []
        self._kept_listeners: list[Callable[[int], None]] = []
        self._thread = IndexThread(schedule)
        try:
            self._mount()
        except BaseException:
            self._thread.close()
            raise

    def _mount(self) -> None:
        """Recover the directory and make everything that works on it."""
        opened = Opening(
            self.directory, self.settings, self._faults, self._events,
            room_maker(self._thread, self.settings, self._faults), self._role,
        ).run()  # fmt: skip
        self._assemble(opened)
        if not self._role.replica:
            self._damage.settle(opened.mending, self._carry, lambda: self._on_flushed(self._log.sync()))

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
        role: str = WRITER,
        epoch: int | None = None,
    ) -> Self:
        """Open or make the store in `directory` and recover it.

        `schedule` runs a function on the owner's loop thread (`loop.call_soon_threadsafe`); `log` takes events. With
        `soon`, which runs a function at the end of the loop's turn, small quick flushes are done there (`flusher`).
        `role` and `epoch`: see `role` and the README. Raises DirectoryLocked, WrongFormat, CorruptLog (the log is
        damaged below its durable position), LocalMisuse (the epoch was used before), OSError.
        """
        wanted = role_of(role, epoch)
        make_directory(directory, mode=0o700)
        lock = DirectoryLock(directory)
        try:
            check_format(directory)
            return cls(
                directory, settings, clock=clock, faults=faults, schedule=schedule, log=log, lock=lock, soon=soon,
                role=wanted,
            )  # fmt: skip
        except BaseException:
            lock.close()
            raise

    def _assemble(self, opened: Opened) -> None:
        grouped = self._role.grouped
        self._log, self._index, self._registry = opened.log, opened.index, opened.registry
        self.state: StateTables = opened.tables
        self.replayed_records, self._epochs = opened.replayed_records, opened.epochs
        end = self._flushed = self._kept = self._log.durable = self._log.end
        self._limit = opened.confirmed if grouped else UNLIMITED
        self._confirm = Confirm(opened.confirmed, self._index.tail, self._events)
        for listener, among in self._listeners:
            self._confirm.on_advance(listener, among)
        for group in opened.unconfirmed:
            self._confirm.add_group(group)
        self._index.serve(end, opened.epoch, self._registry.next_id, opened.confirmed if grouped else None)
        self._registry.on_queue = self._index.set_floor
        self.confirmed_end = self._index.tail.confirmed_end  # (queue that exists) -> offset
        self._reader = Reader(self._log, self._index, self._confirm, check=self.settings.check_on_read)
        self._times = TimeSearch(self._log, self._index)
        self._damage = DamageWatch(
            self.directory, opened, self._reader, self._thread, self._background_failed, self._events
        )
        self._guard = DiskGuard(
            self.directory, self.settings.free_space_bytes_min, self.settings.ballast_size_bytes,
            self.settings.segment_size_bytes, self._faults, self._events, lambda: self._log.capacity_bytes,
        )  # fmt: skip
        self._index_flusher = IndexFlusher(
            self._index, self._thread, self._log.sync, self.settings, self._faults, self._background_failed,
            self._certain if grouped else None,
        )  # fmt: skip
        self._writer = self._make_writer(opened)
        self._assemble_upkeep(opened)
        self._flusher = Flusher(
            self._log.sync,
            interval_ms=self.settings.flush_interval_ms if self._is_async else 0,
            schedule=self._schedule,
            on_flushed=self._on_flushed,
            on_failed=self._writer.flush_failed,
            position=end,
            inline=self._inline(),
        )

    def _make_writer(self, opened: Opened) -> Writer:
        parts: dict[str, Any] = {
            "clock": self._clock, "events": self._events, "written": self._written, "armed": self._faults.armed,
        }  # fmt: skip
        shared = (opened, self.settings, self._confirm, self._guard, self._index_flusher)
        return ReplicaWriter(self.directory, *shared, **parts) if self._role.replica else Writer(*shared, **parts)

    def _assemble_upkeep(self, opened: Opened) -> None:
        self.retention = self._retention = Retention(
            self.settings, self._log, self._index, self.state, self._index_flusher, self._carry, self._events,
            confirmed=self._confirmed, full=lambda: self._guard.full,
        )  # fmt: skip
        self._retention.role = self._role
        self.groups = self._retention.groups
        self.keys = self._writer.keys = KeyStore.open(
            self.directory, self.settings, self._log, self._reader, self._thread, self._faults, self._events,
            self._background_failed,
        )  # fmt: skip
        self._maintenance = Maintenance(
            self.directory, self.settings, self._epochs, self._log, self.state, self._thread, self._index_flusher,
            self._retention, self._background_failed, opened.snapshot_position, opened.mark,
            lambda: self._writer.last_store_ms, self.keys, self._certain if self._role.grouped else None,
        )  # fmt: skip
        self._writer.prepare = self._maintenance.prepare_next
        rate = None if self._role.replica else self.settings.scrub_bytes_per_second
        self._scrub = (
            Scrub(self._log, self._thread, self._damage.scrubbed, self._background_failed, rate) if rate != 0 else None
        )

    def _confirmed(self) -> int:
        return self._confirm.position

    def _certain(self) -> int:
        """Up to where the group will not take the log back, flushed here or not: the end of whole groups."""
        end = self._index.end_position
        return end if self._limit >= end else self._confirm.position

    def _dismantle(self) -> None:
        """Put everything to rest that works on the directory, with nothing more written; the log stays open."""
        self._log.growing = False
        self._flusher.close()
        self._thread.drain()
        if self._writer.failure is not None:
            raise self._writer.failure
        self._confirm.fail(StoreFailed(f"{self.directory}: the log is cut"))
        self._index.close()

    def _abandon(self, error: BaseException) -> None:
        """Close what is left after the parts could not be made anew."""
        self._closed = True
        self._thread.close()
        self._writer.fail(StoreFailed(f"{self.directory}: the log could not be cut: {error}; restart the broker"))
        self._log.close()
        self._lock.close()

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

    # -- what the doors add -------------------------------------------------------------------------------------------

    def _written(self) -> None:
        """An append was written."""
        raise NotImplementedError

    def _on_flushed(self, position: int) -> None:
        """Everything below `position` has been through fdatasync."""
        raise NotImplementedError

    def _advance(self, position: int) -> None:
        """Confirm what stands below `position`, as far as the group lets it."""
        raise NotImplementedError

    # -- what other rooms and the maintenance may look at -------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch that writes the log, or wrote the last of it; 0 for the empty log of a replica."""
        return self._epochs[-1][0] if self._epochs else 0

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
    def kept_position(self) -> int:
        """All below it, whole groups, is as safe as the settings ask: flushed, or with flush = "async" written."""
        return self._kept

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

    def close(self) -> None:
        """Flush, deliver what is confirmed, write run and snapshot, and leave a clean checkpoint; idempotent."""
        if self._closed:
            return
        self._log.growing = False
        self._flusher.close()
        if self._writer.failure is None:
            self._advance(self._kept)
            self._maintenance.settle()
        self._closed = True
        self._thread.close()
        if self._writer.failure is None:
            whole = self._flushed == self._log.end  # a replica may have written half a group
            save_checkpoint(self.directory, Checkpoint(self.epoch, self._flushed, clean=whole))
        self._writer.failure = self._writer.failure or StoreFailed(f"{self.directory}: the store is closed")
        self._confirm.fail(self._writer.failure)
        self._index.close()
        self._log.close()
        self._lock.close()
