"""What one open data directory is made of: `mount` makes its parts, `ReplicaLog` cuts them back where a replica must.

A replica cuts its log where it parts from its master's. In this order: what says that the log is durable, or has
anything, beyond the cut (tail file, MANIFESTs, SNAPSHOT, QUARANTINE, CHECKPOINT, DURABLE) is lowered; the log is cut,
newest file first, the rest zeroed; then EPOCHS. Then new parts are made of what is left.

Invariants: the parts are made in one order, from the recovered log up, and all are new after a cut; no part is changed
from outside once it is made. A cut is durable when it returns; a crash in between leaves a directory that opens, with
the former log or a beginning of it whose epochs are listed, so the same cut is found again.
Thread rule: loop thread; cutting blocks, with the parts of the store at rest.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import dropwhile
from pathlib import Path
from typing import Any

from broker.store.append.raw_part import RawPart
from broker.store.append.replica_writer import ReplicaWriter, WholeGroups, raw_part
from broker.store.append.writer import WritePath, Writer
from broker.store.confirm_positions import ConfirmPositions, FlushTools, Listeners
from broker.store.errors import CorruptIndex, CorruptLog
from broker.store.index.index_flusher import IndexFlusher, room_maker
from broker.store.index.queue_index import TAIL_NAME
from broker.store.index.reader import Reader, TimeSearch
from broker.store.index.run import MANIFEST_NAME, Run, load_manifest, run_path, save_manifest
from broker.store.keys.key_index import DIRECTORY as KEYS
from broker.store.keys.key_index import KeyRun, key_run_path, load_key_manifest, save_key_manifest
from broker.store.keys.key_store import KeyStore
from broker.store.log.commit_log import CommitLog, LogRepair
from broker.store.log.confirm import Confirm, Schedule
from broker.store.log.epoch_file import UNLIMITED, Epoch, Role, below, save_epochs
from broker.store.log.failure import DiskGuard, Failure
from broker.store.log.index_thread import IndexThread, Jobs, Workers
from broker.store.log.metadata import Checkpoint, Mark, lower_mark, save_checkpoint
from broker.store.placed import Placed
from broker.store.queues import Queues, Reading
from broker.store.recovery.log_end import DamagedRange, Quarantine, keep_torn_tail, load_quarantine, save_quarantine
from broker.store.recovery.opening import Opened, Opening
from broker.store.recovery.replayer import Passed
from broker.store.settings import StoreSettings
from broker.store.state.state_kinds import StateChange
from broker.store.state.state_tables import SNAPSHOT, load_snapshot
from broker.store.upkeep.damage import DamageWatch, Kept, Scrub
from broker.store.upkeep.ended_rows import EndedRows
from broker.store.upkeep.maintenance import Maintenance, Marks, Snapshots
from broker.store.upkeep.retention import Append, Retention
from remoting.native import core as native
from remoting.protocol.errors import LocalMisuse
from runtime.clock import Clock
from runtime.faults import FaultPoints
from runtime.files import fsync_dir


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
    workers: Workers
    thread: IndexThread
    passed: Passed | None = None
    """Is told how far the replay of the log is."""
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


def mount(site: Site, *, whole_to: int = 0) -> Parts:
    """Recover the directory and make everything that works on it; `whole_to` is where its log was just cut.

    Raises CorruptLog, LocalMisuse, OSError.
    """
    opened = Opening(
        site.directory, site.settings, site.faults, site.log, room_maker(site.thread, site.settings, site.faults),
        site.role, site.passed, whole_to=whole_to,
    ).run()  # fmt: skip
    parts: Parts | None = None
    try:
        parts = _assembled(site, opened)
        if not site.role.grouped:
            parts.damage.settle(_carrier(parts.writer), partial(_flushed, parts))
    except BaseException:
        if parts is not None:
            parts.positions.close()
        opened.index.close()
        opened.log.close()
        raise
    return parts


def _flushed(parts: Parts, _end: int, kept: Kept) -> None:
    parts.positions.take_flushed(parts.opened.log.sync())
    kept(None)


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
            site.directory, settings.free_space_bytes_min, settings.ballast_size_bytes, settings.largest_file_bytes,
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
            thread=site.workers.flush,
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
            opened.log, base.guard, site.thread, base.jobs, index_flusher, base.keys, retention, scrub, marks,
            snapshots, EndedRows(opened.tables.queues, opened.index, certain=lambda: positions.certain),
        ),
        begun_position=opened.log.end,
    )  # fmt: skip


class Truncation:
    """One cut of the data directory `directory`, whose log is open and not used by anything else now."""

    def __init__(
        self, directory: Path, log: CommitLog, epochs: Sequence[Epoch], faults: FaultPoints, events: Any
    ) -> None:
        self._directory = directory
        self._log = log
        self._epochs = epochs
        self._faults = faults
        self._events = events
        self.whole_to = 0
        """Where the log was cut, if a record ends there: what stands before is whole, unless it is damaged."""

    def cut_back(self, position: int) -> None:
        """Let the log end at `position`, which lies in it. Raises OSError."""
        log, kept = self._log, below(self._epochs, position)
        self._events.warning("log_truncated", position=position, dropped_bytes=log.end - position)
        whole_to = position if self._ends_at(position, self._lower(position)) else 0
        keep_torn_tail(log, self._directory, position, self._last(self._epochs), self._events)
        self._faults.hit("truncate.log")
        LogRepair(log).truncate(position)
        self.whole_to = whole_to
        self._faults.hit("truncate.epochs")
        self._settle(kept)

    def begin_anew(self, position: int) -> None:
        """Drop everything and let an empty log begin at `position`. Raises OSError."""
        log = self._log
        self._events.warning("log_reset", position=position, dropped_bytes=log.end - log.begin)
        self._lower(0)
        self._faults.hit("truncate.log")
        LogRepair(log).restart(position)
        self._faults.hit("truncate.epochs")
        self._settle([])

    def _ends_at(self, position: int, covered: int) -> bool:
        """Whether a record ends there, by the sizes of those behind what the index covers; yes if these are damaged."""
        segment = self._log.segment_at(position - 1)
        if segment is None:
            return False
        start, end = max(covered, self._log.begin, segment.base), min(segment.end, self._log.end)
        return native.core.record_end(segment.view, segment.base, start, position, end) in (position, -1)

    def _lower(self, position: int) -> int:
        """Remove every claim that there is a log from `position` on; returns up to where the index covers it."""
        _remove(self._directory / "index" / TAIL_NAME)
        self._faults.hit("truncate.tail")
        covered = lower_index(self._directory / "index", position)
        self._faults.hit("truncate.index")
        lower_keys(self._directory / KEYS, position)
        self._lower_snapshot(position)
        self._faults.hit("truncate.state")
        self._lower_quarantine(position)
        durable = min(covered, position)
        epoch = self._last(self._epochs)
        save_checkpoint(self._directory, Checkpoint(epoch, durable, clean=False))
        self._faults.hit("truncate.mark")
        lower_mark(self._directory, Mark(epoch, durable))
        return durable

    def _lower_snapshot(self, position: int) -> None:
        folder = self._directory / "state"
        try:
            snapshot = load_snapshot(folder)
        except CorruptIndex:
            return
        if snapshot is not None and snapshot.position > position:
            _remove(folder / SNAPSHOT)

    def _lower_quarantine(self, position: int) -> None:
        try:
            known = load_quarantine(self._directory)
        except CorruptIndex:
            known = Quarantine()
        left: list[DamagedRange] = [
            replace(each, end=min(each.end, position)) for each in known if each.start < position
        ]
        if left != list(known):
            save_quarantine(self._directory, left)

    def _settle(self, epochs: Sequence[Epoch]) -> None:
        """Save what is left of the epochs, and let no mark name one that was cut off."""
        save_epochs(self._directory, epochs)
        self._faults.hit("truncate.settle")
        last = self._last(epochs)
        save_checkpoint(self._directory, Checkpoint(last, self._log.begin, clean=False))
        lower_mark(self._directory, Mark(last, self._log.begin))

    @staticmethod
    def _last(epochs: Sequence[Epoch]) -> int:
        return epochs[-1][0] if epochs else 0


def lower_index(directory: Path, position: int) -> int:
    """Drop the runs of the queue index that hold anything from `position` on; return up to where the rest covers.

    Only where the offsets file does not cover what is removed; otherwise the next start builds the whole index again.
    Of a log that is dropped as a whole (`position` 0) all are removed: its queue offsets mean nothing for the next log.
    """
    if not position:
        _remove(directory / MANIFEST_NAME)
        return 0
    try:
        manifest = load_manifest(directory)
        if manifest is None:
            return 0
        runs = [Run(run_path(directory, file_id)) for file_id in manifest.runs]
    except (CorruptIndex, OSError):
        manifest, runs = None, []
    gone = list(dropwhile(lambda run: not _holds(run, position), runs))
    if manifest is not None and not gone and manifest.end_position <= position:
        return manifest.end_position
    older = manifest is not None and (not manifest.offsets_id or (gone and manifest.offsets_id < gone[0].file_id))
    if manifest is None or not older or any(run.level for run in gone):
        _remove(directory / MANIFEST_NAME)
        return 0
    end = min(gone[0].first_position, position) if gone else position
    kept = manifest.runs[: len(runs) - len(gone)]
    confirmed = manifest.confirmed_position
    if confirmed is not None and confirmed >= end:
        confirmed = None
    save_manifest(directory, replace(manifest, end_position=end, runs=kept, confirmed_position=confirmed))
    return end


def _holds(run: Run, position: int) -> bool:
    """Whether a run holds anything from `position` on: holes stand where damage begins, behind what was read there."""
    return run.end_position > position or bool((run.positions >= position).any())


def lower_keys(directory: Path, position: int) -> None:
    """Drop the runs of the key index that hold anything from `position` on; what is left of the log is read again."""
    try:
        manifest = load_key_manifest(directory)
        if manifest is None or manifest.end_position <= position:
            return
        runs = [KeyRun(key_run_path(directory, file_id)) for file_id in manifest.runs]
    except (CorruptIndex, OSError):
        shutil.rmtree(directory, ignore_errors=True)
        return
    gone = [run for run in runs if run.end_position > position]
    end = min(gone[0].first_position, position) if gone else position
    kept = manifest.runs[: len(runs) - len(gone)]
    save_key_manifest(directory, replace(manifest, end_position=end, runs=kept))


def _remove(path: Path) -> None:
    """Delete a file, durably, if it is there."""
    path.unlink(missing_ok=True)
    if path.parent.exists():
        fsync_dir(path.parent)


Change = Callable[[Truncation], None]


class ReplicaLog:
    """What replication needs of a store; `rebuild` changes the directory and makes new parts."""

    def __init__(self, site: Site, parts: Parts, rebuild: Callable[[Change], Parts]) -> None:
        self._site = site
        self._parts = parts
        self._rebuild = rebuild

    @property
    def is_replica(self) -> bool:
        """Whether the log grows by `append_raw` alone."""
        return self._site.role.replica

    @property
    def epochs(self) -> list[Epoch]:
        """(epoch, position of its first byte) of the log, oldest first; the last one may have no byte yet."""
        return list(self._parts.opened.epochs)

    @property
    def sound_end(self) -> int:
        """Where the first damage of the log begins that is known; its end when there is none."""
        log = self._parts.opened.log
        return max(log.begin, min([each.start for each in self._parts.damage.known()], default=log.end))

    def raw(self, position: int, bytes_max: int) -> RawPart | None:
        """Return the bytes from `position` on, None at the end of the log or of what can be walked; see `raw_part`.

        Raises LocalMisuse when `position` lies below the begin of the log.
        """
        try:
            return raw_part(self._parts.opened.log, self._parts.opened.epochs, position, bytes_max)
        except CorruptLog:
            self.examine(position)
            return None

    def settle_damage(self) -> None:
        """As the master of a group append what the damage took that the opening found: it goes on without it.

        Until then the log does not have these changes, which another member's may contradict.
        """
        self._parts.damage.settle(_carrier(self._parts.writer), self._parts.confirm.when_confirmed)

    def examine(self, position: int) -> None:
        """Search what stands from `position` on for damage, in the background, as a pass over the log does."""
        self._parts.damage.examine(position)

    def append_raw(self, part: RawPart) -> int:
        """Take over the next bytes of the master's log; return where the log ends then.

        Raises LocalMisuse (not a replica, or not the next bytes), RemoteViolation, StoreFull, StoreFailed.
        """
        writer = self._parts.writer
        if not isinstance(writer, ReplicaWriter):
            raise LocalMisuse("bytes of another log for a store that writes its own")
        return writer.append_raw(part)

    def truncate(self, position: int) -> None:
        """Let the log end at `position`, durably; everything that was made of the log follows, also `state` and `keys`.

        An epoch that starts there or behind has no byte left and goes. Where `position` lies within a group the log
        ends before it: ask `end_position`. Raises LocalMisuse (not a replica, or outside of the log), OSError.
        """
        self._check_replica()
        log, epochs = self._parts.opened.log, self._parts.opened.epochs
        if not log.begin <= position <= log.end:
            raise LocalMisuse(f"cut at {position} of a log from {log.begin} to {log.end}")
        kept = below(epochs, position)
        if position == log.end:
            if kept != epochs:
                save_epochs(self._site.directory, kept)
                epochs[:] = kept
            return
        limit = self._parts.positions.limit
        self._parts = self._rebuild(lambda change: change.cut_back(position))
        self._parts.positions.limit_confirm(min(limit, position))

    def reset(self, position: int) -> None:
        """Drop everything and begin again at `position`, where the master's log begins. Raises LocalMisuse, OSError."""
        self._check_replica()
        if position < 0 or position % 8:
            raise LocalMisuse(f"no log begins at {position}")
        self._parts = self._rebuild(lambda change: change.begin_anew(position))

    def _check_replica(self) -> None:
        if not self.is_replica:
            raise LocalMisuse("only the log of a replica is cut")
        if self._parts.failure.error is not None:
            raise self._parts.failure.error
