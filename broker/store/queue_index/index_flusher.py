"""Moves the tail into runs and small runs into larger ones, in the index thread.

A run is made when the tail holds `flush_entries`: sort, write, fsync, then fdatasync of the log, then the MANIFEST.
Invariant: one job at a time, so the MANIFEST has one author; a failed job leaves the tail and the runs as they were.
Thread rule: methods on the loop thread, `_write`/`_merge`/`_drop` in the index thread on what they were given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from broker.store.index_thread import IndexThread
from broker.store.queue_index.index import QueueIndex, Sealed
from broker.store.queue_index.manifest import Manifest, offsets_path, save_manifest, save_offsets
from broker.store.queue_index.run import Run, merge_runs, run_path, sort_entries, write_run
from broker.store.settings import StoreSettings
from runtime.faults import FaultPoints


class IndexFlusher:
    """Keeps the tail small and the runs few."""

    def __init__(
        self,
        index: QueueIndex,
        thread: IndexThread,
        sync_log: Callable[[], int],
        settings: StoreSettings,
        faults: FaultPoints,
        on_failed: Callable[[Exception], None],
    ) -> None:
        self._index = index
        self._thread = thread
        self._sync_log = sync_log
        self._settings = settings
        self._flush_entries = settings.flush_entries
        self._faults = faults
        self._on_failed = on_failed
        self.busy = False
        self.merging = True
        self.runs_written_total = 0
        self.merges_total = 0

    def flush_if_full(self) -> None:
        """Start a run when the tail has gathered enough."""
        tail = self._index.tail
        if not self.busy and tail.count - tail.first >= self._flush_entries:
            self.flush()

    def make_room(self, entries: int) -> None:
        """Wait until the tail takes `entries` more; the loop pays only when the index thread cannot keep up."""
        while self._index.tail.room < entries:
            if self.busy:  # perhaps with a merge or with dropping runs, which make no room
                self._thread.drain()
                continue
            before = self._index.tail.first
            self.flush()
            self._thread.drain()
            if self._index.tail.first == before:
                raise OSError(f"{self._index.directory}: the index tail is full and no run could be written")

    def flush(self) -> None:
        """Write the whole tail as a run, in the background."""
        assert not self.busy
        if self._index.end_position == self._index.manifest.end_position:
            return
        sealed, manifest, runs = self._index.seal(), self._index.manifest, list(self._index.runs)
        next_offsets = self._index.flushed_next.copy()
        self._start(
            lambda: self._write(sealed, manifest, runs, next_offsets),
            lambda made: self._installed(sealed.number, *made),
        )

    def _start(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.busy = True

        def finished(result: Any, error: Exception | None) -> None:
            self.busy = False
            if error is not None:
                self._on_failed(error)
            else:
                done(result)

        self._thread.submit(job, finished)

    def _write(
        self, sealed: Sealed, manifest: Manifest, runs: Sequence[Run], next_offsets: Any
    ) -> tuple[Manifest, Run | None]:
        run = None
        file_id = manifest.next_file_id
        directory = self._index.directory
        if len(sealed.columns[0]):
            offsets, columns = sort_entries(sealed.columns)
            self._faults.hit("index.write")
            write_run(run_path(directory, file_id), file_id, 0, (sealed.first, sealed.end), offsets, columns)
            run = Run(run_path(directory, file_id))
            next_offsets[run.queues] = run.next_offsets()
        save_offsets(offsets_path(directory, file_id + 1), next_offsets)
        self._sync_log()
        made = Manifest(
            next_file_id=file_id + 2,
            end_position=sealed.end,
            offsets_id=file_id + 1,
            runs=(*(old.file_id for old in runs), *((run.file_id,) if run else ())),
        )
        self._faults.hit("index.manifest")
        save_manifest(directory, made)
        if manifest.offsets_id:
            offsets_path(directory, manifest.offsets_id).unlink(missing_ok=True)
        return made, run

    def _installed(self, number: int, manifest: Manifest, run: Run | None) -> None:
        self.runs_written_total += run is not None
        self._index.install(manifest, run, number)
        self.merge_if_many()
        self.flush_if_full()

    def merge_if_many(self) -> None:
        """Start a merge when enough neighbouring runs of one level are there and their sum stays within the bound."""
        if self.busy or not self.merging:
            return
        group = choose_merge(
            [(run.level, run.entry_count) for run in self._index.runs],
            self._settings.index_merge_runs,
            self._settings.index_merge_entries_max,
        )
        if group is None:
            return
        old, all_runs = self._index.runs[group[0] : group[1]], list(self._index.runs)
        manifest = self._index.manifest
        self._start(
            lambda: self._merge(old, all_runs, group, manifest), lambda made: self._merged(old, made[0], made[1])
        )

    def _merge(
        self, old: Sequence[Run], runs: list[Run], group: tuple[int, int], manifest: Manifest
    ) -> tuple[Manifest, Run]:
        file_id = manifest.next_file_id
        path = run_path(self._index.directory, file_id)
        offsets, columns = merge_runs(old)
        self._faults.hit("index.write")
        bounds = (old[0].first_position, old[-1].end_position)
        write_run(path, file_id, old[0].level + 1, bounds, offsets, columns)
        run = Run(path)
        runs[group[0] : group[1]] = [run]
        made = Manifest(file_id + 1, manifest.end_position, manifest.offsets_id, tuple(r.file_id for r in runs))
        save_manifest(self._index.directory, made)
        for gone in old:
            gone.path.unlink(missing_ok=True)
        return made, run

    def _merged(self, old: Sequence[Run], manifest: Manifest, run: Run) -> None:
        self.merges_total += 1
        self._index.replace_runs(manifest, old, [run])
        self.merge_if_many()
        self.flush_if_full()

    def drop_runs(self, gone: Sequence[Run]) -> None:
        """Delete runs (the oldest ones) that hold nothing that is still in the log; retried later while busy."""
        if self.busy or not gone:
            return
        manifest = self._index.manifest_with(self._index.runs[len(gone) :])
        self._start(lambda: self._drop(manifest, gone), lambda made: self._index.replace_runs(made, gone, []))

    def _drop(self, manifest: Manifest, gone: Sequence[Run]) -> Manifest:
        save_manifest(self._index.directory, manifest)
        for run in gone:
            run.path.unlink(missing_ok=True)
        return manifest


def choose_merge(runs: Sequence[tuple[int, int]], count: int, entries_max: int) -> tuple[int, int] | None:
    """Return the bounds [first, end) of the oldest `count` neighbouring runs of one level to merge, or None.

    `runs` are (level, entries), oldest first. A group whose sum passes `entries_max` is left as it is for ever.
    """
    for first in range(len(runs) - count + 1):
        group = runs[first : first + count]
        same_level = all(level == group[0][0] for level, _ in group)
        if same_level and sum(entries for _, entries in group) <= entries_max:
            return first, first + count
    return None
