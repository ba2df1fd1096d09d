"""What one open data directory is made of, and the one function that makes it: `mount`.

Invariant: the parts are made in one order, from the recovered log up, and all anew when a replica has cut its log; no
part is changed from outside once it is made. Thread rule: loop thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker.store.append.replica_writer import ReplicaWriter, WholeGroups
from broker.store.append.writer import WritePath, Writer
from broker.store.confirm_positions import ConfirmPositions, FlushTools, Listeners
from broker.store.index.index_flusher import IndexFlusher, room_maker
from broker.store.index.reader import Reader
from broker.store.index.time_search import TimeSearch
from broker.store.keys.key_store import KeyStore
from broker.store.log.confirm import Confirm
from broker.store.log.disk_guard import DiskGuard
from broker.store.log.epoch_file import UNLIMITED, Role
from broker.store.log.failure import Failure
from broker.store.log.flusher import Schedule
from broker.store.log.index_thread import IndexThread, Jobs
from broker.store.placed import Placed
from broker.store.queues import Queues, Reading
from broker.store.recovery.opened import Opened
from broker.store.recovery.opening import Opening
from broker.store.settings import StoreSettings
from broker.store.state.state_log import StateChange
from broker.store.upkeep.damage import DamageWatch, Scrub
from broker.store.upkeep.maintenance import Maintenance, Marks, Snapshots
from broker.store.upkeep.retention import Append, Retention
from runtime.clock import Clock
from runtime.faults import FaultPoints


@dataclass(slots=True, kw_only=True)
class Site:
    """Where a store lies, as what it was opened, and what it is given: all that outlives a cut of its log."""

    directory: Path
    settings: StoreSettings
    role: Role
    clock: Clock
    faults: FaultPoints
    schedule: Schedule
    soon: Schedule | None
    log: Any
    """Takes events."""
    thread: IndexThread
    listeners: Listeners = field(default_factory=Listeners)


@dataclass(slots=True, kw_only=True)
class Parts:
    """The parts of one opening."""

    opened: Opened
    confirm: Confirm
    reader: Reader
    guard: DiskGuard
    failure: Failure
    damage: DamageWatch
    jobs: Jobs
    index_flusher: IndexFlusher
    positions: ConfirmPositions
    writer: Writer | ReplicaWriter
    keys: KeyStore | None
    queues: Queues
    reading: Reading
    retention: Retention
    scrub: Scrub | None
    marks: Marks
    snapshots: Snapshots
    maintenance: Maintenance
    begun_position: int
    """Where the log ended when it was opened."""

    def metrics(self) -> dict[str, int]:
        """Return gauges and totals of the store."""
        log, index, positions = self.opened.log, self.opened.index, self.positions
        return {
            "begin_position": log.begin,
            "end_position": log.end,
            "flushed_position": positions.flushed,
            "confirm_position": positions.confirmed,
            "messages_total": self.writer.messages_total,
            "bytes_total": log.end - self.begun_position,
            "flushes_total": positions.flushes_total,
            "queues": self.opened.registry.count,
            "segments": len(log.segments),
            "index_runs": len(index.runs),
            "index_tail_entries": index.tail.count - index.tail.first,
            "index_runs_written_total": self.index_flusher.runs_written_total,
            "index_merges_total": self.index_flusher.merges_total,
            **self.retention.metrics(),
            "disk_free_bytes": self.guard.free_bytes,
            "disk_full": int(self.guard.full),
            "failed": int(self.failure.error is not None),
            **(self.keys.metrics() if self.keys is not None else {}),
            **self.damage.metrics(),
            **(self.scrub.metrics() if self.scrub is not None else {}),
        }


def mount(site: Site) -> Parts:
    """Recover the directory and make everything that works on it. Raises CorruptLog, LocalMisuse, OSError."""
    opened = Opening(
        site.directory, site.settings, site.faults, site.log, room_maker(site.thread, site.settings, site.faults),
        site.role,
    ).run()  # fmt: skip
    try:
        parts = _assembled(site, opened)
    except BaseException:
        opened.log.close()
        raise
    if not site.role.replica:
        parts.damage.settle(
            opened.mending, _carrier(parts.writer), lambda: parts.positions.take_flushed(opened.log.sync())
        )
    return parts


class _Foundation:
    """The lower half of the parts: what is needed before anything can be written or kept."""

    def __init__(self, site: Site, opened: Opened) -> None:
        settings, log, index = site.settings, opened.log, opened.index
        log.durable = log.end
        self.confirm = Confirm(opened.confirmed, index.tail, site.log)
        for group in opened.unconfirmed:
            self.confirm.add_group(group)
        opened.unconfirmed.clear()
        index.serve(log.end, opened.epoch, opened.registry.next_id, opened.confirmed if site.role.grouped else None)
        opened.registry.on_queue = index.set_floor
        self.reader = Reader(log, index, self.confirm, check=settings.check_on_read)
        self.guard = DiskGuard(
            site.directory, settings.free_space_bytes_min, settings.ballast_size_bytes, settings.segment_size_bytes,
            site.faults, site.log, lambda: log.capacity_end - log.begin,
        )  # fmt: skip
        self.failure = Failure(self.guard, self.confirm, site.log)
        failed = self.failure.background_failed
        self.jobs = Jobs(site.thread, failed)
        self.keys = KeyStore.open(
            site.directory, settings, log, self.reader, site.thread, site.faults, site.log, failed
        )
        self.damage = DamageWatch(site.directory, opened, self.reader, site.thread, failed, site.log)
        self.times = TimeSearch(log, index)


def _carrier(writer: Writer | ReplicaWriter) -> Append:
    """Return an append that works on a full disk too: it makes room, or copies what must not be lost."""

    def carry(placed: Placed, changes: Sequence[StateChange]) -> int:
        return writer.append((placed,), changes, atomic=True, essential=True).end_position

    return carry


def _assembled(site: Site, opened: Opened) -> Parts:
    base, grouped = _Foundation(site, opened), site.role.grouped
    log, index = opened.log, opened.index
    groups = WholeGroups(log.end) if site.role.replica else None
    positions = ConfirmPositions(
        log, index, base.confirm, base.failure, site.settings,
        FlushTools(
            clock=site.clock, schedule=site.schedule, soon=site.soon, busy=lambda: site.thread.pending > 0,
        ),
        site.listeners,
        limit=opened.confirmed if grouped else UNLIMITED, whole_below=groups.below if groups else None,
    )  # fmt: skip
    certain = (lambda: positions.certain) if grouped else None
    index_flusher = IndexFlusher(
        index, site.thread, log.sync, site.settings, site.faults, base.failure.background_failed, certain
    )
    path = WritePath(
        opened=opened, settings=site.settings, confirm=base.confirm, guard=base.guard, failure=base.failure,
        index_flusher=index_flusher, keys=base.keys, clock=site.clock, written=positions.take_written,
        prepare=lambda: base.jobs.start("prepare", log.prepare_next, preparing=True), armed=site.faults.armed,
    )  # fmt: skip
    writer = Writer(path) if groups is None else ReplicaWriter(site.directory, path, groups)
    return _with_upkeep(site, base, path, positions, writer)


def _with_upkeep(
    site: Site, base: _Foundation, path: WritePath, positions: ConfirmPositions, writer: Writer | ReplicaWriter
) -> Parts:
    opened, settings, index_flusher = path.opened, site.settings, path.index_flusher
    retention = Retention(
        settings, opened.log, opened.index, opened.tables, index_flusher, _carrier(writer), site.log,
        confirmed=lambda: base.confirm.position, full=lambda: base.guard.full,
    )  # fmt: skip
    retention.role = site.role
    rate = None if site.role.replica else settings.scrub_bytes_per_second
    scrub = None
    if rate != 0:
        scrub = Scrub(opened.log, site.thread, base.damage.scrubbed, base.failure.background_failed, rate)
    marks = Marks(
        site.directory, opened.mark, opened.epochs, opened.log.end, lambda: writer.last_store_ms, base.jobs
    )  # fmt: skip
    snapshots = Snapshots(
        site.directory / "state", opened, index_flusher, marks, base.jobs,
        log_bytes=settings.snapshot_log_bytes, confirmed=(lambda: positions.certain) if site.role.grouped else None,
    )  # fmt: skip
    return Parts(
        opened=opened, confirm=base.confirm, reader=base.reader, guard=base.guard, failure=base.failure,
        damage=base.damage, jobs=base.jobs, index_flusher=index_flusher, positions=positions, writer=writer,
        keys=base.keys,
        queues=Queues(opened.registry, opened.index, writer, base.failure),
        reading=Reading(opened.registry, opened.index, base.reader, base.times, base.damage),
        retention=retention, scrub=scrub, marks=marks, snapshots=snapshots,
        maintenance=Maintenance(
            opened.log, base.guard, site.thread, base.jobs, index_flusher, base.keys, retention, scrub, marks, snapshots
        ),
        begun_position=opened.log.end,
    )  # fmt: skip
