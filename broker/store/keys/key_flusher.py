"""Moves the key index's chunks into runs, merges small runs and drops expired ones, in the index thread.

Invariant: one job at a time, so the MANIFEST has one author; it names a run and a position only after the run and the
log below that position are durable; a failed job leaves chunks and runs as they were. Thread rule: methods on the loop
thread, `_write`/`_merge`/`_drop` in the index thread on what they were given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from broker.store.index.index_flusher import choose_merge
from broker.store.keys.key_index import KeyIndex, SealedKeys
from broker.store.keys.key_manifest import KeyManifest, save_key_manifest
from broker.store.keys.key_run import KeyRun, key_run_path, sort_keys, write_key_run
from broker.store.log.index_thread import IndexThread
from broker.store.settings import StoreSettings
from runtime.faults import FaultPoints

FULL_CHUNKS_MAX = 4
"""Chunks that may wait for the index thread; with more of them the loop waits for it."""
ATTEMPTS_MAX = 3
"""Jobs the loop waits for in vain before it gives up."""


class KeyFlusher:
    """Keeps the chunks and the runs of a key index few."""

    def __init__(
        self,
        keys: KeyIndex,
        thread: IndexThread,
        sync_log: Callable[[], int],
        settings: StoreSettings,
        faults: FaultPoints,
        on_failed: Callable[[Exception], None],
    ) -> None:
        self._keys = keys
        self._thread = thread
        self._sync_log = sync_log
        self._settings = settings
        self._faults = faults
        self._on_failed = on_failed
        self.busy = False
        self.merging = True
        self.runs_written_total = 0
        self.merges_total = 0

    def flush_if_full(self) -> None:
        """Start a run when a chunk is full; wait for the index thread when it is too far behind."""
        tried = 0
        while self._keys.full_chunks > FULL_CHUNKS_MAX:
            before = self._keys.full_chunks
            if not self.busy:  # with a merge perhaps, which makes no room, or with a run that will fail
                self.flush()
            self._thread.drain()
            tried += self._keys.full_chunks >= before
            if tried == ATTEMPTS_MAX:
                raise OSError(f"{self._keys.directory}: the key index is full and no run could be written")
        if self._keys.full_chunks and not self.busy:
            self.flush()

    def step(self, indexed: int, begin: int) -> None:
        """Do what is due: drop runs of the expired log below `begin`, and cover what the queue index has, `indexed`."""
        keys = self._keys
        expired = [run for run in keys.runs if run.end_position <= begin]
        if expired and not self.busy:
            manifest = replace(keys.manifest, runs=keys.manifest.runs[len(expired) :])
            self._start(lambda: self._drop(manifest, expired), lambda made: keys.replace_runs(made, expired, []))
        if keys.manifest.end_position < indexed and not self.busy:
            self.flush()

    def flush(self) -> None:
        """Write everything in memory as a run, in the background."""
        assert not self.busy
        keys = self._keys
        if keys.end_position == keys.manifest.end_position:
            return
        sealed, manifest = keys.seal(), keys.manifest
        self._start(lambda: self._write(sealed, manifest), lambda made: self._installed(sealed, *made))

    def _start(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.busy = True

        def finished(result: Any, error: Exception | None) -> None:
            self.busy = False
            if error is not None:
                self._on_failed(error)
            else:
                done(result)

        self._thread.submit(job, finished)

    def _write(self, sealed: SealedKeys, manifest: KeyManifest) -> tuple[KeyManifest, KeyRun | None]:
        run, file_id, directory = None, manifest.next_file_id, self._keys.directory
        if sealed.chunks:
            columns = sort_keys([chunk.columns() for chunk in sealed.chunks])
            self._faults.hit("keys.write")
            path = key_run_path(directory, file_id)
            write_key_run(path, file_id, 0, (sealed.first, sealed.end), columns)
            run = KeyRun(path)
        self._sync_log()
        runs = manifest.runs if run is None else (*manifest.runs, file_id)
        made = KeyManifest(file_id + (run is not None), sealed.end, runs)
        self._faults.hit("keys.manifest")
        save_key_manifest(directory, made)
        return made, run

    def _installed(self, sealed: SealedKeys, manifest: KeyManifest, run: KeyRun | None) -> None:
        self.runs_written_total += run is not None
        self._keys.install(manifest, run, sealed)
        self.merge_if_many()
        if self._keys.full_chunks and not self.busy:
            self.flush()

    def merge_if_many(self) -> None:
        """Start a merge when enough neighbouring runs of one level are there and their sum stays within the bound."""
        if self.busy or not self.merging:
            return
        keys, settings = self._keys, self._settings
        sizes = [(run.level, run.entry_count) for run in keys.runs]
        group = choose_merge(sizes, settings.index_merge_runs, settings.index_merge_entries_max)
        if group is None:
            return
        old, manifest = keys.runs[group[0] : group[1]], keys.manifest
        self._start(lambda: self._merge(old, group, manifest), lambda made: self._merged(old, *made))

    def _merge(
        self, old: Sequence[KeyRun], group: tuple[int, int], manifest: KeyManifest
    ) -> tuple[KeyManifest, KeyRun]:
        file_id = manifest.next_file_id
        path = key_run_path(self._keys.directory, file_id)
        columns = sort_keys([run.columns() for run in old])
        self._faults.hit("keys.write")
        write_key_run(path, file_id, old[0].level + 1, (old[0].first_position, old[-1].end_position), columns)
        run = KeyRun(path)
        runs = (*manifest.runs[: group[0]], file_id, *manifest.runs[group[1] :])
        made = KeyManifest(file_id + 1, manifest.end_position, runs)
        save_key_manifest(self._keys.directory, made)
        for gone in old:
            gone.path.unlink(missing_ok=True)
        return made, run

    def _merged(self, old: Sequence[KeyRun], manifest: KeyManifest, run: KeyRun) -> None:
        self.merges_total += 1
        self._keys.replace_runs(manifest, old, [run])
        self.merge_if_many()
        if self._keys.full_chunks and not self.busy:
            self.flush()

    def _drop(self, manifest: KeyManifest, gone: Sequence[KeyRun]) -> KeyManifest:
        save_key_manifest(self._keys.directory, manifest)
        for run in gone:
            run.path.unlink(missing_ok=True)
        return manifest
