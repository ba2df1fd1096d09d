"""The store's interface: append, read, confirm, state. One instance owns one data directory.

    loop thread: append, read, callbacks | flusher thread: fdatasync | index thread: runs, merges, snapshots, files

Invariant: a message is confirmed only when every byte of its group is on the disk (flush = "sync"); nothing at or above
the confirm position is visible; offsets are dense per queue; confirmed records survive any crash. Thread rule: every
method belongs to the owner's loop thread; `schedule` runs a function there and may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from broker.store.errors import StoreError, StoreFailed
from broker.store.log.confirm import Callback, Schedule
from broker.store.log.epoch_file import WRITER, role_of
from broker.store.log.index_thread import THREADS, Workers
from broker.store.parts import Change, Parts, ReplicaLog, Site, Truncation, mount
from broker.store.placed import Appended, Placed
from broker.store.recovery.log_end import DamagedRange
from broker.store.recovery.replayer import Passed
from broker.store.settings import StoreSettings
from broker.store.state.state_kinds import RECORDS_VERSION, StateChange
from runtime.clock import Clock
from runtime.faults import FaultPoints
from runtime.files import DirectoryLock, make_directory
from runtime.format_file import check_format

FORMAT_KIND, LAYOUT = "lightmq-store", 2
"""What FORMAT says of a store's directory, with RECORDS_VERSION."""


class LogStore:
    """The commit log with its queue index and state tables; created by :meth:`open`.

    `queues` names the queues, `reading` reads them, `positions` has the positions up to which the log is safe, `disk`
    the free space, `replica` is for replication. They, `state`, `keys`, `retention` and `groups` belong to one opening:
    fetch them again after a truncation of the log.
    """

    def __init__(self, site: Site, lock: DirectoryLock) -> None:
        """Recover the directory that `lock` locks; use :meth:`open`."""
        self._site = site
        self._lock = lock
        self.directory = site.directory
        self._closed = False
        try:
            parts = mount(site)
        except BaseException:
            site.thread.close()
            raise
        self.replica = ReplicaLog(site, parts, self._rebuild)
        self._use(parts)

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
        passed: Passed | None = None,
        workers: Workers = THREADS,
    ) -> Self:
        """Open or create the store in `directory` and recover it.

        `schedule` runs a function on the owner's loop thread (`loop.call_soon_threadsafe`); `log` takes events. With
        `soon`, which runs a function at the end of the loop's turn, small quick flushes are done there (`Flusher`).
        `role` and `epoch`: see `role` and the README. `passed` is told how much of the log is replayed; `workers` do
        the slow work. Raises DirectoryLocked, WrongFormat, CorruptLog (the log is damaged below its durable position),
        LocalMisuse (the epoch was used before), OSError.
        """
        wanted = role_of(role, epoch)
        make_directory(directory, mode=0o700)
        lock, thread = DirectoryLock(directory), None
        try:
            check_format(directory, FORMAT_KIND, LAYOUT, RECORDS_VERSION, is_used=(directory / "log").exists())
            thread = workers.jobs(schedule)
            site = Site(
                directory=directory, settings=settings, role=wanted, clock=clock, faults=faults, schedule=schedule,
                soon=soon, log=log, workers=workers, thread=thread, passed=passed,
            )  # fmt: skip
            return cls(site, lock)
        except BaseException:
            if thread is not None:
                thread.abandon()
            lock.close()
            raise

    def _use(self, parts: Parts) -> None:
        """Use the parts of a new opening."""
        self._parts = parts
        self._log = parts.opened.log
        self._writer = parts.writer
        self.state = parts.opened.tables
        self.queues = parts.queues
        self.reading = parts.reading
        self.positions = parts.positions
        self.disk = parts.guard
        self.keys = parts.keys
        self.retention = parts.retention
        self.groups = parts.retention.groups

    # -- append -------------------------------------------------------------------------------------------------------

    def append(self, *placed: Placed, atomic: bool = False, changes: Sequence[StateChange] = ()) -> Appended:
        """Append messages, then state changes; with changes, or `atomic`, all is confirmed and recovered as one.

        Raises StoreFull, StoreFailed, RecordTooLarge, LocalMisuse (an unknown queue id); nothing is appended then.
        """
        return self._writer.append(placed, changes, atomic=atomic or bool(changes))

    def append_state(self, changes: Sequence[StateChange]) -> int:
        """Append state changes as one group; return its end position. Deletions are accepted even on a full disk."""
        essential = all(change.value is None for change in changes)
        return self._writer.append((), changes, atomic=True, essential=essential).end_position

    def when_confirmed(self, position: int, callback: Callback) -> None:
        """Call `callback(None)` once everything below `position` is confirmed, or with StoreFailed if it never will
        be."""
        self._parts.confirm.when_confirmed(position, callback)

    # -- status --------------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch that writes the log, or wrote the last of it; 0 for the empty log of a replica."""
        return self._parts.marks.epoch

    @property
    def begin_position(self) -> int:
        """Position of the oldest byte that has not expired."""
        return self._log.begin

    @property
    def end_position(self) -> int:
        """Where the next record goes."""
        return self._log.end

    @property
    def confirm_position(self) -> int:
        """Everything below it is durable and visible."""
        return self._parts.confirm.position

    @property
    def replayed_records(self) -> int:
        """How many records recovery has read to restore index and state."""
        return self._parts.opened.replayed_records

    @property
    def refusal(self) -> StoreError | None:
        """The error that an append gets now; None while appends are accepted."""
        return self._parts.failure.refusal

    @property
    def quarantined(self) -> Sequence[DamagedRange]:
        """The ranges of the log that were durable and are damaged."""
        return self._parts.damage.known()

    def metrics(self) -> dict[str, int]:
        """Return gauges and totals of the store."""
        return self._parts.metrics()

    # -- upkeep and closing --------------------------------------------------------------------------------------------

    def maintain(self, now_ms: int) -> bool:
        """Do a bounded piece of upkeep (disk, segments, runs, snapshot, retention). Call about once a second.

        Return whether there is more to do: call again soon then, but let the loop run in between.
        """
        if self._parts.failure.error is not None:
            return False
        return self._parts.maintenance.step(now_ms, self.positions.flushed)

    def close(self) -> None:
        """Flush, confirm, write run and snapshot, and leave a clean checkpoint; idempotent."""
        if self._closed:
            return
        parts, log = self._parts, self._log
        log.growing = False
        parts.positions.close()
        if parts.failure.error is None:
            parts.maintenance.settle()
        self._closed = True
        self._site.thread.close()
        if parts.failure.error is None:
            flushed = parts.positions.flushed
            parts.marks.close(flushed, clean=flushed == log.end)  # a replica may have written half a group
        parts.failure.end(StoreFailed(f"{self.directory}: the store is closed"))
        self._give_back()

    def _give_back(self) -> None:
        self._parts.opened.index.close()
        self._log.close()
        self._lock.close()

    # -- truncation of a replica's log ---------------------------------------------------------------------------------

    def _rebuild(self, change: Change) -> Parts:
        """Stop the parts, change the directory and open them again; after a failure the store is closed."""
        parts, site = self._parts, self._site
        try:
            self._dismantle()
            cut = Truncation(site.directory, self._log, parts.opened.epochs, site.faults, site.log)
            change(cut)
            self._log.close()
            self._use(mount(site, whole_to=cut.whole_to))
        except BaseException as error:
            self._closed = True
            site.thread.close()
            parts.failure.fail(StoreFailed(f"{site.directory}: the log could not be cut: {error}; restart the broker"))
            self._log.close()
            self._lock.close()
            raise
        parts.failure.error = StoreFailed(f"{site.directory}: the log is cut")
        return self._parts

    def _dismantle(self) -> None:
        """Stop everything that works on the directory without writing more; the log stays open."""
        parts = self._parts
        self._log.growing = False
        parts.positions.silence()
        parts.positions.close()
        self._site.thread.drain()
        if parts.failure.error is not None:
            raise parts.failure.error
        parts.confirm.fail(StoreFailed(f"{self.directory}: the log is cut"))
        parts.opened.index.close()
