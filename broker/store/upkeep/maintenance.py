"""The store's upkeep, in bounded steps: next segment, mark, checkpoint, snapshot, retention, and the last things.

Invariant: mark, checkpoint and snapshot are saved only after the log is durable up to the position they name; in a
group a snapshot waits until that position is confirmed, because the log may be cut behind what is.
Thread rule: `step` and `settle` on the loop thread; what blocks goes to the index thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from broker.store.index.index_flusher import IndexFlusher
from broker.store.keys.key_store import KeyStore
from broker.store.log.checkpoint import Checkpoint, save_checkpoint
from broker.store.log.commit_log import CommitLog
from broker.store.log.disk_guard import FULL
from broker.store.log.durable_mark import DurableMark, Mark
from broker.store.log.epoch_file import Epoch
from broker.store.log.index_thread import IndexThread
from broker.store.settings import StoreSettings
from broker.store.state.state_snapshot import save_snapshot, snapshot_size
from broker.store.state.state_tables import FrozenTables, StateTables
from broker.store.upkeep.retention import Retention

CHECKPOINT_LOG_BYTES = 16 * 1024 * 1024
"""Log written between two checkpoints. The mark is noted at every step; this is its second copy."""
SNAPSHOT_LOG_SHARE = 4
"""At least so many times the size of the last snapshot is written to the log before the next one: a broker with much
state and much traffic must not spend its disk on snapshots. So the replay at a start is bounded by this or by
`snapshot_log_bytes`."""
RELEASE_PAGES_INTERVAL_MS = 30_000
"""How often pages of the log that were read are taken out of the resident memory."""


class Maintenance:
    """Upkeep of one store; `failed` hears of every background error."""

    def __init__(
        self,
        directory: Path,
        settings: StoreSettings,
        epochs: Sequence[Epoch],
        log: CommitLog,
        tables: StateTables,
        thread: IndexThread,
        index_flusher: IndexFlusher,
        retention: Retention,
        failed: Callable[[Exception], None],
        snapshot_position: int,
        mark: DurableMark,
        store_ms: Callable[[], int],
        keys: KeyStore | None = None,
        confirmed: Callable[[], int] | None = None,
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._epochs = epochs
        self._log = log
        self._tables = tables
        self._thread = thread
        self._index_flusher = index_flusher
        self._keys = keys
        self._retention = retention
        self._failed = failed
        self._mark = mark
        self._store_ms = store_ms
        self._marked = 0
        self._snapshot_position = self._snapshot_saved = snapshot_position
        self._snapshot_bytes = snapshot_size(directory / "state")
        self._checkpoint_position = log.end
        self._confirmed = confirmed
        self._frozen: tuple[Mark, FrozenTables] | None = None
        """A snapshot that waits to be confirmed."""
        self._running: set[str] = set()
        self._pages_released_ms = 0

    @property
    def _epoch(self) -> int:
        return self._epochs[-1][0] if self._epochs else 0

    def step(self, now_ms: int, flushed: int) -> None:
        """Start what is due; each kind of work runs at most once at a time."""
        log = self._log
        if abs(now_ms - self._pages_released_ms) >= RELEASE_PAGES_INTERVAL_MS:
            self._pages_released_ms = now_ms
            log.release_pages()
        if log.needs_next():
            self.prepare_next()
        share = SNAPSHOT_LOG_SHARE * self._snapshot_bytes
        self._thaw()
        if log.end - self._snapshot_position > max(self._settings.snapshot_log_bytes, share):
            self.snapshot()
        if flushed != self._marked:
            self._marked = flushed
            mark = Mark(self._epoch, flushed, self._store_ms())
            self._start("mark", lambda: self._mark.save(mark))
        if flushed - self._checkpoint_position > CHECKPOINT_LOG_BYTES:
            self._checkpoint_position = flushed
            checkpoint = Checkpoint(self._epoch, flushed, clean=False)
            self._start("checkpoint", lambda: save_checkpoint(self._directory, checkpoint))
        self._index_flusher.flush_if_full()
        self._retention.step(now_ms, flushed)
        if self._keys is not None:
            self._keys.step(self._index_flusher.covered, self._index_flusher.end_position)

    def prepare_next(self) -> None:
        """Start making the next log file."""
        self._start("prepare", self._log.prepare_next)

    def snapshot(self) -> None:
        """Start a snapshot of the state tables as they are now, unless one is being written."""
        if "snapshot" in self._running:
            return
        position = self._snapshot_position = self._index_flusher.end_position
        self._frozen = Mark(self._epoch, position, self._store_ms()), self._tables.freeze()
        self._thaw()

    def _thaw(self) -> None:
        """Write the snapshot that was taken once everything in it is confirmed."""
        if self._frozen is None or "snapshot" in self._running:
            return
        if self._confirmed is not None and self._confirmed() < self._frozen[0].position:
            return
        (mark, tables), self._frozen = self._frozen, None
        position = mark.position

        def write() -> None:
            self._log.sync()
            self._mark.save(mark)  # a start from this snapshot may see no record that tells the time
            self._snapshot_bytes = save_snapshot(self._directory / "state", position, tables)
            self._snapshot_saved = position

        self._start("snapshot", write)

    def settle(self) -> None:
        """Write the last run and the last snapshot, and wait for them; nothing is appended any more."""
        self._index_flusher.merging = False
        self._thread.drain()
        if not self._index_flusher.busy:
            self._index_flusher.flush()
        if self._keys is not None:
            self._keys.settle(self._index_flusher.end_position)
        if self._confirmed is not None and self._confirmed() < self._index_flusher.end_position:
            self._thaw()
        elif self._index_flusher.end_position != self._snapshot_saved:
            self.snapshot()
        self._thread.drain()

    def _start(self, name: str, job: Callable[[], None]) -> None:
        if name in self._running:
            return
        self._running.add(name)

        def done(_: Any, error: Exception | None) -> None:
            self._running.discard(name)
            # No room to prepare a file is no failure yet: there may be when it is needed, else that append says so.
            full = isinstance(error, OSError) and error.errno in FULL
            if error is not None and not (full and name == "prepare"):
                self._failed(error)

        self._thread.submit(job, done)
