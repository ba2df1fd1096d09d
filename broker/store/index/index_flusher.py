"""Moves the tail into runs and small runs into larger ones, in the index thread.

A run is made when the tail holds `flush_entries`: sort, write, fsync, then fdatasync of the log, then the MANIFEST.
In a group of replicas a run takes only what is confirmed, because the log may be cut behind that; when the tail is full
and nothing more gets confirmed it takes all, and the MANIFEST records up to where it is confirmed.
Invariant: one job at a time, so the MANIFEST has one author; a failed job leaves the tail and the runs as they were.
Thread rule: methods on the loop thread, `_write`/`_merge`/`_drop` in the index thread on what they were given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from broker.store.index.queue_index import QueueIndex, Sealed
from broker.store.index.run import (
    Floors,
    Manifest,
    Run,
    merge_runs,
    next_offsets_of,
    offsets_path,
    run_path,
    save_manifest,
    save_offsets,
    write_run,
)
from broker.store.log.index_thread import RUNS, IndexThread, Jobs
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
        confirmed: Callable[[], int] | None = None,
    ) -> None:
        self._index = index
        self._confirmed = confirmed
        self._thread = thread
        self._sync_log = sync_log
        self._settings = settings
        self._flush_entries = settings.flush_entries
        self._faults = faults
        self._jobs = Jobs(thread, on_failed)
        self.merging = True
        self.runs_written_total = 0
        self.merges_total = 0

    @property
    def busy(self) -> bool:
        """Whether a run is being written, merged or dropped."""
        return self._jobs.running(RUNS)

    @property
    def covered(self) -> int:
        """Log position below which the runs have every entry."""
        return self._index.manifest.end_position

    def flush_if_full(self) -> None:
        """Start a run when the tail has gathered enough."""
        tail = self._index.tail
        if tail.count - tail.first >= self._flush_entries and not self.busy and self._enough():
            self.flush()

    def _enough(self) -> bool:
        """Whether what may go into a run is worth one: many small ones would be merged again and again."""
        tail = self._index.tail
        least = min(self._flush_entries, tail.capacity // 4)
        return self._confirmed is None or tail.number_at(self._confirmed()) - tail.first >= least

    def make_room(self, entries: int) -> None:
        """Wait until the tail takes `entries` more; the loop pays only when the index thread cannot keep up."""
        while self._index.tail.room < entries:
            if self.busy:  # perhaps with a merge or with dropping runs, which make no room
                self._thread.drain()
                continue
            before = self._index.tail.first
            self.flush(whole=not self._enough())
            self._thread.drain()
            if self._index.tail.first == before:
                raise OSError(f"{self._index.directory}: the index tail is full and no run could be written")

    @property
    def end_position(self) -> int:
        """Log position up to which the index has taken everything in."""
        return self._index.end_position

    def flush(self, *, whole: bool = False) -> None:
        """Write the tail as a run, in the background; in a group what is confirmed of it, or the `whole`.

        When there is nothing to write but more is confirmed than the MANIFEST records, only the MANIFEST is updated.
        """
        assert not self.busy
        limit = None if whole or self._confirmed is None else self._confirmed()
        sealed, manifest, runs = self._index.seal(limit), self._index.manifest, list(self._index.runs)
        before = manifest
        confirmed = sealed.end if self._confirmed is None else self._confirmed()
        manifest = replace(manifest, confirmed_position=confirmed if confirmed < sealed.end else None)
        if sealed.end == manifest.end_position and manifest == before:
            return
        self._jobs.start(
            RUNS,
            lambda: self._write(sealed, manifest, runs),
            lambda made: self._installed(sealed, *made),
        )

    def _write(self, sealed: Sealed, manifest: Manifest, runs: Sequence[Run]) -> tuple[Manifest, Run | None]:
        run = None
        file_id = manifest.next_file_id
        directory = self._index.directory
        if sealed.number > sealed.tail.first:
            data = sealed.sorted()
            self._faults.hit("index.write")
            write_run(run_path(directory, file_id), file_id, 0, (sealed.first, sealed.end), data)
            run = Run(run_path(directory, file_id))
        offsets_id = manifest.offsets_id
        if sealed.floors:
            offsets_id = self._save_offsets(manifest, [*runs, run] if run else runs, file_id + 1, sealed.floors)
        self._sync_log()
        made = replace(
            manifest,
            next_file_id=file_id + 2,
            end_position=sealed.end,
            offsets_id=offsets_id,
            runs=(*(old.file_id for old in runs), *((run.file_id,) if run else ())),
        )
        self._faults.hit("index.manifest")
        self._replace_files(manifest, made, ())
        return made, run

    def _installed(self, sealed: Sealed, manifest: Manifest, run: Run | None) -> None:
        self.runs_written_total += run is not None
        self._index.install(manifest, run, sealed)
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
        self._jobs.start(
            RUNS, lambda: self._merge(old, all_runs, group, manifest), lambda made: self._merged(old, made[0], made[1])
        )

    def _merge(
        self, old: Sequence[Run], runs: list[Run], group: tuple[int, int], manifest: Manifest
    ) -> tuple[Manifest, Run]:
        file_id = manifest.next_file_id
        path = run_path(self._index.directory, file_id)
        data = merge_runs(old)
        self._faults.hit("index.write")
        write_run(path, file_id, old[0].level + 1, (old[0].first_position, old[-1].end_position), data)
        run = Run(path)
        offsets_id = self._save_offsets(manifest, runs, file_id + 1)
        runs[group[0] : group[1]] = [run]
        made = replace(
            manifest, next_file_id=file_id + 2, offsets_id=offsets_id, runs=tuple(each.file_id for each in runs)
        )
        self._replace_files(manifest, made, old)
        return made, run

    def _save_offsets(
        self, manifest: Manifest, runs: Sequence[Run], file_id: int, floors: Sequence[Floors] = ()
    ) -> int:
        """Write each queue's next offset as `runs` leave it, but not below `floors`; return the file's id."""
        next_offsets = next_offsets_of(self._index.directory, manifest, runs, floors)
        save_offsets(offsets_path(self._index.directory, file_id), next_offsets)
        return file_id

    def _replace_files(self, before: Manifest, made: Manifest, dropped: Sequence[Run]) -> None:
        """Save `made`; then what it does not name any more is deleted."""
        save_manifest(self._index.directory, made)
        for run in dropped:
            run.path.unlink(missing_ok=True)
        if before.offsets_id and before.offsets_id != made.offsets_id:
            offsets_path(self._index.directory, before.offsets_id).unlink(missing_ok=True)

    def _merged(self, old: Sequence[Run], manifest: Manifest, run: Run) -> None:
        self.merges_total += 1
        self._index.replace_runs(manifest, old, [run])
        self.merge_if_many()
        self.flush_if_full()

    def drop_runs(self, dropped: Sequence[Run]) -> None:
        """Delete runs (the oldest ones) that hold nothing that is still in the log; retried later while busy."""
        if self.busy or not dropped:
            return
        manifest, runs = self._index.manifest, list(self._index.runs)
        self._jobs.start(
            RUNS, lambda: self._drop(manifest, runs, dropped), lambda made: self._index.replace_runs(made, dropped, [])
        )

    def _drop(self, manifest: Manifest, runs: Sequence[Run], dropped: Sequence[Run]) -> Manifest:
        made = replace(manifest, runs=tuple(run.file_id for run in runs[len(dropped) :]))
        if any(run.file_id > manifest.offsets_id for run in dropped):  # no other file has their queues' next offsets
            file_id = manifest.next_file_id
            made = replace(made, next_file_id=file_id + 1, offsets_id=self._save_offsets(manifest, runs, file_id))
        self._replace_files(manifest, made, dropped)
        return made


def choose_merge(runs: Sequence[tuple[int, int]], count: int, entries_max: int) -> tuple[int, int] | None:
    """Return the bounds [first, end) of the oldest `count` neighbouring runs of one level to merge, or None.

    `runs` are (level, entries), oldest first. A group whose sum exceeds `entries_max` is never merged.
    """
    for first in range(len(runs) - count + 1):
        group = runs[first : first + count]
        same_level = all(level == group[0][0] for level, _ in group)
        if same_level and sum(entries for _, entries in group) <= entries_max:
            return first, first + count
    return None


RoomMaker = Callable[[QueueIndex, int | None], Callable[[int], None]]
"""Gives, for an index that is being recovered and up to where it is confirmed, what makes room in its tail."""


def room_maker(thread: IndexThread, settings: StoreSettings, faults: FaultPoints) -> RoomMaker:
    """Return what gives, for an index that is being recovered, the function that makes room in its tail.

    It gets the position up to which a group of replicas has confirmed the log; None: there is no group.
    """

    def fail(error: Exception) -> None:
        raise error

    def make(index: QueueIndex, confirmed: int | None) -> Callable[[int], None]:
        known = None if confirmed is None else partial(int, confirmed)
        return IndexFlusher(index, thread, lambda: 0, settings, faults, fail, known).make_room

    return make
