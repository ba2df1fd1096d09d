"""The key index: number of a topic and key -> positions of the records that may have it, newest first.

Newest entries are in chunks of memory in log order, older ones in runs sorted by number. Invariant: chunks and runs
together hold each key of the log from its begin to `end_position` once. Thread rule: loop thread; the index thread gets
chunks that grow no more (`seal`) and hands back finished runs (`install`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from broker.store.errors import CorruptIndex
from broker.store.keys.key_manifest import KeyManifest, load_key_manifest
from broker.store.keys.key_run import KeyRun, key_run_path
from remoting.native import core as native
from remoting.native.contracts import KeyChunk
from runtime.files import fsync_dir, make_directory

Found = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""Positions and store times in seconds, in log order."""


@dataclass(slots=True)
class SealedKeys:
    """Chunks that grow no more; with the runs they cover the log in [first, end) positions."""

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
            rows = np.flatnonzero(hashes == np.uint32(number))
            if len(rows):
                yield _clipped(positions[rows], seconds[rows], low, high)
        for run in reversed(self.runs):
            if run.first_position < high and run.end_position > low:
                yield _clipped(*run.find(number), low, high)

    def seal(self) -> SealedKeys:
        """Let the chunks grow no more, for a run."""
        chunks = [chunk for chunk in self._chunks if chunk.count]
        if self._chunks[-1].count:
            self._chunks.append(native.core.make_key_chunk(self._chunk_entries))
        return SealedKeys(chunks, self.manifest.end_position, self.end_position)

    def install(self, manifest: KeyManifest, run: KeyRun | None, sealed: SealedKeys) -> None:
        """Read from `run` what was in the sealed chunks (run None: there was nothing)."""
        gone = {id(chunk) for chunk in sealed.chunks}
        self._chunks = [chunk for chunk in self._chunks if id(chunk) not in gone]
        if run is not None:
            self.runs.append(run)
        self.manifest = manifest

    def replace_runs(self, manifest: KeyManifest, old: Sequence[KeyRun], new: Sequence[KeyRun]) -> None:
        """Read from `new` instead of the neighbouring runs `old`."""
        at = self.runs.index(old[0])
        assert self.runs[at : at + len(old)] == list(old)
        self.runs[at : at + len(old)] = new
        self.manifest = manifest


def _clipped(positions: npt.NDArray[Any], seconds: npt.NDArray[Any], low: int, high: int) -> Found:
    first, end = positions.searchsorted(low), positions.searchsorted(high)
    return positions[first:end], seconds[first:end]
