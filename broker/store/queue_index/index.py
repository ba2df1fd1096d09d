"""The queue index: queue id and queue offset -> log position, size and tag hash of the record.

Offsets below `flushed_next` of a queue are in the runs, the others in the tail; runs are in log order, so one queue's
offsets rise from run to run. Invariant: entries of one queue are dense from its minimum offset to its next offset; the
minimum moves only with the begin of the log. Thread rule: loop thread; the index thread gets copies (`seal`) and hands
back finished runs (`install`).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from broker.store.errors import CorruptIndex
from broker.store.hot.contracts import EntryBlock
from broker.store.queue_index.entries import Entries
from broker.store.queue_index.manifest import Manifest, load_manifest, load_offsets, offsets_path
from broker.store.queue_index.run import Run, run_path
from broker.store.queue_index.tail import Tail
from broker.store.queue_index.tail import read_durable as read_durable_of_tail

TAIL_NAME = "tail"


@dataclass(slots=True)
class Sealed:
    """A copy of the tail's entries up to number `number`, which covers the log in [first, end) positions."""

    number: int
    first: int
    end: int
    columns: tuple[npt.NDArray[Any], ...]


class QueueIndex:
    """Runs plus tail of one data directory. Raises CorruptIndex when a file it needs is unreadable."""

    def __init__(self, directory: Path, tail_entries: int, begin: int) -> None:
        directory.mkdir(mode=0o700, exist_ok=True)
        self.directory = directory
        self.proved_durable = read_durable_of_tail(directory / TAIL_NAME)
        self.manifest = load_manifest(directory) or Manifest()
        self.runs = [self._open_run(file_id) for file_id in self.manifest.runs]
        stored = load_offsets(offsets_path(directory, self.manifest.offsets_id)) if self.manifest.offsets_id else None
        count = 0 if stored is None else len(stored)
        self.tail = Tail(directory / TAIL_NAME, tail_entries, count)
        self.end_position = max(self.manifest.end_position, begin)
        """Log position up to which entries have been taken in."""
        self._begin = begin
        self._generation = 1
        self._minimums = array("q", [0]) * count
        self._minimum_generations = array("I", [0]) * count
        self.flushed_next = np.zeros(count, np.int64)
        if stored is not None:
            self.flushed_next[:] = stored
            self.tail.queue_rows[:count, 0] = stored
        self._remove_strangers()

    def _open_run(self, file_id: int) -> Run:
        path = run_path(self.directory, file_id)
        try:
            return Run(path)
        except OSError as error:
            raise CorruptIndex(path, f"the manifest names it but it cannot be opened: {error}") from error

    def _remove_strangers(self) -> None:
        """Delete what a crash left behind: files the MANIFEST does not name."""
        named = {run.path.name for run in self.runs}
        named.add(offsets_path(self.directory, self.manifest.offsets_id).name)
        for path in self.directory.iterdir():
            if path.name.startswith(("run-", "offsets-", ".")) and path.name not in named:
                path.unlink()

    @property
    def queue_count(self) -> int:
        """How many queue ids have rows."""
        return len(self._minimums)

    def grow(self, queue_count: int) -> None:
        """Make rows for queue ids below `queue_count`. Raises OSError when the disk has no room for them."""
        missing = queue_count - len(self._minimums)
        if missing <= 0:
            return
        self.tail.grow(queue_count)
        missing += len(self._minimums) // 2
        self._minimums.extend([0] * missing)
        self._minimum_generations.extend([0] * missing)
        self.flushed_next = np.concatenate((self.flushed_next, np.zeros(missing, np.int64)))
        self.tail.grow(len(self._minimums))

    def set_floor(self, queue: int, next_offset: int) -> None:
        """Let `queue` go on at `next_offset` at least: its earlier entries have expired."""
        self.grow(queue + 1)
        if self.tail.next_offset(queue) < next_offset:
            self.tail.rows[2 * queue] = next_offset
            self.flushed_next[queue] = next_offset

    def set_floors(self, next_offsets: npt.NDArray[np.int64]) -> None:
        """Do what `set_floor` does for the queue ids from 0 on, all at once."""
        count = len(next_offsets)
        self.grow(count)
        rows = self.tail.queue_rows[:count, 0]
        behind = np.flatnonzero(rows < next_offsets)
        rows[behind] = self.flushed_next[behind] = next_offsets[behind]

    def next_offset(self, queue: int) -> int:
        """Offset the queue's next record gets."""
        return self.tail.next_offset(queue)

    def append(self, entries: EntryBlock, end_position: int) -> None:
        """Take in entries in log order whose offsets the tail's rows have given out. The tail must have room.

        `end_position` is where the log ends behind them.
        """
        self.tail.append(entries)
        self.end_position = end_position

    def read(self, queue: int, offset: int, count: int) -> Entries:
        """Return up to `count` entries from `offset`, which is at least the minimum offset; fewer only at the end."""
        parts = []
        if offset < self.flushed_next[queue]:
            for run in self.runs:
                span = run.span(queue)
                if span is None or count <= 0:
                    continue
                first, start, end = span
                skip = offset - first
                if 0 <= skip < end - start:
                    taken = run.entries(start + skip, min(end, start + skip + count))
                    parts.append(taken)
                    offset += len(taken)
                    count -= len(taken)
        if count > 0 and offset >= self.flushed_next[queue]:
            taken = self.tail.find(queue, offset, count)
            if len(taken):
                parts.append(taken)
        return Entries.joined(parts)

    def min_offset(self, queue: int) -> int:
        """Return the oldest offset whose record is still in the log; the next offset when none is."""
        if self._minimum_generations[queue] == self._generation:
            return self._minimums[queue]
        minimum = int(self.flushed_next[queue])
        for run in self.runs:
            span = run.span(queue)
            if span is not None:
                first, start, end = span
                expired = int(run.positions[start:end].searchsorted(self._begin))
                if expired < end - start:
                    minimum = first + expired
                    break
        self._minimums[queue] = minimum
        self._minimum_generations[queue] = self._generation
        return minimum

    def seal(self) -> Sealed:
        """Copy the whole tail for a run."""
        number = self.tail.count
        first = max(self.manifest.end_position, self._begin)
        return Sealed(number, first, self.end_position, self.tail.sealed(number))

    def install(self, manifest: Manifest, run: Run | None, number: int) -> None:
        """Read from `run` what was in the tail below entry `number` (run None: there was nothing)."""
        if run is not None:
            self.runs.append(run)
            self.flushed_next[run.queues] = run.next_offsets()
        self.manifest = manifest
        self.tail.release(number)

    def replace_runs(self, manifest: Manifest, old: Sequence[Run], new: Sequence[Run]) -> None:
        """Read from `new` instead of the neighbouring runs `old`, whose files may then be deleted."""
        at = self.runs.index(old[0])
        assert self.runs[at : at + len(old)] == list(old)
        self.runs[at : at + len(old)] = new
        self.manifest = manifest

    def move_begin(self, begin: int) -> None:
        """Hide entries below log position `begin`."""
        assert self._begin <= begin <= self.manifest.end_position, (self._begin, begin, self.manifest)
        self._begin = begin
        self._generation += 1

    def expired_runs(self) -> list[Run]:
        """Return the runs (the oldest ones) that hold nothing that is still in the log."""
        return [run for run in self.runs if run.end_position <= self._begin]

    def manifest_with(self, runs: Sequence[Run], **changes: Any) -> Manifest:
        """Return the manifest as it will be with these runs."""
        return replace(self.manifest, runs=tuple(run.file_id for run in runs), **changes)

    def close(self) -> None:
        """Give the descriptors back."""
        self.tail.close()
