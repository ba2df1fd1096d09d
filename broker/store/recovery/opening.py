"""Opens a data directory: format, lock, log end, index, state, and only then the new epoch.

    lock FORMAT CHECKPOINT QUARANTINE BALLAST | log/ | index/ | state/SNAPSHOT | quarantine/

Invariant: when it returns, everything recovered is on the disk, the bytes behind the end are zeros, and the raised
epoch is durable. A damaged index or snapshot is rebuilt from the log; damage of the log below its durable position is
left as it is and walked around (`quarantine`) or, by `damage_policy`, refused with no log file changed.
Thread rule: runs to its end before the store is used; the index thread may already run.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.store.errors import CorruptIndex, CorruptLog
from broker.store.index.index_flusher import RoomMaker
from broker.store.index.queue_index import TAIL_NAME, FormerTail, QueueIndex
from broker.store.index.run import Covered, Manifest, hide, load_manifest, unconfirmed_entries
from broker.store.index.tail import read_durable
from broker.store.log.commit_log import CommitLog, LogRepair, TakenGroup, whole_groups
from broker.store.log.epoch_file import Epoch, EpochsFound, Role
from broker.store.log.metadata import Checkpoint, DurableMark, Mark, load_checkpoint, load_mark, save_checkpoint
from broker.store.recovery.log_end import (
    Damage,
    DamagedRange,
    LogEnd,
    Quarantine,
    Scan,
    decide_end,
    durable_cuts,
    find_short_files,
    keep_torn_tail,
    load_quarantine,
    save_quarantine,
    scan_over_damage,
)
from broker.store.recovery.replayer import NamesSeen, Passed, Replayer, Stretch, count_below, floors_or_holes, mend
from broker.store.settings import StoreSettings
from broker.store.state.state_kinds import StateChange
from broker.store.state.state_tables import QueueRegistry, Snapshot, StateTables, load_snapshot, restore
from remoting.native.contracts import CONFIRMED
from runtime.faults import FaultPoints


@dataclass(slots=True)
class Opened:
    """The recovered parts of a store."""

    log: CommitLog
    index: QueueIndex
    tables: StateTables
    registry: QueueRegistry
    epoch: int
    store_ms: int
    snapshot_position: int
    replayed_records: int
    mark: DurableMark
    quarantine: Quarantine
    mending: list[StateChange]
    """What must be appended before anything else, because damage took it from the log."""
    epochs: list[Epoch]
    """Which epoch wrote what, the one of this start included."""
    confirmed: int
    """Everything below it counts as confirmed."""
    unconfirmed: list[TakenGroup]
    """What is in the log behind that, of a group of replicas."""


class Opening:
    """One opening of `directory`, which is locked and has our format.

    `make_room` gives what empties a full tail during the replay, `passed` is told how far that is. CorruptLog and
    OSError come out of `run`.
    """

    def __init__(
        self,
        directory: Path,
        settings: StoreSettings,
        faults: FaultPoints,
        events: Any,
        make_room: RoomMaker,
        role: Role | None = None,
        passed: Passed | None = None,
        *,
        whole_to: int = 0,
    ) -> None:
        """`whole_to`: this process has just cut the log there, so what fails before it is damage and no torn tail."""
        self._whole_to = whole_to
        self._role = role or Role()
        self._passed = passed
        self._directory = directory
        self._settings = settings
        self._events = events
        self._make_room = make_room
        self._checkpoint: Checkpoint | None = self._readable(lambda: load_checkpoint(directory))
        self._snapshot: Snapshot | None = self._readable(lambda: load_snapshot(directory / "state"))
        self._marked: Mark = self._readable(lambda: load_mark(directory)) or Mark()
        self._former = FormerTail(directory / "index" / TAIL_NAME)
        self._quarantine: Quarantine = self._readable(lambda: load_quarantine(directory)) or Quarantine()
        self._durable = self._proved_durable()
        self._keep_proof()
        first, most = settings.first_file_bytes, settings.largest_file_bytes
        if self._role.replica:
            first = most = 0  # a replica's files are what the master's are
        self._short = find_short_files(directory / "log", first, most, self._durable)
        self._log = CommitLog(
            directory / "log", settings.largest_file_bytes, faults, zeroed=settings.flush == "sync",
            lacking=[file.base for file in self._short], first_size=settings.first_file_bytes,
        )  # fmt: skip
        self._mark = DurableMark(directory)
        if self._snapshot is not None and self._snapshot.position < self._log.begin:
            self._snapshot = None

    def _proved_durable(self) -> int:
        """Return how far the log was durable by its files, before an unreadable index and its proofs are put aside."""
        index = self._directory / "index"
        manifest: Manifest | None = self._readable(lambda: load_manifest(index))
        return max(
            self._checkpoint.position if self._checkpoint else 0,
            self._marked.position,
            self._snapshot.position if self._snapshot else 0,
            manifest.end_position if manifest else 0,
            read_durable(index / TAIL_NAME),
        )

    @property
    def _known_epoch(self) -> int:
        """The epoch of the last start, 0 when neither of its two copies can be read."""
        return max(self._checkpoint.epoch if self._checkpoint else 0, self._marked.epoch)

    @property
    def _clean(self) -> bool:
        """Whether the last start was closed properly; a mark of a later start shows that it was not."""
        checkpoint = self._checkpoint
        return (
            checkpoint is not None
            and checkpoint.clean
            and (checkpoint.epoch, checkpoint.position) == (self._known_epoch, self._durable)
        )

    def _keep_proof(self) -> None:
        """Say in the checkpoint what only the index proves; this start makes a new one and may not live to confirm it.

        Epoch 0 in a checkpoint: it has to be read from the records.
        """
        if self._durable > (self._checkpoint.position if self._checkpoint else 0):
            self._checkpoint = Checkpoint(self._known_epoch, self._durable, clean=False)
            save_checkpoint(self._directory, self._checkpoint)

    def run(self) -> Opened:
        """Recover; the parts are ready for the first append."""
        try:
            return self._run()
        except BaseException:
            self._log.close()
            raise

    def _run(self) -> Opened:
        index, rebuilding = self._open_index()
        try:
            return self._begin(index, rebuilding)
        except CorruptIndex as error:
            if rebuilding:
                raise
            self._events.warning("index_rebuilt", reason=str(error))
        return self._begin(self._fresh_index(), rebuilding=True)

    def _begin(self, index: QueueIndex, rebuilding: bool) -> Opened:
        try:
            opened = self._recover(index, rebuilding)
            self._log.release_pages()
            self._mark.save(Mark(opened.epoch, self._log.end, opened.store_ms))
            save_checkpoint(self._directory, Checkpoint(opened.epoch, self._log.end, clean=False))
        except BaseException:
            index.close()
            raise
        return opened

    def _readable(self, load: Callable[[], Any]) -> Any:
        """Return what `load` gives; an unreadable file that the log can replace counts as absent, and is reported."""
        try:
            return load()
        except CorruptIndex as error:
            self._events.warning("metadata_unreadable", reason=str(error))
            return None

    def _open_index(self) -> tuple[QueueIndex, bool]:
        begin = self._log.begin
        try:
            index = QueueIndex(self._directory / "index", self._settings.index_tail_entries, begin)
        except CorruptIndex as error:
            self._events.warning("index_rebuilt", reason=str(error))
            return self._fresh_index(), True
        if 0 < index.manifest.end_position < begin:  # the log has lost what the index has not seen yet
            index.close()
            return self._fresh_index(), True
        return index, index.manifest.end_position == 0

    def _fresh_index(self) -> QueueIndex:
        """Start an empty index; the unreadable one is kept beside it until the next rebuild."""
        directory = self._directory / "index"
        kept = directory.with_name("index.unreadable")
        shutil.rmtree(kept, ignore_errors=True)
        with suppress(FileNotFoundError):
            directory.rename(kept)
        return QueueIndex(directory, self._settings.index_tail_entries, self._log.begin)

    def _recover(self, index: QueueIndex, rebuilding: bool) -> Opened:
        log, snapshot = self._log, self._snapshot
        index_from = max(index.manifest.end_position, log.begin)
        state_from = snapshot.position if snapshot else log.begin
        scan = self._settle_end(index, min(index_from, state_from), max(index_from, state_from))
        tables = StateTables()
        registry = QueueRegistry(tables)
        if snapshot is not None:
            restore(snapshot, tables)
        blocks: list[Covered] = []
        confirmed = self._hide(index, blocks)
        # A replica may have begun where its master's log began: queues of which it has seen nothing yet start at a
        # higher offset.
        late = rebuilding or (self._role.grouped and log.begin > 0)
        replayer = Replayer(index, tables, self._make_room(index, confirmed), rebuilding=late)
        if confirmed is not None:
            replayer.on_entries = lambda entries, end: blocks.append((entries, end))
        if (passed := self._passed) is not None:
            first = min(index_from, state_from)
            replayer.on_position = lambda position: passed(position - first, log.end - first)
        seen = NamesSeen(tables) if scan.gaps else None
        records = replayer.run(log, Stretch(index_from, state_from, log.end, scan.gaps))
        mending = self._mend(index, tables, replayer, seen)
        confirmed, unconfirmed = self._unconfirmed(index, confirmed, blocks)
        store_ms = max(scan.store_ms, self._marked.store_ms)
        epochs = EpochsFound(self._directory, log, scan.epoch, self._known_epoch, self._events).settle(self._role)
        return Opened(
            log, index, tables, registry, epochs[-1][0] if epochs else 0, store_ms, state_from, records, self._mark,
            self._quarantine, mending, epochs, confirmed, unconfirmed,
        )  # fmt: skip

    def _hide(self, index: QueueIndex, blocks: list[Covered]) -> int | None:
        """Return up to where a group has confirmed the log, and put what the runs hold behind that into `blocks`.

        Runs and snapshots are made of what is confirmed; of a run that took more the MANIFEST knows. None: this
        is no group, and everything is confirmed.
        """
        if not self._role.grouped:
            return None
        manifest, snapshot = index.manifest, self._snapshot
        confirmed = max(manifest.confirmed, snapshot.position if snapshot else 0, self._log.begin)
        if confirmed < manifest.end_position:
            blocks += unconfirmed_entries(index.runs, confirmed, manifest.end_position)
            hide(index.tail.row_column(CONFIRMED), blocks)
        return min(confirmed, self._log.end)

    def _unconfirmed(
        self, index: QueueIndex, confirmed: int | None, blocks: list[Covered]
    ) -> tuple[int, list[TakenGroup]]:
        """Return up to where all is confirmed, and what is not."""
        if confirmed is None:
            return self._log.end, []
        before, behind = [], []
        for block, position in blocks:
            count = len(block) if position <= confirmed else count_below(block, confirmed)
            if count:
                before.append(block.slice(0, count))
            if count < len(block) or position > confirmed:
                behind.append((block.slice(count, len(block)), position))
        index.tail.ring.confirm(before)
        return confirmed, whole_groups(self._log, confirmed, behind)

    def _mend(
        self, index: QueueIndex, tables: StateTables, replayer: Replayer, seen: NamesSeen | None
    ) -> list[StateChange]:
        """Let queues continue where they were; return the changes to append because of newly found damage."""
        if not len(self._quarantine):
            index.set_floors(tables.queues.next_offsets())
            return []
        floors_or_holes(index, tables, replayer, max(each.start for each in self._quarantine))
        fresh = [(each.start, each.end) for each in self._quarantine if not each.settled]
        return mend(index, tables, replayer, seen, fresh, self._log.begin, self._former) if fresh else []

    def _settle_end(self, index: QueueIndex, start: int, known: int) -> Scan:
        """Find the end of the log, zero what lies behind it, and make everything recovered durable."""
        log = self._log
        durable = max(known, index.proved_durable, self._durable)
        start = self._scan_start(start, durable)
        if self._clean and not self._short and self._durable == start == durable:
            log.end = start
            return Scan(start, start, "", self._known_epoch, 0, 0)
        scan, found = self._scan(start, durable)
        end = decide_end(scan, durable, keep_parts=self._salvages, whole_to=self._whole_to)
        if isinstance(end, Damage):
            segment = log.segment_at(end.position)
            raise CorruptLog(segment.path if segment else log.directory, end.position, end.reason)
        self._quarantine_ranges(found)
        self._fill()
        self._cut(end, scan)
        LogRepair(log).sync_from(start)
        return scan

    def _scan_start(self, start: int, durable: int) -> int:
        """Return from where on the log must be checked. Raises CorruptLog when durable bytes have no file."""
        log = self._log
        if not self._known_epoch:
            start = log.begin  # only the records have it
        for file in durable_cuts(self._short, durable):
            if not self._salvages:
                raise CorruptLog(file.path, file.cut, "the file is cut off there")
            start = min(start, file.base)
        if start > log.capacity_end:
            raise CorruptLog(log.directory, log.capacity_end, f"the log files end there, {durable} bytes were durable")
        return start

    @property
    def _salvages(self) -> bool:
        return self._settings.damage_policy == "quarantine"

    def _scan(self, start: int, durable: int) -> tuple[Scan, list[DamagedRange]]:
        """Scan; only under the policy to quarantine over damage that is not known yet."""
        sizes = {file.base: file.full_size for file in self._short}
        last = self._log.segments[-1] if self._log.segments else None
        room = 0 if last is None else last.base + sizes.get(last.base, last.size)
        known = max(durable, self._whole_to) if self._salvages else 0
        return scan_over_damage(self._log, start, known, self._quarantine, room)

    def _quarantine_ranges(self, found: list[DamagedRange]) -> None:
        """Note new damage durably and loudly before anything relies on it; forget what has expired."""
        fresh = [each for each in found if self._quarantine.add(each)]
        for each in fresh:
            segment = self._log.segment_at(each.start)
            self._events.error(
                "log_damage_quarantined", file=str(segment.path if segment else self._log.directory),
                start=each.start, end=each.end, bytes=each.end - each.start, reason=each.reason,
            )  # fmt: skip
        if self._quarantine.drop_before(self._log.begin) or fresh:
            save_quarantine(self._directory, self._quarantine)

    def _fill(self) -> None:
        """Give short files their full size once it is decided that the log continues."""
        LogRepair(self._log).fill({file.base: file.full_size for file in self._short})
        for file in self._short:
            missing = file.full_size - file.size
            self._events.warning("short_log_file_filled", file=file.path.name, missing_bytes=missing)
        self._short = []

    def _cut(self, end: LogEnd, scan: Scan) -> None:
        """Zero what is torn, after a copy was put aside."""
        keep_torn_tail(self._log, self._directory, end.position, scan.epoch, self._events)
        if LogRepair(self._log).cut(end.position):
            self._events.warning(
                "torn_tail_cut", position=end.position, reason=scan.reason, discarded_bytes=end.discarded_bytes
            )
