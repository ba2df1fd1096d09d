"""Opens a data directory: format, lock, log end, index, state, and only then the new epoch.

    lock FORMAT CHECKPOINT BALLAST | log/ | index/ | state/SNAPSHOT

Invariant: when it returns, everything recovered is on the disk, the bytes behind the end are zeros, and the raised
epoch is durable. A damaged index or snapshot is rebuilt from the log; a damaged log is refused and left as it is.
Thread rule: runs to its end before the store is used; the index thread may already run.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.store.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from broker.store.commit_log import CommitLog
from broker.store.errors import CorruptIndex, CorruptLog
from broker.store.queue_index.index import TAIL_NAME, QueueIndex
from broker.store.queue_index.manifest import Manifest, load_manifest
from broker.store.queue_index.tail import read_durable
from broker.store.queue_registry import QueueRegistry
from broker.store.recovery import Damage, Scan, decide_end
from broker.store.replayer import Replayer
from broker.store.scanner import scan_log
from broker.store.settings import StoreSettings
from broker.store.short_files import fill_short_files
from broker.store.state_snapshot import Snapshot, load_snapshot, restore
from broker.store.state_tables import StateTables
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


class Opening:
    """One opening of `directory`, which is locked and has our format.

    `make_room(index)` gives what empties a full tail during the replay. CorruptLog and OSError come out of `run`.
    """

    def __init__(
        self,
        directory: Path,
        settings: StoreSettings,
        faults: FaultPoints,
        events: Any,
        make_room: Callable[[QueueIndex], Callable[[int], None]],
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._events = events
        self._make_room = make_room
        self._checkpoint: Checkpoint | None = self._readable(lambda: load_checkpoint(directory))
        self._snapshot: Snapshot | None = self._readable(lambda: load_snapshot(directory / "state"))
        self._durable = self._proved_durable()
        self._keep_proof()
        fill_short_files(directory / "log", settings.segment_size_bytes, self._durable, events)
        zeroed = settings.flush == "sync"
        self._log = CommitLog(directory / "log", settings.segment_size_bytes, faults, zeroed=zeroed)
        if self._snapshot is not None and self._snapshot.position < self._log.begin:
            self._snapshot = None

    def _proved_durable(self) -> int:
        """Return how far files say the log was durable, before an unreadable index and its proofs are put aside."""
        index = self._directory / "index"
        manifest: Manifest | None = self._readable(lambda: load_manifest(index))
        return max(
            self._checkpoint.position if self._checkpoint else 0,
            self._snapshot.position if self._snapshot else 0,
            manifest.end_position if manifest else 0,
            read_durable(index / TAIL_NAME),
        )

    def _keep_proof(self) -> None:
        """Say in the checkpoint what only the index proves; this start makes a new one and may not live to confirm it.

        Epoch 0 in a checkpoint means that the records must tell.
        """
        epoch, position = (self._checkpoint.epoch, self._checkpoint.position) if self._checkpoint else (0, 0)
        if self._durable > position:
            self._checkpoint = Checkpoint(epoch, self._durable, clean=False)
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
            opened = self._recover(index, rebuilding)
        except CorruptIndex as error:
            if rebuilding:
                raise
            self._events.warning("index_rebuilt", reason=str(error))
            index.close()
            opened = self._recover(self._fresh_index(), rebuilding=True)
        self._log.release_pages()
        save_checkpoint(self._directory, Checkpoint(opened.epoch, self._log.end, clean=False))
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
        replayer = Replayer(index, tables, self._make_room(index), rebuilding=rebuilding)
        records = replayer.run(log, index_from, state_from, log.end)
        index.set_floors(tables.queues.next_offsets())
        epoch = max(scan.epoch, self._checkpoint.epoch if self._checkpoint else 0) + 1
        return Opened(log, index, tables, registry, epoch, scan.store_ms, state_from, records)

    def _settle_end(self, index: QueueIndex, start: int, known: int) -> Scan:
        """Find the end of the log, zero what lies behind it, and make everything recovered durable."""
        log, checkpoint = self._log, self._checkpoint
        if checkpoint is None or not checkpoint.epoch:
            start = log.begin  # no epoch is known: only the records can tell
        durable = max(known, index.proved_durable, self._durable)
        if start > log.capacity_end:
            raise CorruptLog(log.directory, log.capacity_end, f"the log files end there, {durable} bytes were durable")
        if checkpoint is not None and checkpoint.clean and checkpoint.position == start == durable:
            log.end = start
            return Scan(start, start, "", checkpoint.epoch, 0, 0)
        scan = scan_log(log, start)
        end = decide_end(scan, durable)
        if isinstance(end, Damage):
            segment = log.segment_at(end.position)
            raise CorruptLog(segment.path if segment else log.directory, end.position, end.reason)
        if log.cut(end.position):
            self._events.warning(
                "torn_tail_cut", position=end.position, reason=scan.reason, discarded_bytes=end.discarded_bytes
            )
        log.sync_from(start)
        return scan
