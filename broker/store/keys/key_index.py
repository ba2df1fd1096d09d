"""The key index: number of a topic and key -> positions of the records that may have it, newest first.

    keys/MANIFEST   one sealed line of JSON: next_file_id, end_position, runs (ids, oldest first)
    keys/run-<10-digit id>
       0 magic "LMQKEYS1" | 8 id u64 | 16 level u32 | 20 zero u32 | 24 entries m u64 | 32 first position i64
      40 end position i64 | 48 crc32c u32 of [0, 48) | 52 crc32c u32 of the columns | 56 zeros to 64
      64 position i64[m] | hash u32[m] | size u32[m] | store time in seconds u32[m]

Newest entries are in chunks of memory in log order, older ones in runs sorted by number. Runs have neither a directory
nor offsets as those of the queue index: nearly every number has one entry, and 20 bytes are half as much. The header's
checksum is checked at every open, that of the columns by `verify` and before a merge.

Invariant: chunks and runs together hold each key of the log from its begin to `end_position` once; a run is never
changed after its rename. File ids are never used twice. One job runs at a time, so the MANIFEST has one author; it
names a run and a position only after the run and the log below that position are durable; a failed job leaves chunks
and runs as they were. Thread rule: loop thread; the index thread writes, merges and deletes what it is given (`seal`)
and hands back finished runs (`install`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from broker.store.errors import CorruptIndex
from broker.store.index.index_flusher import choose_merge
from broker.store.index.run import HEAD_BYTES, map_run
from broker.store.log.index_thread import RUNS, IndexThread, Jobs
from broker.store.log.metadata import open_sealed_json, sealed_json
from broker.store.settings import StoreSettings
from remoting.native import core as native
from remoting.native.checksum import crc32c
from remoting.native.contracts import KeyChunk
from remoting.native.vectors import Column, joined, nonzero, view
from runtime.faults import FaultPoints
from runtime.files import atomic_replace, atomic_write, fsync_dir, make_directory

MANIFEST_NAME = "MANIFEST"
DIRECTORY = "keys"
"""The room of the key index in a data directory."""


@dataclass(frozen=True, slots=True)
class KeyManifest:
    """The live runs of the key index, ids, oldest first."""

    next_file_id: int = 1
    end_position: int = 0
    runs: tuple[int, ...] = ()


def save_key_manifest(directory: Path, manifest: KeyManifest) -> None:
    """Replace the MANIFEST durably. Raises OSError."""
    value = {"end_position": manifest.end_position, "next_file_id": manifest.next_file_id, "runs": manifest.runs}
    atomic_replace(directory / MANIFEST_NAME, sealed_json(value), mode=0o600)


def load_key_manifest(directory: Path) -> KeyManifest | None:
    """Return the MANIFEST, None when there is none. Raises CorruptIndex."""
    value: Any = open_sealed_json(directory / MANIFEST_NAME)
    if value is None:
        return None
    try:
        runs = tuple(int(run) for run in value["runs"])
        return KeyManifest(int(value["next_file_id"]), int(value["end_position"]), runs)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptIndex(directory / MANIFEST_NAME, f"it lacks {error}") from error


MAGIC = b"LMQKEYS1"
ENTRY_BYTES = 20
_HEAD = struct.Struct("<8sQI4xQqq")
_SUMS = struct.Struct("<II")
Columns = tuple[Column, Column, Column, Column]
"""Hashes, positions, sizes in bytes, store times in seconds."""


class KeyRun:
    """A mapped run file. Raises CorruptIndex when its header fails its checks, OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        data = map_run(path)
        size = len(data)
        magic, self.file_id, self.level, m, self.first_position, self.end_position = _HEAD.unpack_from(data)
        head_sum, self._columns_sum = _SUMS.unpack_from(data, _HEAD.size)
        whole = memoryview(data)
        if magic != MAGIC or size != HEAD_BYTES + ENTRY_BYTES * m:
            raise CorruptIndex(path, f"no run of {m} keys in {size} bytes")
        if crc32c(whole[: _HEAD.size]) != head_sum:
            raise CorruptIndex(path, "the checksum of its header does not match")
        self.entry_count = m
        self._columns = whole[HEAD_BYTES:]
        at = HEAD_BYTES
        self.positions = view(data, "q", m, at)
        self.hashes = view(data, "I", m, at + 8 * m)
        self.sizes = view(data, "I", m, at + 12 * m)
        self.seconds = view(data, "I", m, at + 16 * m)

    def find(self, number: int) -> tuple[Column, Column]:
        """Return positions and store times in seconds of the entries of one key number, in log order."""
        hashes = self.hashes
        first = end = hashes.searchsorted(number)
        if first < self.entry_count and hashes[first] == number:
            end += 1
            if end < self.entry_count and hashes[end] == number:  # more than one, which is rare
                end += hashes[end:].searchsorted(number, side="right")
        return self.positions[first:end], self.seconds[first:end]

    def columns(self) -> Columns:
        """Return all entries, sorted by number and position. Raises CorruptIndex."""
        self.verify()
        return self.hashes, self.positions, self.sizes, self.seconds

    def verify(self) -> None:
        """Check the columns. Raises CorruptIndex."""
        if crc32c(self._columns) != self._columns_sum:
            raise CorruptIndex(self.path, "the checksum of its columns does not match")


def key_run_path(directory: Path, file_id: int) -> Path:
    """Return the file of run `file_id`."""
    return directory / f"run-{file_id:010d}"


def sort_keys(parts: Sequence[Columns]) -> Columns:
    """Return the entries of `parts`, which follow each other in the log, as `write_key_run` takes them."""
    hashes, positions, sizes, seconds = (joined(column) for column in zip(*parts, strict=True))
    order = native.core.order_by_queue(hashes)
    return hashes[order], positions[order], sizes[order], seconds[order]


def write_key_run(path: Path, file_id: int, level: int, bounds: tuple[int, int], columns: Columns) -> None:
    """Write one run durably.

    `bounds` are the log positions covered; `columns` are sorted by number and position. Raises OSError.
    """
    hashes, positions, sizes, seconds = columns
    body = (_bytes(positions, "q"), *(_bytes(column, "I") for column in (hashes, sizes, seconds)))
    head = _HEAD.pack(MAGIC, file_id, level, len(hashes), *bounds)
    columns_sum = 0
    for part in body:
        columns_sum = crc32c(part, columns_sum)
    sums = _SUMS.pack(crc32c(head), columns_sum)
    atomic_write(path, (head + sums + bytes(HEAD_BYTES - len(head) - len(sums)), *body), mode=0o600)


def _bytes(column: Column, kind: str) -> bytes:
    return column.astype(kind).tobytes()


Found = tuple[Column, Column]
"""Positions and store times in seconds, in log order."""


@dataclass(slots=True)
class SealedKeys:
    """Complete chunks; with the runs they cover the log in [first, end) positions."""

    chunks: list[KeyChunk]
    first: int
    end: int


class KeyIndex:
    """Runs plus chunks of one data directory. Raises CorruptIndex when a file it needs is unreadable."""

    def __init__(self, directory: Path, chunk_entries: int, begin: int) -> None:
        make_directory(directory, mode=0o700, inner=True)
        self.directory = directory
        self.manifest = load_key_manifest(directory) or KeyManifest()
        self.runs = [self._open_run(file_id) for file_id in self.manifest.runs]
        self.end_position = max(self.manifest.end_position, begin)
        """Log position up to which keys have been taken in; every append moves it on."""
        self._chunk_entries = chunk_entries
        self._chunks: list[KeyChunk] = [native.core.make_key_chunk(chunk_entries)]
        self._remove_strangers()

    def _open_run(self, file_id: int) -> KeyRun:
        path = key_run_path(self.directory, file_id)
        try:
            return KeyRun(path)
        except OSError as error:
            raise CorruptIndex(path, f"the manifest names it but it cannot be opened: {error}") from error

    def _remove_strangers(self) -> None:
        """Delete what a crash left behind: files the MANIFEST does not name, once its own name is on the disk."""
        fsync_dir(self.directory)
        named = {run.path.name for run in self.runs}
        for path in self.directory.iterdir():
            if path.name.startswith(("run-", ".")) and path.name not in named:
                path.unlink()

    @property
    def entry_count(self) -> int:
        """How many entries are in memory."""
        return sum(chunk.count for chunk in self._chunks)

    @property
    def full_chunks(self) -> int:
        """How many chunks take nothing more and wait for a run."""
        return len(self._chunks) - 1

    def take(self, view: bytes | memoryview, base: int, position: int, end: int) -> None:
        """Take in the keys of the sound records in [position, end) of `view`, which begins at log position `base`."""
        while (position := self._chunks[-1].take(view, base, position, end)) < end:
            self._chunks.append(native.core.make_key_chunk(self._chunk_entries))

    def find(self, number: int, low: int, high: int) -> Iterator[Found]:
        """Yield the entries of a key number in [low, high) log positions, the newest stretch first."""
        for chunk in reversed(self._chunks):
            hashes, positions, _, seconds = chunk.columns()
            rows = nonzero(hashes == number)
            if len(rows):
                yield _clipped(positions[rows], seconds[rows], low, high)
        for run in reversed(self.runs):
            if run.first_position < high and run.end_position > low:
                yield _clipped(*run.find(number), low, high)

    def seal(self) -> SealedKeys:
        """Close the chunks, to make a run of them."""
        chunks = [chunk for chunk in self._chunks if chunk.count]
        if self._chunks[-1].count:
            self._chunks.append(native.core.make_key_chunk(self._chunk_entries))
        return SealedKeys(chunks, self.manifest.end_position, self.end_position)

    def install(self, manifest: KeyManifest, run: KeyRun | None, sealed: SealedKeys) -> None:
        """Read from `run` what was in the sealed chunks (run None: there was nothing)."""
        sealed_ids = {id(chunk) for chunk in sealed.chunks}
        self._chunks = [chunk for chunk in self._chunks if id(chunk) not in sealed_ids]
        if run is not None:
            self.runs.append(run)
        self.manifest = manifest

    def replace_runs(self, manifest: KeyManifest, old: Sequence[KeyRun], new: Sequence[KeyRun]) -> None:
        """Read from `new` instead of the neighbouring runs `old`."""
        at = self.runs.index(old[0])
        assert self.runs[at : at + len(old)] == list(old)
        self.runs[at : at + len(old)] = new
        self.manifest = manifest


def _clipped(positions: Column, seconds: Column, low: int, high: int) -> Found:
    first, end = positions.searchsorted(low), positions.searchsorted(high)
    return positions[first:end], seconds[first:end]


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
        self._jobs = Jobs(thread, on_failed)
        self.merging = True
        self.runs_written_total = 0
        self.merges_total = 0

    @property
    def busy(self) -> bool:
        """Whether a run is being written, merged or dropped."""
        return self._jobs.running(RUNS)

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
            self._jobs.start(
                RUNS, lambda: self._drop(manifest, expired), lambda made: keys.replace_runs(made, expired, [])
            )
        if keys.manifest.end_position < indexed and not self.busy:
            self.flush()

    def flush(self) -> None:
        """Write everything in memory as a run, in the background."""
        assert not self.busy
        keys = self._keys
        if keys.end_position == keys.manifest.end_position:
            return
        sealed, manifest = keys.seal(), keys.manifest
        self._jobs.start(RUNS, lambda: self._write(sealed, manifest), lambda made: self._installed(sealed, *made))

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
        self._jobs.start(RUNS, lambda: self._merge(old, group, manifest), lambda made: self._merged(old, *made))

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
        for dropped in old:
            dropped.path.unlink(missing_ok=True)
        return made, run

    def _merged(self, old: Sequence[KeyRun], manifest: KeyManifest, run: KeyRun) -> None:
        self.merges_total += 1
        self._keys.replace_runs(manifest, old, [run])
        self.merge_if_many()
        if self._keys.full_chunks and not self.busy:
            self.flush()

    def _drop(self, manifest: KeyManifest, dropped: Sequence[KeyRun]) -> KeyManifest:
        save_key_manifest(self._keys.directory, manifest)
        for run in dropped:
            run.path.unlink(missing_ok=True)
        return manifest
