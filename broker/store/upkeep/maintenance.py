"""The store's upkeep, in bounded steps: next segment, mark, checkpoint, snapshot, retention, rows, and the last things.

Invariant: mark, checkpoint and snapshot are saved only after the log is durable up to the position they name; in a
group a snapshot waits until that position is confirmed, because the log may be cut behind what is.
Thread rule: `step` and `settle` on the loop thread; what blocks goes to the index thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from broker.store.index.index_flusher import IndexFlusher
from broker.store.keys.key_store import KeyStore
from broker.store.log.commit_log import CommitLog
from broker.store.log.epoch_file import Epoch
from broker.store.log.failure import DiskGuard
from broker.store.log.index_thread import IndexThread, Jobs
from broker.store.log.metadata import Checkpoint, DurableMark, Mark, save_checkpoint
from broker.store.recovery.opening import Opened
from broker.store.state.state_tables import FrozenTables, save_snapshot, snapshot_size
from broker.store.upkeep.damage import Scrub
from broker.store.upkeep.ended_rows import EndedRows
from broker.store.upkeep.retention import Retention

CHECKPOINT_LOG_BYTES = 16 * 1024 * 1024
"""Log written between two checkpoints. The mark is noted at every step; this is its second copy."""
SNAPSHOT_LOG_SHARE = 4
"""At least so many times the size of the last snapshot is written to the log before the next one: a broker with much
state and much traffic must not spend its disk on snapshots. So the replay at a start is bounded by this or by
`snapshot_log_bytes`."""
RELEASE_PAGES_INTERVAL_MS = 30_000
"""How often pages of the log that were read are taken out of the resident memory."""


class Marks:
    """Notes how far the log is durable: in the mark at every step, in the checkpoint now and then."""

    def __init__(
        self,
        directory: Path,
        mark: DurableMark,
        epochs: Sequence[Epoch],
        position: int,
        store_ms: Callable[[], int],
        jobs: Jobs,
    ) -> None:
        self._directory = directory
        self._mark = mark
        self._epochs = epochs
        self._store_ms = store_ms
        self._jobs = jobs
        self._marked = 0
        self._checkpoint_position = position

    @property
    def epoch(self) -> int:
        """The epoch that writes the log, or wrote the last of it; 0 for the empty log of a replica."""
        return self._epochs[-1][0] if self._epochs else 0

    def at(self, position: int) -> Mark:
        """Return the mark for a log that is durable up to `position`."""
        return Mark(self.epoch, position, self._store_ms())

    def save(self, mark: Mark) -> None:
        """Write a mark now, in the index thread. Raises OSError."""
        self._mark.save(mark)

    def step(self, flushed: int) -> None:
        """Start to note that everything below `flushed` is durable."""
        if flushed != self._marked:
            self._marked = flushed
            mark = self.at(flushed)
            self._jobs.start("mark", lambda: self._mark.save(mark))
        if flushed - self._checkpoint_position > CHECKPOINT_LOG_BYTES:
            self._checkpoint_position = flushed
            checkpoint = Checkpoint(self.epoch, flushed, clean=False)
            self._jobs.start("checkpoint", lambda: save_checkpoint(self._directory, checkpoint))

    def close(self, flushed: int, *, clean: bool) -> None:
        """Write the last checkpoint; `clean`: the log ends at `flushed`. Raises OSError."""
        save_checkpoint(self._directory, Checkpoint(self.epoch, flushed, clean=clean))


class Snapshots:
    """Writes the state tables, each time so much log has been written that a start would replay for long."""

    def __init__(
        self,
        directory: Path,
        opened: Opened,
        index_flusher: IndexFlusher,
        marks: Marks,
        jobs: Jobs,
        *,
        log_bytes: int,
        confirmed: Callable[[], int] | None,
    ) -> None:
        """`directory` is that of the state, `log_bytes` the least of the log between two; `confirmed`: see `write`."""
        self._directory = directory
        self._log = opened.log
        self._tables = opened.tables
        self._index_flusher = index_flusher
        self._marks = marks
        self._jobs = jobs
        self._log_bytes = log_bytes
        self._confirmed = confirmed
        self._taken = self.saved_position = opened.snapshot_position
        self._size_bytes = snapshot_size(directory)
        self._frozen: tuple[Mark, FrozenTables] | None = None
        """A snapshot that waits to be confirmed."""

    def step(self) -> None:
        """Start one when it is due."""
        self.write()
        if self._log.end - self._taken > max(self._log_bytes, SNAPSHOT_LOG_SHARE * self._size_bytes):
            self.take()

    def take(self) -> None:
        """Start a snapshot of the state tables as they are now, unless one is being written."""
        if self._jobs.running("snapshot"):
            return
        position = self._taken = self._index_flusher.end_position
        self._frozen = self._marks.at(position), self._tables.freeze()
        self.write()

    def write(self) -> None:
        """Write the snapshot that was taken, in a group once everything in it is confirmed."""
        if self._frozen is None or self._jobs.running("snapshot"):
            return
        if self._confirmed is not None and self._confirmed() < self._frozen[0].position:
            return
        (mark, tables), self._frozen = self._frozen, None

        def write() -> None:
            self._log.sync()
            self._marks.save(mark)  # a start from this snapshot may see no record with a store time
            self._size_bytes = save_snapshot(self._directory, mark.position, tables)
            self.saved_position = mark.position

        self._jobs.start("snapshot", write)

    def settle(self) -> None:
        """Start the last one; nothing is appended any more."""
        end = self._index_flusher.end_position
        if self._confirmed is not None and self._confirmed() < end:
            self.write()
        elif end != self.saved_position:
            self.take()


class Maintenance:
    """Upkeep of one store."""

    def __init__(
        self,
        log: CommitLog,
        guard: DiskGuard,
        thread: IndexThread,
        jobs: Jobs,
        index_flusher: IndexFlusher,
        keys: KeyStore | None,
        retention: Retention,
        scrub: Scrub | None,
        marks: Marks,
        snapshots: Snapshots,
        ended_rows: EndedRows,
    ) -> None:
        self._log = log
        self._guard = guard
        self._thread = thread
        self._jobs = jobs
        self._index_flusher = index_flusher
        self._keys = keys
        self._retention = retention
        self._scrub = scrub
        self._marks = marks
        self._snapshots = snapshots
        self._ended_rows = ended_rows
        self._pages_released_ms = 0

    def step(self, now_ms: int, flushed: int) -> bool:
        """Start what is due, each kind of work at most once at a time; return whether there is more to do."""
        log = self._log
        self._guard.check()
        if abs(now_ms - self._pages_released_ms) >= RELEASE_PAGES_INTERVAL_MS:
            self._pages_released_ms = now_ms
            log.release_pages()
        if log.needs_next():
            self._jobs.start("prepare", log.prepare_next, preparing=True)
        self._snapshots.step()
        self._marks.step(flushed)
        self._index_flusher.flush_if_full()
        self._retention.step(now_ms, flushed)
        self._ended_rows.step()
        if self._keys is not None:
            self._keys.step(self._index_flusher.covered, self._index_flusher.end_position)
        if self._scrub is not None:
            self._scrub.step(now_ms, flushed)
        return self._retention.working or (self._scrub is not None and self._scrub.working)

    def settle(self) -> None:
        """Write the last run and the last snapshot, and wait for them; nothing is appended any more."""
        self._index_flusher.merging = False
        self._thread.drain()
        if not self._index_flusher.busy:
            self._index_flusher.flush()
        if self._keys is not None:
            self._keys.settle(self._index_flusher.end_position)
        self._snapshots.settle()
        self._thread.drain()
